//! Rows that are mostly zeros: their non-zero elements, and products of them.

use rayon::prelude::*;

use crate::{
    matrix::dropout::Mask,
    matrix::spmm::{ROWS_PER_TASK, add_scaled},
    matrix::workspace::Workspace,
    matrix::{Matrix, MatrixView},
};

/// Columns per parallel task: some have far more elements than others.
const COLUMNS_PER_TASK: usize = 8;

/// Rows of equal width by their non-zero elements. Memory: 8 bytes an element, 8 bytes a row.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseRows {
    width: usize,
    /// Where each row begins, then where the last one ends.
    offsets: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f32>,
}

/// The elements of sparse rows by column, sorted once for many products. Memory: 8 bytes an
/// element.
#[derive(Clone, Debug)]
pub struct SparseColumns {
    /// Where each column ends.
    ends: Vec<usize>,
    /// Row, and place among the elements.
    elements: Vec<[u32; 2]>,
}

/// Some consecutive rows, as one task makes them.
#[derive(Debug, Default)]
pub struct SparsePiece {
    /// Where each row ends.
    ends: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f32>,
}

/// Rows that a weight matrix is multiplied with.
#[derive(Clone, Debug)]
pub enum Rows {
    /// All elements.
    Dense(Matrix),
    /// Non-zero elements.
    Sparse(SparseRows),
}

impl SparsePiece {
    /// Appends an element to the row that [`SparsePiece::end_row`] will end.
    pub fn push(&mut self, column: u32, value: f32) {
        self.columns.push(column);
        self.values.push(value);
    }

    /// Ends a row; returns the elements of it, to be changed.
    pub fn end_row(&mut self) -> &mut [f32] {
        let start = self.ends.last().copied().unwrap_or(0);
        self.ends.push(self.values.len());
        &mut self.values[start..]
    }

    /// Returns the number of elements.
    pub fn n_elements(&self) -> usize {
        self.values.len()
    }

    /// Returns the number of rows that are ended.
    pub fn n_rows(&self) -> usize {
        self.ends.len()
    }
}

impl SparseRows {
    /// Joins pieces of rows of `width`.
    pub fn new(width: usize, pieces: Vec<SparsePiece>) -> Self {
        let n_elements = pieces.iter().map(SparsePiece::n_elements).sum();
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

    /// Makes rows of zeros.
    pub fn zeros(n_rows: usize, width: usize) -> Self {
        let (columns, values) = (Vec::new(), Vec::new());
        Self { width, offsets: vec![0; n_rows + 1], columns, values }
    }

    /// Returns the elements of a row, zeros included.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the non-zero elements of a row, with their columns.
    pub fn row(&self, row: usize) -> impl Iterator<Item = (u32, f32)> {
        self.row_of(row, &self.values)
    }

    /// Returns the elements of a row, with `values` in the place of all elements.
    fn row_of<'r>(&'r self, row: usize, values: &'r [f32]) -> impl Iterator<Item = (u32, f32)> {
        let range = self.offsets[row]..self.offsets[row + 1];
        let columns = self.columns[range.clone()].iter().copied();
        columns.zip(values[range].iter().copied())
    }

    /// Returns row, column and value of the first element that is no finite number.
    pub fn first_not_finite(&self) -> Option<(usize, usize, f32)> {
        let at = self.values.iter().position(|value| !value.is_finite())?;
        let row = self.offsets.partition_point(|&offset| offset <= at) - 1;
        Some((row, self.columns[at] as usize, self.values[at]))
    }

    /// Returns the non-zero elements, row by row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the elements by column; none for more elements than 32 bits can number.
    pub fn by_column(&self) -> Option<SparseColumns> {
        u32::try_from(self.values.len().max(self.n_rows())).ok()?;
        let (ends, elements) = self.sorted(|row, at| [row, at as u32]);
        Some(SparseColumns { ends, elements })
    }

