//! One tensor of one partition: its segment, and the rows over it.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use roaring::RoaringBitmap;

use super::Base;
use crate::catalog::{Catalog, OverlayRow, RowKeys};
use crate::error::StoreError;
use crate::overlay::{Layers, Pending, split};
use crate::row::RowIdx;
use crate::tensor::TensorSpec;

/// What is known of a tensor of a partition at this moment; puts, commits and compactions change
/// it.
#[derive(Debug)]
pub struct LiveTensor {
    spec: TensorSpec,
    catalog: Arc<Catalog>,
    /// Held for a split or a change in memory, never while anything is read or written.
    current: RwLock<Current>,
}

#[derive(Debug)]
struct Current {
    base: Arc<Base>,
    frozen: Arc<Layers>,
    pending: Pending,
}

/// A segment and the committed rows over it, as they were at one moment: nothing changes them.
#[derive(Clone, Debug)]
pub(crate) struct Pinned {
    pub(crate) base: Arc<Base>,
    pub(crate) layers: Arc<Layers>,
}

impl LiveTensor {
    pub(super) fn new(
        spec: TensorSpec,
        catalog: Arc<Catalog>,
        base: Arc<Base>,
        frozen: Layers,
        pending: Pending,
    ) -> Self {
        let current = RwLock::new(Current { base, frozen: Arc::new(frozen), pending });
        Self { spec, catalog, current }
    }

    /// What the rows are.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// The segment under the rows.
    #[must_use]
    pub fn base(&self) -> Arc<Base> {
        Arc::clone(&self.read().base)
    }

    /// Whether no row lies over the segment.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.read().is_plain()
    }

    /// Whether `row` lies over the segment.
    #[must_use]
    pub fn contains(&self, row: RowIdx) -> bool {
        self.read().version_of(row).is_some()
    }

    /// Moves the rows that lie over the segment out of `rows` into `overlaid`, which is emptied
    /// before, and gives the segment that has the others.
    ///
    /// Does not block on anything but the lock of a change in memory. Hold the base until the
    /// overlaid rows have been read with [`LiveTensor::read_overlaid`].
    pub fn split(
        &self,
        rows: &mut Vec<(RowIdx, u32)>,
        overlaid: &mut Vec<OverlayRow>,
    ) -> Arc<Base> {
        overlaid.clear();
        let current = self.read();
        if !current.is_plain() {
            split(rows, overlaid, |row| current.version_of(row));
        }
        Arc::clone(&current.base)
    }

    /// Copies rows over the segment to their places in `out`; sorts `rows`. Blocks on the catalog.
    pub fn read_overlaid(
        &self,
        rows: &mut [OverlayRow],
        out: &mut [u8],
        scratch: &mut RowKeys,
    ) -> Result<(), StoreError> {
        self.catalog.read_rows(&self.spec, rows, out, scratch)
    }

    /// Rows committed over the segment by version, newest first, and the rows that are pending.
    #[must_use]
    pub fn overlay_rows(&self) -> (Vec<(u32, u64)>, u64) {
        let current = self.read();
        (current.frozen.sizes().collect(), current.pending.rows.len())
    }

    pub(super) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// What was committed up to the newest version.
    pub(super) fn committed(&self) -> Pinned {
        let current = self.read();
        Pinned { base: Arc::clone(&current.base), layers: Arc::clone(&current.frozen) }
    }

    /// Takes in rows that were put for the pending version and are durable.
    pub(super) fn add(&self, rows: impl IntoIterator<Item = RowIdx>) {
        self.write().pending.rows.extend(rows.into_iter().map(|row| row.0));
    }

    /// Makes a layer of what is pending, now that it is committed; `next` is the version after.
    pub(super) fn freeze(&self, next: u32) {
        let mut current = self.write();
        let pending = Pending { version: next, rows: RoaringBitmap::new() };
        let frozen = std::mem::replace(&mut current.pending, pending);
        if !frozen.rows.is_empty() {
            current.frozen = Arc::new(current.frozen.with(frozen.version, frozen.rows));
        }
    }

    /// Puts a segment that has taken in all rows up to its version in the place of the base.
    pub(super) fn rebase(&self, base: Arc<Base>) {
        let mut current = self.write();
        current.frozen = Arc::new(current.frozen.after(base.version()));
        current.base = base;
    }

    fn read(&self) -> RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Current> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    fn is_plain(&self) -> bool {
        self.pending.rows.is_empty() && self.frozen.is_empty()
    }

    fn version_of(&self, row: RowIdx) -> Option<u32> {
        if self.pending.rows.contains(row.0) {
            return Some(self.pending.version);
        }
        self.frozen.version_of(row)
    }
}
