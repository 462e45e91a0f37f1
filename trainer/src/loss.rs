//! The loss of a batch, and its gradient.

use candle_core::{Device, Result, Tensor, Var};

use crate::matrix::Matrix;

/// A batch's loss.
#[derive(Debug)]
pub(crate) struct Loss {
    /// The mean over the roots.
    pub(crate) mean: f64,
    /// Roots whose class has the largest logit.
    pub(crate) n_right: u64,
    /// The gradient of the logits.
    pub(crate) gradient: Matrix,
}

impl Loss {
    /// Returns the cross-entropy of `logits`, of which each row has its class in `classes`.
    pub(crate) fn cross_entropy(logits: &Matrix, classes: Vec<u32>) -> Result<Self> {
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

/// Returns the rows whose first largest logit is that of their class.
fn count_right(logits: &Matrix, classes: &[u32]) -> u64 {
    let rows = logits.values().chunks_exact(logits.width().max(1));
    rows.zip(classes).filter(|(row, class)| largest(row) == **class as usize).count() as u64
}

/// Returns the place of the first largest value.
pub(crate) fn largest(row: &[f32]) -> usize {
    let larger = |best: usize, (at, value): (usize, &f32)| if *value > row[best] { at } else { best };
    row.iter().enumerate().fold(0, larger)
}

#[cfg(test)]
mod tests {
    use super::*;

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
