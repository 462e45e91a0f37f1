//! The loss of a partition's training nodes as a part of the mean over all partitions.

use crate::{
    labels::Targets,
    loss::{Loss, is_positive, label_loss, largest},
    matrix::Matrix,
};

/// Returns the loss of the rows `roots` of `logits`, 0 without any, and the gradient of the mean
/// over `n_all` training nodes of the graph. Sums are in f64, so that the mean of partitions' parts
/// is that of the whole graph but for rounding.
pub(crate) fn part_loss(logits: &Matrix, roots: &[u32], targets: &Targets, n_all: u64) -> Loss {
    let width = logits.width();
    let mut gradient = vec![0.0; logits.values().len()];
    let (mut sum, mut n_right) = (0.0, 0);
    for (at, &root) in roots.iter().enumerate() {
        let range = root as usize * width..(root as usize + 1) * width;
        let (row, out) = (&logits.values()[range.clone()], &mut gradient[range]);
        let (loss, is_right) = match targets {
            Targets::Classes(classes) => cross_entropy(row, classes[at], n_all, out),
            Targets::Several { width, labels } => {
                binary(row, &labels[at * width..][..*width], n_all, out)
            }
        };
        sum += loss;
        n_right += u64::from(is_right);
    }
    let mean = if roots.is_empty() { 0.0 } else { sum / roots.len() as f64 };
    Loss { mean, n_right, gradient: Matrix::new(gradient, width) }
}

/// Returns `ln Σ exp(x) - x[class]`, and whether the class has the largest logit.
fn cross_entropy(row: &[f32], class: u32, n_all: u64, gradient: &mut [f32]) -> (f64, bool) {
    let (class, scale) = (class as usize, 1.0 / n_all as f64);
    // Not `f64::max`, which passes NaN over.
    let top = row
        .iter()
        .map(|&x| f64::from(x))
        .fold(f64::NEG_INFINITY, |top, x| if x > top || x.is_nan() { x } else { top });
    let sum: f64 = row.iter().map(|&x| (f64::from(x) - top).exp()).sum();
    for (column, (out, &x)) in gradient.iter_mut().zip(row).enumerate() {
        let share = (f64::from(x) - top).exp() / sum;
        *out = ((share - f64::from(u8::from(column == class))) * scale) as f32;
    }
    (top + sum.ln() - f64::from(row[class]), largest(row) == class)
}

/// Returns the mean over labels, and whether all of them are right.
fn binary(row: &[f32], labels: &[u8], n_all: u64, gradient: &mut [f32]) -> (f64, bool) {
    let scale = 1.0 / (n_all as f64 * labels.len().max(1) as f64);
    let (mut sum, mut is_right) = (0.0, true);
    for (out, (&logit, &label)) in gradient.iter_mut().zip(row.iter().zip(labels)) {
        let (loss, slope) = label_loss(logit, label);
        sum += loss;
        *out = (slope * scale) as f32;
        is_right &= is_positive(logit) == (label == 1);
    }
    (sum / labels.len().max(1) as f64, is_right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_loss_of_all() {
        let random = crate::random::CounterRandom::new(3, 1);
        let values: Vec<f32> = (0..40).map(|at| 8.0 * random.unit(at) - 4.0).collect();
        let logits = Matrix::new(values, 4);
        let classes: Vec<u32> = (0..10).map(|at| at % 4).collect();
        let labels: Vec<u8> = (0..40).map(|at| u8::from(at % 3 == 0)).collect();
        for targets in [
            Targets::Classes(classes.clone()),
            Targets::Several { width: 4, labels: labels.clone() },
        ] {
            let whole = Loss::new(&logits, targets.clone()).unwrap();
            let (mut mean, mut n_right, mut gradient) = (0.0, 0, vec![0.0f32; 40]);
            for roots in [&[0u32, 3, 4][..], &[], &[9, 1, 2, 5, 6, 7, 8]] {
                let of_part = match &targets {
                    Targets::Classes(all) => {
                        Targets::Classes(roots.iter().map(|&root| all[root as usize]).collect())
                    }
                    Targets::Several { labels, .. } => Targets::Several {
                        width: 4,
                        labels: roots
                            .iter()
                            .flat_map(|&root| &labels[4 * root as usize..][..4])
                            .copied()
                            .collect(),
                    },
                };
                let part = part_loss(&logits, roots, &of_part, 10);
                mean += part.mean * roots.len() as f64 / 10.0;
                n_right += part.n_right;
                gradient.iter_mut().zip(part.gradient.values()).for_each(|(sum, of)| *sum += of);
            }
            assert!((mean - whole.mean).abs() < 1e-6, "{mean} {}", whole.mean);
            assert_eq!(n_right, whole.n_right);
            for (found, expected) in gradient.iter().zip(whole.gradient.values()) {
                assert!((found - expected).abs() < 1e-7, "{found} {expected}");
            }
        }
    }

    #[test]
    fn a_logit_that_is_no_number_shows() {
        for bad in [f32::NAN, f32::INFINITY] {
            let logits = Matrix::new(vec![0.0, bad, 1.0], 3);
            let targets = Targets::Classes(vec![0]);
            assert!(!part_loss(&logits, &[0], &targets, 1).mean.is_finite());
        }
    }
}