    /// Returns the elements after dropout by `mask`, zeros where they are dropped.
    pub fn dropped_values(&self, mask: &Mask, workspace: &Workspace) -> Vec<f32> {
        let mut values = workspace.copy(&self.values);
        let mut pieces = Vec::with_capacity(self.n_rows().div_ceil(ROWS_PER_TASK));
        let mut rest = &mut values[..];
        for first in (0..self.n_rows()).step_by(ROWS_PER_TASK) {
            let end = self.n_rows().min(first + ROWS_PER_TASK);
            let n = self.offsets[end] - self.offsets[first];
            let (piece, others) = rest.split_at_mut(n);
            pieces.push((first..end, piece));
            rest = others;
        }
        pieces.into_par_iter().for_each(|(rows, piece)| {
            let start = self.offsets[rows.start];
            for row in rows {
                let range = self.offsets[row]..self.offsets[row + 1];
                let columns = &self.columns[range.clone()];
                let values = &mut piece[range.start - start..range.end - start];
                mask.apply_to_row(row, columns, values);
            }
        });
        values
    }

    /// Returns the product of the rows, with `values` in the place of their elements, and the
    /// weights.
    pub fn product_of(
        &self,
        values: &[f32],
        weight: MatrixView<'_>,
        workspace: &Workspace,
    ) -> Matrix {
        let is_kept = |(_, value): &(u32, f32)| *value != 0.0;
        self.product(weight, workspace, |row| self.row_of(row, values).filter(is_kept))
    }

    /// Returns the product of rows of these `elements` and the weights.
    fn product<I: Iterator<Item = (u32, f32)>>(
        &self,
        weight: MatrixView<'_>,
        workspace: &Workspace,
        elements: impl Fn(usize) -> I + Sync,
    ) -> Matrix {
        assert_eq!(self.width, weight.n_rows(), "elements of a row, rows of the weights");
        let width = weight.width();
        let mut out = workspace.take(self.n_rows() * width);
        let rows = out.par_chunks_exact_mut(width).enumerate().with_min_len(ROWS_PER_TASK);
        rows.for_each(|(row, out)| {
            out.fill(0.0);
            for (column, value) in elements(row) {
                add_scaled(out, value, &weight.values()[column as usize * width..][..width]);
            }
        });
        Matrix::new(out, width)
    }

    /// Adds the transposed rows, with `values` in the place of their elements, times `other` to
    /// `sum`.
    pub fn add_transposed_product(
        columns: &SparseColumns,
        values: &[f32],
        other: &Matrix,
        sum: &mut [f32],
    ) {
        let width = other.width();
        let rows = sum.par_chunks_exact_mut(width.max(1)).enumerate();
        rows.with_min_len(COLUMNS_PER_TASK).for_each(|(column, out)| {
            let start = column.checked_sub(1).map_or(0, |before| columns.ends[before]);
            for &[row, at] in &columns.elements[start..columns.ends[column]] {
                let value = values[at as usize];
                if value != 0.0 {
                    add_scaled(out, value, &other.values()[row as usize * width..][..width]);
                }
            }
        });
    }

    /// Sorts the elements by column. Returns where each column ends, and what `of` makes of each
    /// element's row and place.
    fn sorted<T: Copy + Default>(&self, of: impl Fn(u32, usize) -> T) -> (Vec<usize>, Vec<T>) {
        let mut ends = vec![0usize; self.width + 1];
        self.columns.iter().for_each(|&column| ends[column as usize + 1] += 1);
        for column in 0..self.width {
            ends[column + 1] += ends[column];
        }
        ends.pop();
        // The start of a column becomes its end once all its elements are in place.
        let mut elements = vec![T::default(); self.values.len()];
        for row in 0..self.n_rows() {
            for at in self.offsets[row]..self.offsets[row + 1] {
                let place = &mut ends[self.columns[at] as usize];
                elements[*place] = of(row as u32, at);
                *place += 1;
            }
        }
        (ends, elements)
    }

