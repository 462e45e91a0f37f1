//! Dense and sparse rows of f32, their products and masks, and the memory that these reuse.

pub(crate) mod dropout;
pub(crate) mod sparse;
pub(crate) mod spmm;
pub(crate) mod workspace;

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor, backend::BackendStorage};
use rayon::prelude::*;

use crate::{matrix::spmm::ROWS_PER_TASK, matrix::workspace::Workspace};

/// Rows that a product makes at a time: the allocator keeps memory of so few for the next ones.
const ROWS_PER_PRODUCT: usize = 1024;

/// Rows of equal width, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    storage: CpuStorage,
    n_rows: usize,
    width: usize,
}

impl Matrix {
    /// Makes a matrix of the rows of `width` in `values`.
    pub(crate) fn new(values: Vec<f32>, width: usize) -> Self {
        let n_rows = values.len() / width.max(1);
        debug_assert_eq!(n_rows * width, values.len());
        Self { storage: CpuStorage::F32(values), n_rows, width }
    }

    /// Returns the number of rows.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the elements of a row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Returns all elements, row by row.
    pub(crate) fn values(&self) -> &[f32] {
        let CpuStorage::F32(values) = &self.storage else { unreachable!("made of f32") };
        values
    }

    /// Returns the elements of the first `n` rows.
    pub(crate) fn rows(&self, n: usize) -> &[f32] {
        &self.values()[..n * self.width]
    }

    /// Returns all elements, row by row.
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        let CpuStorage::F32(values) = &mut self.storage else { unreachable!("made of f32") };
        values
    }

    /// Returns all elements, row by row.
    pub(crate) fn into_values(self) -> Vec<f32> {
        let CpuStorage::F32(values) = self.storage else { unreachable!("made of f32") };
        values
    }

    /// Returns `self · weight`.
    pub(crate) fn times(&self, weight: &Tensor, workspace: &Workspace) -> Result<Self> {
        with_storage(weight, |weight, layout| self.product(weight, layout, workspace))
    }

    /// Returns `self · weightᵀ`.
    pub(crate) fn times_transposed(&self, weight: &Tensor, workspace: &Workspace) -> Result<Self> {
        with_storage(weight, |weight, layout| {
            self.product(weight, &layout.transpose(0, 1)?, workspace)
        })
    }

    /// Returns the elements of `selfᵀ · other`.
    pub(crate) fn transposed_times(&self, other: &Self) -> Result<Vec<f32>> {
        if self.n_rows == 0 {
            return Ok(vec![0.0; self.width * other.width]);
        }
        let sizes = (1, self.width, other.width, self.n_rows);
        let layout = self.layout().transpose(0, 1)?;
        let storage = self.storage.matmul(&other.storage, sizes, &layout, &other.layout())?;
        Ok(Self { storage, n_rows: self.width, width: other.width }.into_values())
    }

    /// Adds `row` to every row.
    pub(crate) fn add_to_rows(&mut self, row: &[f32]) {
        let width = self.width.max(1);
        let rows = self.values_mut().par_chunks_exact_mut(width).with_min_len(ROWS_PER_TASK);
        rows.for_each(|sums| sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value));
    }

    /// Returns the sum of all rows, added in their order.
    pub(crate) fn sum_of_rows(&self) -> Vec<f32> {
        let mut sums = vec![0.0; self.width];
        for row in self.values().chunks_exact(self.width.max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        sums
    }

    /// Returns the product, computed in pieces of rows with the bits of the whole product. No piece
    /// has so few rows that its sums would be taken in another order.
    fn product(&self, right: &CpuStorage, layout: &Layout, workspace: &Workspace) -> Result<Self> {
        let (k, width) = layout.shape().dims2()?;
        if k != self.width {
            candle_core::bail!("rows have {} elements, the layer expects {k}", self.width);
        }
        let (mut out, mut first) = (workspace.take(self.n_rows * width), 0);
        while first < self.n_rows {
            let left = self.n_rows - first;
            let n = if left < 2 * ROWS_PER_PRODUCT { left } else { ROWS_PER_PRODUCT };
            let rows = Layout::contiguous_with_offset((n, k), first * k);
            let piece = self.storage.matmul(right, (1, n, width, k), &rows, layout)?;
            out[first * width..][..n * width].copy_from_slice(piece.as_slice()?);
            first += n;
        }
        Ok(Self { storage: CpuStorage::F32(out), n_rows: self.n_rows, width })
    }

    fn layout(&self) -> Layout {
        Layout::contiguous((self.n_rows, self.width))
    }
}

