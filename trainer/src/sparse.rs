//! Rows that are mostly zeros: their non-zero elements, and products of them.

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use crate::{
    dropout::Mask,
    matrix::{Matrix, with_values},
    spmm::{ROWS_PER_TASK, add_scaled},
    workspace::Workspace,
};

/// Rows of equal width by their non-zero elements. Memory: 8 bytes an element, 8 bytes a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SparseRows {
    width: usize,
    /// Where each row begins, then where the last one ends.
    offsets: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f32>,
}

/// Some consecutive rows, as one task makes them.
#[derive(Debug, Default)]
pub(crate) struct SparsePiece {
    /// Where each row ends.
    ends: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f32>,
}

/// Rows that a weight matrix is multiplied with.
#[derive(Clone, Debug)]
pub(crate) enum Rows {
    Dense(Matrix),
    Sparse(SparseRows),
}

impl SparsePiece {
    /// Appends an element to the row that [`SparsePiece::end_row`] will end.
    pub(crate) fn push(&mut self, column: u32, value: f32) {
        self.columns.push(column);
        self.values.push(value);
    }

    /// Ends a row; returns the elements of it, to be changed.
    pub(crate) fn end_row(&mut self) -> &mut [f32] {
        let start = self.ends.last().copied().unwrap_or(0);
        self.ends.push(self.values.len());
        &mut self.values[start..]
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}

impl SparseRows {
    /// Joins pieces of rows of `width`.
    pub(crate) fn new(width: usize, pieces: Vec<SparsePiece>) -> Self {
        let n_elements = pieces.iter().map(SparsePiece::len).sum();
        let mut offsets = vec![0];
        let mut columns = Vec::with_capacity(n_elements);
        let mut values: Vec<f32> = Vec::with_capacity(n_elements);
        for piece in pieces {
            offsets.extend(piece.ends.iter().map(|end| values.len() + end));
            columns.extend(piece.columns);
            values.extend(piece.values);
        }
        Self { width, offsets, columns, values }
    }

    /// Returns the elements of a row, zeros included.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of rows.
    pub(crate) fn n_rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the non-zero elements of a row, with their columns.
    pub(crate) fn row(&self, row: usize) -> impl Iterator<Item = (u32, f32)> {
        let range = self.offsets[row]..self.offsets[row + 1];
        let columns = self.columns[range.clone()].iter().copied();
        columns.zip(self.values[range].iter().copied())
    }

    /// Returns row, column and value of the first element that is no finite number.
    pub(crate) fn first_not_finite(&self) -> Option<(usize, usize, f32)> {
        let at = self.values.iter().position(|value| !value.is_finite())?;
        let row = self.offsets.partition_point(|&offset| offset <= at) - 1;
        Some((row, self.columns[at] as usize, self.values[at]))
    }

    /// Returns the rows after dropout; elements that are dropped are left out.
    pub(crate) fn dropped(&self, mask: &Mask) -> Self {
        let rows: Vec<usize> = (0..self.n_rows()).collect();
        let piece = |rows: &[usize]| {
            let mut piece = SparsePiece::default();
            for &row in rows {
                mask.push_row(row, self.row(row), &mut piece);
            }
            piece
        };
        Self::new(self.width, rows.par_chunks(ROWS_PER_TASK).map(piece).collect())
    }

    /// Returns all elements, zeros included.
    pub(crate) fn to_dense(&self) -> Matrix {
        let mut dense = vec![0.0; self.n_rows() * self.width];
        for (row, out) in dense.chunks_exact_mut(self.width.max(1)).enumerate() {
            self.row(row).for_each(|(column, value)| out[column as usize] = value);
        }
        Matrix::new(dense, self.width)
    }

    /// Returns the product with a weight matrix.
    fn times(&self, weight: &Tensor, workspace: &Workspace) -> Result<Matrix> {
        let (height, width) = weight.dims2()?;
        if height != self.width {
            candle_core::bail!("rows have {} elements, the layer expects {height}", self.width);
        }
        let mut out = workspace.take(self.n_rows() * width);
        with_values(weight, |weight| {
            let rows = out.par_chunks_exact_mut(width).enumerate().with_min_len(ROWS_PER_TASK);
            rows.for_each(|(row, out)| {
                out.fill(0.0);
                for (column, value) in self.row(row) {
                    add_scaled(out, value, &weight[column as usize * width..][..width]);
                }
            });
            Ok(())
        })?;
        Ok(Matrix::new(out, width))
    }

