//! Dense and sparse rows of f32, their products and masks, and the memory that these reuse.

pub mod dropout;
mod product;
pub mod sparse;
pub mod spmm;
pub mod workspace;

use product::multiply;
use rayon::prelude::*;

use crate::{matrix::spmm::ROWS_PER_TASK, matrix::workspace::Workspace};

pub use product::MatrixView;

/// Rows of equal width, one after the other.
#[derive(Clone, Debug)]
pub struct Matrix {
    values: Vec<f32>,
    n_rows: usize,
    width: usize,
}

impl Matrix {
    /// Makes a matrix of the rows of `width` in `values`.
    ///
    /// # Panics
    ///
    /// The last row is not whole.
    pub fn new(values: Vec<f32>, width: usize) -> Self {
        let n_rows = values.len() / width.max(1);
        assert_eq!(n_rows * width, values.len(), "whole rows of {width} elements");
        Self { values, n_rows, width }
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns all elements, row by row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the elements of the first `n` rows.
    pub fn rows(&self, n: usize) -> &[f32] {
        &self.values[..n * self.width]
    }

    /// Returns all elements, row by row.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Returns all elements, row by row.
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// Borrows the matrix.
    pub fn view(&self) -> MatrixView<'_> {
        MatrixView::new(&self.values, self.width)
    }

    /// Returns `self · weight`.
    ///
    /// # Panics
    ///
    /// A row has another number of elements than the weights have rows.
    pub fn times(&self, weight: MatrixView<'_>, workspace: &Workspace) -> Self {
        let mut out = workspace.take(self.n_rows * weight.width());
        multiply(self.view().as_is(), weight.as_is(), &mut out);
        Self { values: out, n_rows: self.n_rows, width: weight.width() }
    }

    /// Returns `self · weightᵀ`.
    ///
    /// # Panics
    ///
    /// A row has another number of elements than a row of the weights.
    pub fn times_transposed(&self, weight: MatrixView<'_>, workspace: &Workspace) -> Self {
        let mut out = workspace.take(self.n_rows * weight.n_rows());
        multiply(self.view().as_is(), weight.transposed(), &mut out);
        Self { values: out, n_rows: self.n_rows, width: weight.n_rows() }
    }

    /// Returns the elements of `selfᵀ · other`.
    ///
    /// # Panics
    ///
    /// The matrices have different numbers of rows.
    pub fn transposed_times(&self, other: &Self) -> Vec<f32> {
        let mut out = vec![0.0; self.width * other.width];
        multiply(self.view().transposed(), other.view().as_is(), &mut out);
        out
    }

    /// Adds `row` to every row.
    pub(crate) fn add_to_rows(&mut self, row: &[f32]) {
        let width = self.width.max(1);
        let rows = self.values_mut().par_chunks_exact_mut(width).with_min_len(ROWS_PER_TASK);
        rows.for_each(|sums| sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value));
    }

    /// Returns the sum of all rows, added in their order.
    pub fn sum_of_rows(&self) -> Vec<f32> {
        let mut sums = vec![0.0; self.width];
        for row in self.values().chunks_exact(self.width.max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        sums
    }
}

/// Returns row, column and value of the first element of rows of `width` that is no finite number.
pub fn first_not_finite(values: &[f32], width: usize) -> Option<(usize, usize, f32)> {
    let at = values.iter().position(|value| !value.is_finite())?;
    Some((at / width, at % width, values[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_sums_are_those_of_the_formulas() {
        let workspace = Workspace::default();
        let x = Matrix::new(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2);
        let weight = MatrixView::new(&[1.0, 0.0, 2.0, -1.0, 3.0, 1.0], 3);
        let product = x.times(weight, &workspace);
        assert_eq!((product.n_rows(), product.width()), (3, 3));
        assert_eq!(product.values(), [-1.0, 6.0, 4.0, -1.0, 12.0, 10.0, -1.0, 18.0, 16.0]);
        let back = product.times_transposed(weight, &workspace);
        assert_eq!(back.values(), [7.0, 23.0, 19.0, 47.0, 31.0, 71.0]);
        let gradient = x.transposed_times(&product);
        assert_eq!(gradient, [-9.0, 132.0, 114.0, -12.0, 168.0, 144.0]);
        let mut sums = x.clone();
        sums.add_to_rows(&[10.0, 20.0]);
        assert_eq!(sums.values(), [11.0, 22.0, 13.0, 24.0, 15.0, 26.0]);
        assert_eq!(sums.sum_of_rows(), [39.0, 72.0]);
    }
}
