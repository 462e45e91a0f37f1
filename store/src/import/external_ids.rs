//! The relabelling, stored as a tensor of its own.

use std::path::Path;

use super::EXTERNAL_ID_TENSOR;
use crate::dtype::Dtype;
use crate::source::{SourceError, TensorSource};

/// External ids as a source: row `e` holds the number `e`.
pub(super) struct ExternalIds<'a> {
    pub(super) external_of: &'a [u32],
}

impl TensorSource for ExternalIds<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::I64
    }

    fn width(&self) -> u64 {
        1
    }

    fn n_rows(&self) -> u64 {
        self.external_of.len() as u64
    }

    fn path(&self) -> &Path {
        Path::new(EXTERNAL_ID_TENSOR)
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(8)) {
            out.copy_from_slice(&i64::from(row).to_le_bytes());
        }
        Ok(())
    }
}
