//! Normalisation of a layer's rows, forward and backward.
//!
//! Batch normalisation in training takes the statistics of the rows that it is given: those of one
//! worker's batch. Evaluation uses running statistics, which travel with the gradients. Each step
//! they move towards the mean of all workers' statistics, weighted by roots as gradients are. So
//! all replicas keep the same ones, and evaluation normalises by the mean of that by which workers
//! did.

use rayon::prelude::*;

use crate::{
    matrix::Matrix, matrix::spmm::ROWS_PER_TASK, matrix::workspace::Workspace, options::Norm,
    parameter::Parameter,
};

/// Added to a variance before its root is taken.
const EPSILON: f64 = 1e-5;

/// Rows that one thread adds up: a constant, so that sums do not depend on the number of threads.
const ROWS_PER_SUM: usize = 1024;

/// Normalisation with a scale and a shift for each column.
#[derive(Clone, Debug)]
pub struct NormLayer {
    weight: Parameter,
    bias: Parameter,
    /// Batch normalisation: running mean and variance.
    running: Option<[Parameter; 2]>,
}

/// The state that the backward pass needs.
#[derive(Debug)]
pub struct Normed {
    /// Rows before scale and shift.
    unscaled: Matrix,
    /// One over the standard deviation, of each column or of each row.
    inverse: Vec<f32>,
    /// Batch normalisation: mean and unbiased variance of each column.
    statistics: Option<[Vec<f32>; 2]>,
}

impl NormLayer {
    /// Name of the parameter of running variances.
    pub(crate) const VARIANCE: &str = "norm_variance";

    /// Makes the normalisation of rows of `width`, unless `norm` is none.
    pub(crate) fn new(norm: Norm, width: usize) -> Option<Self> {
        let zeros = || Parameter::zeros(width);
        let ones = || Parameter::new(vec![1.0; width], &[width]);
        let running = match norm {
            Norm::None => return None,
            Norm::Batch => Some([zeros(), ones()]),
            Norm::Layer => None,
        };
        Some(Self { weight: ones(), bias: zeros(), running })
    }

    /// Returns the names of the parameters of a normalisation, in their order; statistics are last.
    pub(crate) fn names(norm: Norm) -> &'static [&'static str] {
        match norm {
            Norm::None => &[],
            Norm::Batch => &["norm_weight", "norm_bias", "norm_mean", Self::VARIANCE],
            Norm::Layer => &["norm_weight", "norm_bias"],
        }
    }

    /// Returns scale and shift, and running statistics if there are any.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        [&self.weight, &self.bias].into_iter().chain(self.running.iter().flatten())
    }

    /// Returns the number of parameters that are running statistics.
    pub(crate) fn n_statistics(&self) -> usize {
        self.running.iter().flatten().count()
    }

    /// Returns the normalised rows of a training step, and what the backward pass needs.
    pub fn forward(&self, rows: Matrix, workspace: &Workspace) -> (Matrix, Normed) {
        let normed = match &self.running {
            // One row has no variance: running statistics stay where they are.
            Some([mean, variance]) if rows.n_rows() < 2 => {
                let running = [mean.read().to_vec(), variance.read().to_vec()];
                Normed { statistics: Some(running), ..by_column(rows) }
            }
            Some(_) => by_column(rows),
            None => by_row(rows),
        };
        let mut out = copy_of(&normed.unscaled, workspace);
        self.scale(&mut out);
        (out, normed)
    }

    /// Normalises the rows of an evaluation: by running statistics if there are any.
    pub fn evaluate(&self, mut rows: Matrix) -> Matrix {
        if let Some([mean, variance]) = &self.running {
            let inverse: Vec<f32> =
                variance.read().iter().map(|&variance| inverse_of(variance.into())).collect();
            move_and_scale(&mut rows, &mean.read(), &inverse);
        } else {
            rows = by_row(rows).unscaled;
        }
        self.scale(&mut rows);
        rows
    }

    /// Returns the gradients of scale and shift, and the gradient of the rows, given that of the
    /// output. The step's statistics, if there are any, follow scale and shift.
    pub fn gradients(
        &self,
        saved: &Normed,
        grad: &Matrix,
        workspace: &Workspace,
    ) -> (Vec<Vec<f32>>, Matrix) {
        let [of_bias, of_weight] =
            sums_of_columns(grad, |row, column, value| [value, value * saved.at(row, column)]);
        let narrow = |sums: &[f64]| sums.iter().map(|&sum| sum as f32).collect::<Vec<f32>>();
        let mut gradients = vec![narrow(&of_weight), narrow(&of_bias)];
        let mut of_rows = copy_of(grad, workspace);
        let weight = self.weight.read();
        match &saved.statistics {
            Some(_) => saved.through_columns(&mut of_rows, &weight, [&of_bias, &of_weight]),
            None => saved.through_rows(&mut of_rows, &weight),
        }
        gradients.extend(saved.statistics.clone().into_iter().flatten());
        (gradients, of_rows)
    }

    fn scale(&self, rows: &mut Matrix) {
        let weight = self.weight.read();
        let bias = self.bias.read();
        for_each_row(rows, |_, row| {
            let scales = weight.iter().zip(&*bias);
            row.iter_mut().zip(scales).for_each(|(x, (w, b))| *x = *x * w + b);
        });
    }
}

