//! Layer normalisation of rows (Ba et al. 2016), forward and backward.

use rayon::prelude::*;

use crate::{
    matrix::Matrix, matrix::spmm::ROWS_PER_TASK, matrix::workspace::Workspace, options::Norm,
    parameter::Parameter,
};

/// Added to a variance before its root is taken.
const EPSILON: f64 = 1e-5;

/// Rows that one thread adds up: a constant, so that sums do not depend on the number of threads.
const ROWS_PER_SUM: usize = 1024;

/// Normalisation of each row over its columns, with a scale and a shift for each column.
#[derive(Clone, Debug)]
pub struct NormLayer {
    weight: Parameter,
    bias: Parameter,
}

/// The state that the backward pass needs.
#[derive(Debug)]
pub struct Normed {
    /// Rows before scale and shift.
    unscaled: Matrix,
    /// One over the standard deviation of each row.
    inverse: Vec<f32>,
}

/// Sums over all rows, one per column.
struct ColumnSums {
    /// Of the gradient.
    grad: Vec<f64>,
    /// Of the gradient's products with the unscaled rows.
    product: Vec<f64>,
}

impl NormLayer {
    /// Makes the normalisation of rows of `width`, unless `norm` is none.
    pub(crate) fn new(norm: Norm, width: usize) -> Option<Self> {
        match norm {
            Norm::None => None,
            Norm::Layer => Some(Self {
                weight: Parameter::new(vec![1.0; width], &[width]),
                bias: Parameter::zeros(width),
            }),
        }
    }

    /// Returns the names of the parameters of a normalisation, in their order.
    pub(crate) fn names(norm: Norm) -> &'static [&'static str] {
        match norm {
            Norm::None => &[],
            Norm::Layer => &["norm_weight", "norm_bias"],
        }
    }

    /// Returns scale and shift.
    pub(crate) fn parameters(&self) -> [&Parameter; 2] {
        [&self.weight, &self.bias]
    }

    /// Returns the normalised rows of a training step, and what the backward pass needs.
    pub fn forward(&self, rows: Matrix, workspace: &Workspace) -> (Matrix, Normed) {
        let normed = normalise(rows);
        let mut out = copy_of(&normed.unscaled, workspace);
        self.scale(&mut out);
        (out, normed)
    }

    /// Normalises the rows of an evaluation.
    pub fn evaluate(&self, rows: Matrix) -> Matrix {
        let mut rows = normalise(rows).unscaled;
        self.scale(&mut rows);
        rows
    }

    /// Returns the gradients of scale and shift, and the gradient of the rows, given that of the
    /// output.
    pub fn gradients(
        &self,
        saved: &Normed,
        grad: &Matrix,
        workspace: &Workspace,
    ) -> (Vec<Vec<f32>>, Matrix) {
        let sums = ColumnSums::of(grad, &saved.unscaled);
        let narrow = |sums: &[f64]| sums.iter().map(|&sum| sum as f32).collect::<Vec<f32>>();
        let gradients = vec![narrow(&sums.product), narrow(&sums.grad)];
        let mut of_rows = copy_of(grad, workspace);
        saved.backward(&mut of_rows, &self.weight.read());
        (gradients, of_rows)
    }

    fn scale(&self, rows: &mut Matrix) {
        let weight = self.weight.read();
        let bias = self.bias.read();
        for_each_row(rows, |_, row| {
            for (x, (weight, bias)) in row.iter_mut().zip(weight.iter().zip(&*bias)) {
                *x = *x * weight + bias;
            }
        });
    }
}

impl Normed {
    /// Replaces the gradient of the output by the gradient of the rows. It subtracts each row's
    /// mean, and its part along the row.
    fn backward(&self, grad: &mut Matrix, weight: &[f32]) {
        let width = grad.width();
        for_each_row(grad, |number, row| {
            let unscaled = &self.unscaled.values()[number * width..][..width];
            for (grad, weight) in row.iter_mut().zip(weight) {
                *grad *= weight;
            }
            let mean = row.iter().map(|&g| f64::from(g)).sum::<f64>() / width as f64;
            let products = row.iter().zip(unscaled).map(|(&g, &x)| f64::from(g) * f64::from(x));
            let along = (products.sum::<f64>() / width as f64) as f32;
            for (grad, x) in row.iter_mut().zip(unscaled) {
                *grad = self.inverse[number] * (*grad - mean as f32 - x * along);
            }
        });
    }

    /// Returns the rows, whose memory is no longer needed.
    pub fn into_rows(self) -> Matrix {
        self.unscaled
    }
}

impl ColumnSums {
    /// Adds rows in their order within pieces of [`ROWS_PER_SUM`], then the pieces in their order.
    fn of(grad: &Matrix, unscaled: &Matrix) -> Self {
        let width = grad.width();
        let piece_len = ROWS_PER_SUM * width.max(1);
        let pieces =
            grad.values().par_chunks(piece_len).zip(unscaled.values().par_chunks(piece_len));
        let pieces: Vec<Self> = pieces
            .map(|(grad, unscaled)| {
                let mut sums = Self::zeros(width);
                let rows = grad.chunks_exact(width.max(1)).zip(unscaled.chunks_exact(width.max(1)));
                for (grad, unscaled) in rows {
                    for (column, (&grad, &x)) in grad.iter().zip(unscaled).enumerate() {
                        sums.grad[column] += f64::from(grad);
                        sums.product[column] += f64::from(grad) * f64::from(x);
                    }
                }
                sums
            })
            .collect();
        let mut all = Self::zeros(width);
        for piece in pieces {
            for column in 0..width {
                all.grad[column] += piece.grad[column];
                all.product[column] += piece.product[column];
            }
        }
        all
    }

    fn zeros(width: usize) -> Self {
        Self { grad: vec![0.0; width], product: vec![0.0; width] }
    }
}

/// Normalises each row over its columns.
fn normalise(mut rows: Matrix) -> Normed {
    let mut inverse = vec![0.0; rows.n_rows()];
    let width = rows.width().max(1);
    let pairs = rows.values_mut().par_chunks_exact_mut(width).zip(&mut inverse);
    pairs.with_min_len(ROWS_PER_TASK).for_each(|(row, inverse)| {
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
        let squares = row.iter().map(|&x| (f64::from(x) - mean).powi(2));
        let variance = squares.sum::<f64>() / width as f64;
        *inverse = (1.0 / (variance + EPSILON).sqrt()) as f32;
        for x in row {
            *x = (*x - mean as f32) * *inverse;
        }
    });
    Normed { unscaled: rows, inverse }
}

fn copy_of(rows: &Matrix, workspace: &Workspace) -> Matrix {
    Matrix::new(workspace.copy(rows.values()), rows.width())
}

fn for_each_row(rows: &mut Matrix, f: impl Fn(usize, &mut [f32]) + Sync) {
    let width = rows.width().max(1);
    let rows = rows.values_mut().par_chunks_exact_mut(width).enumerate();
    rows.with_min_len(ROWS_PER_TASK).for_each(|(number, row)| f(number, row));
}

#[cfg(test)]
mod tests;
