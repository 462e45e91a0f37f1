//! Dense rows from a file of nothing else.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{SourceError, TensorSource, copy_packed};
use crate::dtype::Dtype;
use crate::map::FileMap;

/// The start of a `.npy` file, which is never meant to be imported with its header.
const NPY_MAGIC: &[u8] = b"\x93NUMPY";

/// A mapped file of packed little-endian rows, without a header: the caller passes its type and
/// width.
#[derive(Debug)]
pub struct RawSource {
    file: PathBuf,
    map: FileMap,
    dtype: Dtype,
    width: u32,
}

impl RawSource {
    /// Maps `path`; fails unless it holds whole rows of `width` elements.
    pub fn open(path: &Path, dtype: Dtype, width: u32) -> Result<Self, SourceError> {
        let file = path.to_owned();
        let row_bytes = u64::from(width) * dtype.size_bytes() as u64;
        let map = File::open(path).and_then(|file| FileMap::of(&file));
        let map =
            map.map_err(|source| SourceError::Io { file: file.clone(), action: "map", source })?;
        if map.starts_with(NPY_MAGIC) {
            return Err(SourceError::NotRaw { file });
        }
        if row_bytes == 0 || !(map.len() as u64).is_multiple_of(row_bytes) {
            return Err(SourceError::PartOfRow { file, row_bytes, found_bytes: map.len() as u64 });
        }
        Ok(Self { file, map, dtype, width })
    }
}

impl TensorSource for RawSource {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn width(&self) -> u64 {
        self.width.into()
    }

    fn n_rows(&self) -> u64 {
        self.map.len() as u64 / (self.width() * self.dtype.size_bytes() as u64)
    }

    fn path(&self) -> &Path {
        &self.file
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        copy_packed(self, &self.map, rows, out)
    }
}