impl Normed {
    fn at(&self, row: usize, column: usize) -> f64 {
        self.unscaled.values()[row * self.unscaled.width() + column].into()
    }

    /// Turns the gradient of rows that were normalised by column into that of the rows before. It
    /// subtracts the gradient's mean, and its part along the rows. `sums` are the sums of both over
    /// all rows.
    fn through_columns(&self, grad: &mut Matrix, weight: &[f32], sums: [&[f64]; 2]) {
        let n_rows = grad.n_rows() as f64;
        let [means, along] =
            sums.map(|sums| sums.iter().map(|sum| (sum / n_rows) as f32).collect::<Vec<f32>>());
        let width = grad.width();
        for_each_row(grad, |number, row| {
            let unscaled = &self.unscaled.values()[number * width..][..width];
            for (column, grad) in row.iter_mut().enumerate() {
                let rest = *grad - means[column] - unscaled[column] * along[column];
                *grad = weight[column] * self.inverse[column] * rest;
            }
        });
    }

    /// Does the same for rows that were normalised each by itself.
    fn through_rows(&self, grad: &mut Matrix, weight: &[f32]) {
        let width = grad.width();
        for_each_row(grad, |number, row| {
            let unscaled = &self.unscaled.values()[number * width..][..width];
            row.iter_mut().zip(weight).for_each(|(grad, weight)| *grad *= weight);
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

/// Normalises each column over all rows. A column of one row becomes 0.
fn by_column(mut rows: Matrix) -> Normed {
    let n_rows = rows.n_rows() as f64;
    let [sums] = sums_of_columns(&rows, |_, _, value| [value]);
    let means: Vec<f64> = sums.iter().map(|sum| sum / n_rows.max(1.0)).collect();
    let [squares] = sums_of_columns(&rows, |_, column, value| [(value - means[column]).powi(2)]);
    let inverse: Vec<f32> =
        squares.iter().map(|square| inverse_of(square / n_rows.max(1.0))).collect();
    let unbiased = squares.iter().map(|square| (square / (n_rows - 1.0).max(1.0)) as f32).collect();
    let means: Vec<f32> = means.into_iter().map(|mean| mean as f32).collect();
    move_and_scale(&mut rows, &means, &inverse);
    Normed { unscaled: rows, inverse, statistics: Some([means, unbiased]) }
}

/// Normalises each row over its columns.
fn by_row(mut rows: Matrix) -> Normed {
    let mut inverse = vec![0.0; rows.n_rows()];
    let width = rows.width().max(1);
    let pairs = rows.values_mut().par_chunks_exact_mut(width).zip(&mut inverse);
    pairs.with_min_len(ROWS_PER_TASK).for_each(|(row, inverse)| {
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
        let squares = row.iter().map(|&x| (f64::from(x) - mean).powi(2));
        *inverse = inverse_of(squares.sum::<f64>() / width as f64);
        row.iter_mut().for_each(|x| *x = (*x - mean as f32) * *inverse);
    });
    Normed { unscaled: rows, inverse, statistics: None }
}

fn copy_of(rows: &Matrix, workspace: &Workspace) -> Matrix {
    Matrix::new(workspace.copy(rows.values()), rows.width())
}

fn inverse_of(variance: f64) -> f32 {
    (1.0 / (variance + EPSILON).sqrt()) as f32
}

fn move_and_scale(rows: &mut Matrix, means: &[f32], inverse: &[f32]) {
    for_each_row(rows, |_, row| {
        let scales = means.iter().zip(inverse);
        row.iter_mut().zip(scales).for_each(|(x, (mean, inverse))| *x = (*x - mean) * inverse);
    });
}

fn for_each_row(rows: &mut Matrix, f: impl Fn(usize, &mut [f32]) + Sync) {
    let width = rows.width().max(1);
    let rows = rows.values_mut().par_chunks_exact_mut(width).enumerate();
    rows.with_min_len(ROWS_PER_TASK).for_each(|(number, row)| f(number, row));
}

/// Returns, for each column, the sums over all rows of the terms of each element. Terms are added
/// in the order of the rows within pieces of a fixed number, and then in the order of the pieces.
fn sums_of_columns<const N: usize>(
    rows: &Matrix,
    terms: impl Fn(usize, usize, f64) -> [f64; N] + Sync,
) -> [Vec<f64>; N] {
    let width = rows.width();
    let zeros = || std::array::from_fn(|_| vec![0.0; width]);
    let pieces = rows.values().par_chunks(ROWS_PER_SUM * width.max(1)).enumerate();
    let pieces: Vec<[Vec<f64>; N]> = pieces
        .map(|(piece, values)| {
            let mut sums: [Vec<f64>; N] = zeros();
            for (row, values) in values.chunks_exact(width.max(1)).enumerate() {
                for (column, &value) in values.iter().enumerate() {
                    let terms = terms(piece * ROWS_PER_SUM + row, column, value.into());
                    sums.iter_mut().zip(terms).for_each(|(sums, term)| sums[column] += term);
                }
            }
            sums
        })
        .collect();
    let mut all: [Vec<f64>; N] = zeros();
    for piece in pieces {
        for (sums, of_piece) in all.iter_mut().zip(piece) {
            sums.iter_mut().zip(of_piece).for_each(|(sum, of_piece)| *sum += of_piece);
        }
    }
    all
}

#[cfg(test)]
mod tests;
