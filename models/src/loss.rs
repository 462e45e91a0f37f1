//! The loss of a batch, and its gradient.

use crate::matrix::Matrix;

/// The labels of some nodes, in their order.
#[derive(Clone, Debug)]
pub enum Targets {
    /// One class a node.
    Classes(Vec<u32>),
    /// `width` labels a node, each 0 or 1.
    Several {
        /// Labels of a node.
        width: usize,
        /// All labels, node by node.
        labels: Vec<u8>,
    },
}

/// A batch's loss.
#[derive(Debug)]
pub struct Loss {
    /// The mean over the roots.
    pub mean: f64,
    /// Roots whose class has the largest logit, or all of whose labels are right.
    pub n_right: u64,
    /// The gradient of the logits.
    pub gradient: Matrix,
}

impl Loss {
    /// Returns the loss of `logits`, of which row `i` has target `i`: cross-entropy for one class a
    /// node, binary cross-entropy for several labels.
    pub fn new(logits: &Matrix, targets: &Targets) -> Self {
        let rows: Vec<u32> = (0..logits.n_rows() as u32).collect();
        Self::of_rows(logits, &rows, targets, logits.n_rows() as u64)
    }

    /// Returns the mean loss of some `rows` of `logits`, of which the `i`-th has target `i`, and the
    /// gradient of the mean over `n_all` rows. Sums are in f64, so that the mean of such parts is
    /// that of all rows but for rounding. The mean of no rows is 0.
    pub fn of_rows(logits: &Matrix, rows: &[u32], targets: &Targets, n_all: u64) -> Self {
        let width = logits.width();
        let mut gradient = vec![0.0; logits.values().len()];
        let (mut sum, mut n_right) = (0.0, 0);
        for (at, &row) in rows.iter().enumerate() {
            let range = row as usize * width..(row as usize + 1) * width;
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
        let mean = if rows.is_empty() { 0.0 } else { sum / rows.len() as f64 };
        Self { mean, n_right, gradient: Matrix::new(gradient, width) }
    }
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

/// Returns the binary cross-entropy of a logit, `ln(1 + exp(x)) - y·x`, and its derivative,
/// `sigmoid(x) - y`.
fn label_loss(logit: f32, label: u8) -> (f64, f64) {
    let (x, y) = (f64::from(logit), f64::from(label));
    // Not `x.max(0.0)`, which is 0 for NaN.
    let above = if x < 0.0 { 0.0 } else { x };
    (above - x * y + (-x.abs()).exp().ln_1p(), 1.0 / (1.0 + (-x).exp()) - y)
}

/// Returns whether a logit says that its label is there.
pub(crate) fn is_positive(logit: f32) -> bool {
    logit > 0.0
}

/// Returns the place of the first largest value.
pub fn largest(row: &[f32]) -> usize {
    let larger =
        |best: usize, (at, value): (usize, &f32)| if *value > row[best] { at } else { best };
    row.iter().enumerate().fold(0, larger)
}

/// Returns the first row with an element that is no number, or else with the largest one.
pub fn worst_row(rows: &Matrix) -> usize {
    let larger = |worst: (usize, f32), (at, value): (usize, &f32)| {
        if value.abs().total_cmp(&worst.1).is_gt() { (at, value.abs()) } else { worst }
    };
    let (at, _) = rows.values().iter().enumerate().fold((0, 0.0), larger);
    at / rows.width().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_cross_entropy_is_that_of_the_formula() {
        let values = vec![0.5f32, -1.0, 2.0, 0.0, 30.0, -200.0];
        let labels = [1, 0, 0, 0, 1, 0];
        let targets = Targets::Several { width: 2, labels: labels.to_vec() };
        let found = Loss::new(&Matrix::new(values.clone(), 2), &targets);
        let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
        let mut expected = 0.0;
        for (at, (&x, label)) in values.iter().zip(labels).enumerate() {
            let p = if label == 1 { sigmoid(x) } else { sigmoid(-x) };
            expected -= p.ln() / 6.0;
            let gradient = (sigmoid(x) - f64::from(label)) / 6.0;
            assert!((f64::from(found.gradient.values()[at]) - gradient).abs() < 1e-7);
        }
        assert!((found.mean - expected).abs() < 1e-9, "{} {expected}", found.mean);
        assert_eq!(found.n_right, 2);
        let nan = Targets::Several { width: 1, labels: vec![0] };
        assert!(Loss::new(&Matrix::new(vec![f32::NAN], 1), &nan).mean.is_nan());
    }

    #[test]
    fn the_worst_row_is_the_first_that_is_no_number_or_the_largest() {
        let worst = |values: [f32; 6]| worst_row(&Matrix::new(values.to_vec(), 2));
        assert_eq!(worst([0.0, 1.0, -7.0, 2.0, 3.0, 6.0]), 1);
        assert_eq!(worst([0.0, 1.0, -7.0, f32::NEG_INFINITY, f32::INFINITY, 6.0]), 1);
        assert_eq!(worst([0.0, f32::INFINITY, 0.0, f32::NAN, -f32::NAN, 6.0]), 1);
        assert_eq!(worst([0.0; 6]), 0);
    }

    #[test]
    fn cross_entropy_is_that_of_the_formula() {
        let values = vec![0.5f32, -1.0, 2.0, 0.0, 3.0, 3.0];
        let classes = [2_u32, 1];
        let mut expected = 0.0;
        let mut gradient = Vec::new();
        for (row, class) in values.chunks(3).zip(classes) {
            let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
            expected -= (f64::from(row[class as usize]).exp() / sum).ln() / 2.0;
            gradient.extend((0..3).map(|i| {
                (f64::from(row[i]).exp() / sum - f64::from(u8::from(i == class as usize))) / 2.0
            }));
        }
        let found = Loss::new(&Matrix::new(values, 3), &Targets::Classes(classes.to_vec()));
        assert!((found.mean - expected).abs() < 1e-6, "{} {expected}", found.mean);
        assert_eq!(found.n_right, 2);
        for (found, expected) in found.gradient.values().iter().zip(gradient) {
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

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
            let whole = Loss::new(&logits, &targets);
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
                let part = Loss::of_rows(&logits, roots, &of_part, 10);
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
            assert!(!Loss::of_rows(&logits, &[0], &targets, 1).mean.is_finite());
        }
    }
}