/// Returns row, column and value of the first element of rows of `width` that is no finite number.
pub(crate) fn first_not_finite(values: &[f32], width: usize) -> Option<(usize, usize, f32)> {
    let at = values.iter().position(|value| !value.is_finite())?;
    Some((at / width, at % width, values[at]))
}

/// Calls `f` with the elements of a parameter.
pub(crate) fn with_values<T>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> Result<T>) -> Result<T> {
    with_storage(tensor, |storage, layout| {
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("expected a contiguous tensor, found {:?}", layout.stride())
        };
        f(&storage.as_slice::<f32>()?[start..end])
    })
}

fn with_storage<T>(
    tensor: &Tensor,
    f: impl FnOnce(&CpuStorage, &Layout) -> Result<T>,
) -> Result<T> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        candle_core::bail!("parameters are on the CPU only")
    };
    f(storage, layout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    #[test]
    fn products_and_sums_are_those_of_the_formulas() {
        let workspace = Workspace::default();
        let x = Matrix::new(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2);
        let weight = Var::from_vec(vec![1.0f32, 0.0, 2.0, -1.0, 3.0, 1.0], (2, 3), &Device::Cpu);
        let weight = weight.unwrap();
        let product = x.times(&weight, &workspace).unwrap();
        assert_eq!((product.n_rows(), product.width()), (3, 3));
        assert_eq!(product.values(), [-1.0, 6.0, 4.0, -1.0, 12.0, 10.0, -1.0, 18.0, 16.0]);
        let back = product.times_transposed(&weight, &workspace).unwrap();
        assert_eq!(back.values(), [7.0, 23.0, 19.0, 47.0, 31.0, 71.0]);
        let gradient = x.transposed_times(&product).unwrap();
        assert_eq!(gradient, [-9.0, 132.0, 114.0, -12.0, 168.0, 144.0]);
        let mut sums = x.clone();
        sums.add_to_rows(&[10.0, 20.0]);
        assert_eq!(sums.values(), [11.0, 22.0, 13.0, 24.0, 15.0, 26.0]);
        assert_eq!(sums.sum_of_rows(), [39.0, 72.0]);
        let narrow =
            Matrix::new(vec![1.0; 4], 1).times(&weight, &workspace).unwrap_err().to_string();
        assert!(narrow.contains("rows have 1 elements, the layer expects 2"), "{narrow}");
    }

    #[test]
    fn a_product_in_pieces_has_the_bits_of_the_whole_one() {
        let (workspace, random) = (Workspace::default(), crate::random::CounterRandom::new(1, 2));
        let values = |n: usize| (0..n as u64).map(|i| random.unit(i) - 0.5).collect::<Vec<f32>>();
        for n_rows in [1, 2, 1024, 2047, 2048, 2049, 3073, 5000] {
            for (k, width) in [(1, 1), (3, 7), (200, 1), (33, 64), (512, 256), (700, 47)] {
                let x = Matrix::new(values(n_rows * k), k);
                let (n_values, shape) = (k * width, (k, width));
                let weight = Var::from_vec(values(n_values), shape, &Device::Cpu).unwrap();
                let whole = Tensor::from_vec(values(n_rows * k), (n_rows, k), &Device::Cpu);
                let whole = whole.unwrap().matmul(&weight).unwrap();
                let expected = whole.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                let found = x.times(&weight, &workspace).unwrap();
                assert_eq!(found.values(), expected, "{n_rows} x {k} x {width}");
                workspace.give_matrix(found);
            }
        }
    }
}