    /// Returns the rows with other elements in the same places.
    pub fn with_values(&self, values: &[f32]) -> Self {
        Self { values: values.to_vec(), ..self.clone() }
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
    pub fn to_dense(&self) -> Matrix {
        let mut dense = vec![0.0; self.n_rows() * self.width];
        for (row, out) in dense.chunks_exact_mut(self.width.max(1)).enumerate() {
            self.row(row).for_each(|(column, value)| out[column as usize] = value);
        }
        Matrix::new(dense, self.width)
    }

    /// Returns the product with a weight matrix.
    fn times(&self, weight: MatrixView<'_>, workspace: &Workspace) -> Matrix {
        self.product(weight, workspace, |row| self.row(row))
    }

    /// Returns the elements of the transposed rows times `other`. Each row of it is one thread's,
    /// and is summed in the order of the rows here.
    fn transposed_times(&self, other: &Matrix) -> Vec<f32> {
        let width = other.width();
        let (ends, elements) = self.sorted(|row, at| (row, self.values[at]));
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
    pub fn width(&self) -> usize {
        match self {
            Self::Dense(rows) => rows.width(),
            Self::Sparse(rows) => rows.width(),
        }
    }

    /// Returns `self · weight`.
    pub fn times(&self, weight: MatrixView<'_>, workspace: &Workspace) -> Matrix {
        match self {
            Self::Dense(rows) => rows.times(weight, workspace),
            Self::Sparse(rows) => rows.times(weight, workspace),
        }
    }

    /// Returns the elements of `selfᵀ · other`.
    pub fn transposed_times(&self, other: &Matrix) -> Vec<f32> {
        match self {
            Self::Dense(rows) => rows.transposed_times(other),
            Self::Sparse(rows) => rows.transposed_times(other),
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

    /// Returns rows of which some are empty, with one element in nine or so.
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
    fn products_by_sorted_columns_are_those_of_the_rows() {
        let rows = sparse(270, 37);
        let (random, workspace) = (CounterRandom::new(1, 1), Workspace::default());
        let values = |n: u64| (0..n).map(|i| random.unit(i) - 0.5).collect::<Vec<f32>>();
        let weight = values(37 * 5);
        let weight = MatrixView::new(&weight, 5);
        let grad = Matrix::new(values(270 * 5), 5);
        let mask = crate::matrix::dropout::Dropout::new(0.5, 3, 0).unwrap().mask(0..270);
        for (of_epoch, expected) in [
            (rows.values().to_vec(), rows.clone()),
            (rows.dropped_values(&mask, &workspace), rows.dropped(&mask)),
        ] {
            let product = rows.product_of(&of_epoch, weight, &workspace);
            let of_dropped = expected.times(weight, &workspace);
            assert_eq!(product.values(), of_dropped.values());
            let (columns, mut sum) = (rows.by_column().unwrap(), vec![1.0; 37 * 5]);
            SparseRows::add_transposed_product(&columns, &of_epoch, &grad, &mut sum);
            for (sum, expected) in sum.iter().zip(expected.transposed_times(&grad)) {
                assert!((sum - 1.0 - expected).abs() < 1e-5, "{sum} {expected}");
            }
            assert_eq!(
                rows.with_values(&of_epoch).to_dense().values(),
                expected.to_dense().values()
            );
        }
    }

    #[test]
    fn products_are_those_of_the_dense_rows() {
        let sparse = sparse(200, 37);
        let dense = Rows::Dense(sparse.to_dense());
        let random = CounterRandom::new(1, 1);
        let values = |n: u64| (0..n).map(|i| random.unit(i) - 0.5).collect::<Vec<f32>>();
        let weight = values(37 * 5);
        let weight = MatrixView::new(&weight, 5);
        let grad = Matrix::new(values(200 * 5), 5);
        let sparse = Rows::Sparse(sparse);
        let close = |a: &[f32], b: &[f32]| {
            assert_eq!(a.len(), b.len());
            a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} {b}"));
        };
        let workspace = Workspace::default();
        let [of_sparse, of_dense] = [&sparse, &dense].map(|rows| rows.times(weight, &workspace));
        close(of_sparse.values(), of_dense.values());
        let [of_sparse, of_dense] = [&sparse, &dense].map(|rows| rows.transposed_times(&grad));
        close(&of_sparse, &of_dense);
    }
}
