//! Dense rows from an `.npy` file.

use std::path::Path;

use lodestore_graph::npy::NpyArray;

use super::{SourceError, TensorSource, copy_packed};
use crate::dtype::Dtype;

/// A mapped array of shape (nodes,) or (nodes, width).
#[derive(Debug)]
pub struct NpySource {
    array: NpyArray,
    dtype: Dtype,
    n_rows: u64,
    width: u64,
}

impl NpySource {
    /// Maps `path` and checks type and shape.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let array = NpyArray::open(path)?;
        let file = || path.to_owned();
        let dtype = Dtype::from_npy(array.dtype())
            .ok_or_else(|| SourceError::Dtype { file: file(), found: array.dtype().to_string() })?;
        let (n_rows, width) = match *array.shape() {
            [n_rows] => (n_rows, 1),
            [n_rows, width] => (n_rows, width),
            ref found => return Err(SourceError::Shape { file: file(), found: found.to_vec() }),
        };
        Ok(Self { array, dtype, n_rows, width })
    }
}

impl TensorSource for NpySource {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn width(&self) -> u64 {
        self.width
    }

    fn n_rows(&self) -> u64 {
        self.n_rows
    }

    fn path(&self) -> &Path {
        self.array.path()
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        copy_packed(self, self.array.bytes(), rows, out)
    }
}