    /// Returns the elements of the transposed rows times `other`. Each row of it is one thread's, and
    /// is summed in the order of the rows here.
    fn transposed_times(&self, other: &Matrix) -> Vec<f32> {
        let width = other.width();
        let mut ends = vec![0usize; self.width + 1];
        self.columns.iter().for_each(|&column| ends[column as usize + 1] += 1);
        for column in 0..self.width {
            ends[column + 1] += ends[column];
        }
        // What is the start of a column now is its end once all its elements are in place.
        ends.pop();
        let mut elements = vec![(0u32, 0.0f32); self.values.len()];
        for row in 0..self.n_rows() {
            for (column, value) in self.row(row) {
                let place = &mut ends[column as usize];
                elements[*place] = (row as u32, value);
                *place += 1;
            }
        }
        let mut out = vec![0.0; self.width * width];
        let rows = out.par_chunks_exact_mut(width.max(1)).enumerate().with_min_len(ROWS_PER_TASK);
        rows.for_each(|(column, out)| {
            let start = column.checked_sub(1).map_or(0, |before| ends[before]);
            for &(row, value) in &elements[start..ends[column]] {
                add_scaled(out, value, &other.values()[row as usize * width..][..width]);
            }
        });
        out
    }
}

impl Rows {
    /// Returns the elements of a row.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::Dense(rows) => rows.width(),
            Self::Sparse(rows) => rows.width(),
        }
    }

    /// Returns `self · weight`.
    pub(crate) fn times(&self, weight: &Tensor, workspace: &Workspace) -> Result<Matrix> {
        match self {
            Self::Dense(rows) => rows.times(weight, workspace),
            Self::Sparse(rows) => rows.times(weight, workspace),
        }
    }

    /// Returns the elements of `selfᵀ · other`.
    pub(crate) fn transposed_times(&self, other: &Matrix) -> Result<Vec<f32>> {
        match self {
            Self::Dense(rows) => rows.transposed_times(other),
            Self::Sparse(rows) => Ok(rows.transposed_times(other)),
        }
    }

    /// Returns all elements.
    pub(crate) fn into_dense(self) -> Matrix {
        match self {
            Self::Dense(rows) => rows,
            Self::Sparse(rows) => rows.to_dense(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::random::CounterRandom;
    use candle_core::{Device, Var};

    /// Rows of which some are empty, with one element in nine or so.
    pub(crate) fn sparse(n_rows: usize, width: usize) -> SparseRows {
        let random = CounterRandom::new(8, 0);
        let mut piece = SparsePiece::default();
        for row in 0..n_rows {
            for column in 0..width {
                let at = (row * width + column) as u64;
                if row % 5 != 1 && random.bits(at).is_multiple_of(9) {
                    piece.push(column as u32, random.unit(at) - 0.5);
                }
            }
            piece.end_row();
        }
        SparseRows::new(width, vec![piece])
    }

    #[test]
    fn products_are_those_of_the_dense_rows() {
        let sparse = sparse(200, 37);
        let dense = Rows::Dense(sparse.to_dense());
        let random = CounterRandom::new(1, 1);
        let values = |n: u64| (0..n).map(|i| random.unit(i) - 0.5).collect::<Vec<f32>>();
        let weight = Var::from_vec(values(37 * 5), (37, 5), &Device::Cpu).unwrap();
        let grad = Matrix::new(values(200 * 5), 5);
        let sparse = Rows::Sparse(sparse);
        let close = |a: &[f32], b: &[f32]| {
            assert_eq!(a.len(), b.len());
            a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} {b}"));
        };
        let workspace = Workspace::default();
        let [of_sparse, of_dense] =
            [&sparse, &dense].map(|rows| rows.times(&weight, &workspace).unwrap());
        close(of_sparse.values(), of_dense.values());
        let [of_sparse, of_dense] = [&sparse, &dense].map(|rows| rows.transposed_times(&grad));
        close(&of_sparse.unwrap(), &of_dense.unwrap());
        let narrow = Var::from_vec(vec![0.0f32; 4], (2, 2), &Device::Cpu).unwrap();
        assert!(sparse.times(&narrow, &workspace).unwrap_err().to_string().contains("37 elements"));
    }
}
