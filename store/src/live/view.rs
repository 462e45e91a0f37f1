//! What a gather of one tensor of one partition reads: all that was put, or one version.

use std::sync::Arc;

use super::Base;
use super::tensor::{LiveTensor, Pinned};
use crate::catalog::{OverlayRow, RowKeys};
use crate::error::StoreError;
use crate::overlay::split;
use crate::row::RowIdx;

/// Which rows a reader sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Every acknowledged put. A row that is being put is the old or the new one, never a mix.
    #[default]
    Latest,
    /// A committed version, whatever is put, committed or compacted meanwhile.
    At(u32),
}

/// A view of one tensor of one partition; while it lives, what it sees stays.
#[derive(Debug)]
pub struct TensorView {
    tensor: Arc<LiveTensor>,
    /// `None` sees the latest.
    pinned: Option<Pinned>,
}

impl TensorView {
    pub(super) fn latest(tensor: Arc<LiveTensor>) -> Self {
        Self { tensor, pinned: None }
    }

    pub(super) fn pinned(tensor: Arc<LiveTensor>, pinned: Pinned) -> Self {
        Self { tensor, pinned: Some(pinned) }
    }

    /// As [`LiveTensor::split`].
    pub fn split(
        &self,
        rows: &mut Vec<(RowIdx, u32)>,
        overlaid: &mut Vec<OverlayRow>,
    ) -> Arc<Base> {
        let Some(pinned) = &self.pinned else {
            return self.tensor.split(rows, overlaid);
        };
        overlaid.clear();
        if !pinned.is_plain() {
            split(rows, overlaid, |row| pinned.version_of(row));
        }
        Arc::clone(&pinned.base)
    }

    /// As [`LiveTensor::read_overlaid`].
    pub fn read_overlaid(
        &self,
        rows: &mut [OverlayRow],
        out: &mut [u8],
        scratch: &mut RowKeys,
    ) -> Result<(), StoreError> {
        self.tensor.read_overlaid(rows, out, scratch)
    }
}
