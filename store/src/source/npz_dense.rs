//! Dense rows from an array of an `.npz` archive.

use std::path::{Path, PathBuf};

use super::npz_member::NpzMember;
use super::{SourceError, TensorSource, copy_packed};
use crate::dtype::Dtype;

/// A mapped array of shape (nodes,) or (nodes, width) in an archive.
#[derive(Debug)]
pub struct NpzDenseSource {
    path: PathBuf,
    member: NpzMember,
    dtype: Dtype,
    n_rows: u64,
    width: u64,
}

impl NpzDenseSource {
    /// Checks type and shape of `member`, an array of the archive at `path`.
    pub fn new(path: &Path, member: NpzMember) -> Result<Self, SourceError> {
        let path = path.to_owned();
        let Some(dtype) = Dtype::from_npy(member.dtype()) else {
            return Err(SourceError::Dtype { file: path, found: member.dtype().to_string() });
        };
        let (n_rows, width) = match *member.shape() {
            [n_rows] => (n_rows, 1),
            [n_rows, width] => (n_rows, width),
            ref found => return Err(SourceError::Shape { file: path, found: found.to_vec() }),
        };
        Ok(Self { path, member, dtype, n_rows, width })
    }
}

impl TensorSource for NpzDenseSource {
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
        &self.path
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        copy_packed(self, self.member.bytes(), rows, out)
    }
}
