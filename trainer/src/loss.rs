//! The loss of a batch, and its gradient.

use candle_core::{Device, Result, Tensor, Var};

use crate::{labels::Targets, matrix::Matrix};

/// A batch's loss.
#[derive(Debug)]
pub(crate) struct Loss {
    /// The mean over the roots.
    pub(crate) mean: f64,
    /// Roots whose class has the largest logit, or all of whose labels are right.
    pub(crate) n_right: u64,
    /// The gradient of the logits.
    pub(crate) gradient: Matrix,
}

impl Loss {
    /// Returns the loss of `logits`: cross-entropy for one class a node, binary cross-entropy for
    /// several labels.
    pub(crate) fn new(logits: &Matrix, targets: Targets) -> Result<Self> {
        match targets {
            Targets::Classes(classes) => Self::cross_entropy(logits, classes),
            Targets::Several { labels, .. } => Ok(Self::binary(logits, &labels)),
        }
    }

    /// Returns the mean over all labels of all rows, and its gradient.
    fn binary(logits: &Matrix, labels: &[u8]) -> Self {
        let scale = 1.0 / labels.len().max(1) as f64;
        let (mut sum, mut gradient) = (0.0, Vec::with_capacity(labels.len()));
        for (&logit, &label) in logits.values().iter().zip(labels) {
            let (loss, slope) = label_loss(logit, label);
            sum += loss;
            gradient.push((slope * scale) as f32);
        }
        let width = logits.width().max(1);
        let rows = logits.values().chunks_exact(width).zip(labels.chunks_exact(width));
        let is_right = |(row, labels): &(&[f32], &[u8])| {
            row.iter().zip(*labels).all(|(&logit, &label)| is_positive(logit) == (label == 1))
        };
        let n_right = rows.filter(is_right).count() as u64;
        Self { mean: sum * scale, n_right, gradient: Matrix::new(gradient, logits.width()) }
    }

    /// Returns the cross-entropy of `logits`, of which each row has its class in `classes`.
    fn cross_entropy(logits: &Matrix, classes: Vec<u32>) -> Result<Self> {
        let n_right = count_right(logits, &classes);
        let shape = (logits.n_rows(), logits.width());
        let var = Var::from_vec(logits.values().to_vec(), shape, &Device::Cpu)?;
        let targets = Tensor::from_vec(classes, logits.n_rows(), &Device::Cpu)?;
        let loss = candle_nn::loss::cross_entropy(&var, &targets)?;
        let gradients = loss.backward()?;
        let gradient = match gradients.get(&var) {
            Some(gradient) => gradient.flatten_all()?.to_vec1()?,
            None => vec![0.0; logits.values().len()],
        };
        let gradient = Matrix::new(gradient, logits.width());
        Ok(Self { mean: f64::from(loss.to_scalar::<f32>()?), n_right, gradient })
    }
}

/// Returns the binary cross-entropy of a logit, `ln(1 + exp(x)) - y·x`, and its derivative,
/// `sigmoid(x) - y`.
pub(crate) fn label_loss(logit: f32, label: u8) -> (f64, f64) {
    let (x, y) = (f64::from(logit), f64::from(label));
    // Not `x.max(0.0)`, which is 0 for NaN.
    let above = if x < 0.0 { 0.0 } else { x };
    (above - x * y + (-x.abs()).exp().ln_1p(), 1.0 / (1.0 + (-x).exp()) - y)
}

/// Returns the rows whose first largest logit is that of their class.
fn count_right(logits: &Matrix, classes: &[u32]) -> u64 {
    let rows = logits.values().chunks_exact(logits.width().max(1));
    rows.zip(classes).filter(|(row, class)| largest(row) == **class as usize).count() as u64
}

/// Returns whether a logit says that its label is there.
pub(crate) fn is_positive(logit: f32) -> bool {
    logit > 0.0
}

/// Returns the place of the first largest value.
pub(crate) fn largest(row: &[f32]) -> usize {
    let larger =
        |best: usize, (at, value): (usize, &f32)| if *value > row[best] { at } else { best };
    row.iter().enumerate().fold(0, larger)
}

/// Returns the first row with an element that is no number, or else with the largest one.
pub(crate) fn worst_row(rows: &Matrix) -> usize {
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
        let found = Loss::new(&Matrix::new(values.clone(), 2), targets).unwrap();
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
        assert!(Loss::new(&Matrix::new(vec![f32::NAN], 1), nan).unwrap().mean.is_nan());
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
        let classes = vec![2, 1];
        let mut expected = 0.0;
        let mut gradient = Vec::new();
        for (row, &class) in values.chunks(3).zip(&classes) {
            let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
            expected -= (f64::from(row[class as usize]).exp() / sum).ln() / 2.0;
            gradient.extend((0..3).map(|i| {
                (f64::from(row[i]).exp() / sum - f64::from(u8::from(i == class as usize))) / 2.0
            }));
        }
        let found = Loss::cross_entropy(&Matrix::new(values, 3), classes).unwrap();
        assert!((found.mean - expected).abs() < 1e-6, "{} {expected}", found.mean);
        assert_eq!(found.n_right, 2);
        for (found, expected) in found.gradient.values().iter().zip(gradient) {
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} {expected}");
        }
    }
}
