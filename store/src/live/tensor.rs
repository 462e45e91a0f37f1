//! One tensor of one partition: its segment, and the rows over it.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use roaring::RoaringBitmap;

use super::Base;
use super::journal::Journal;
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
    /// Rows put while the partition is copied.
    journal: Journal,
}

#[derive(Debug)]
struct Current {
    base: Arc<Base>,
    frozen: Arc<Layers>,
    pending: Pending,
}

/// A segment and the rows over it up to a committed version: nothing changes them.
#[derive(Clone, Debug)]
pub(crate) struct Pinned {
    pub(crate) base: Arc<Base>,
    /// Those of later versions may be among them.
    layers: Arc<Layers>,
    version: u32,
}

impl Pinned {
    /// Whether no row lies over the segment.
    pub(crate) fn is_plain(&self) -> bool {
        self.layers.is_empty_at(self.version)
    }

    /// The version of the row over the segment, if there is one.
    pub(crate) fn version_of(&self, row: RowIdx) -> Option<u32> {
        self.layers.version_of(row, self.version)
    }

    /// Number of rows that lie over the segment.
    pub(crate) fn n_rows(&self) -> u64 {
        self.layers.n_rows_at(self.version)
    }

    /// Number of rows put, each as often as it was put for a version.
    pub(crate) fn n_put(&self) -> u64 {
        self.layers.sizes_at(self.version).iter().map(|(_, n_rows)| n_rows).sum()
    }
}

/// What changes with the layers, in the same moment.
enum Change<'a> {
    Freeze { next: u32 },
    Rebase { base: &'a Arc<Base> },
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
        Self { spec, catalog, current, journal: Journal::default() }
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

    /// Rows committed over the segment by version, oldest first, and the rows that are pending.
    #[must_use]
    pub fn overlay_rows(&self) -> (Vec<(u32, u64)>, u64) {
        let current = self.read();
        (current.frozen.sizes_at(u32::MAX).to_vec(), current.pending.rows.len())
    }

    /// Whether a gather of the latest may give rows of a later version than `version`: some are
    /// pending, or frozen by a commit that may not be over.
    pub(super) fn has_later(&self, version: u32) -> bool {
        let current = self.read();
        let newest = current.frozen.sizes_at(u32::MAX).last();
        !current.pending.rows.is_empty() || newest.is_some_and(|&(newest, _)| newest > version)
    }

    pub(super) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// What was committed up to `version`, which must be committed.
    pub(super) fn committed(&self, version: u32) -> Pinned {
        let current = self.read();
        Pinned { base: Arc::clone(&current.base), layers: Arc::clone(&current.frozen), version }
    }

    /// Takes in rows that were put for the pending version and are durable.
    pub(super) fn add(&self, rows: impl IntoIterator<Item = RowIdx>) {
        self.write().pending.rows.extend(rows.into_iter().map(|row| row.0));
    }

    /// Makes a layer of what is pending, now that it is committed; `next` is the version after. No
    /// put may run meanwhile.
    pub(super) fn freeze(&self, next: u32) {
        let Pending { version, rows } = self.read().pending.clone();
        if rows.is_empty() {
            self.write().pending.version = next;
            return;
        }
        self.change(|frozen| {
            let mut frozen = frozen.clone();
            frozen.push(version, rows.clone());
            (frozen, Change::Freeze { next })
        });
    }

    /// Puts a segment that has taken in all rows up to its version in the place of the base.
    pub(super) fn rebase(&self, base: &Arc<Base>) {
        self.change(|frozen| (frozen.after(base.version()), Change::Rebase { base }));
    }

    /// Puts what `make` makes of the layers in their place. Gathers go on while it does; where a
    /// commit and a compaction meet, one of them makes its layers again.
    fn change<'a>(&self, make: impl Fn(&Layers) -> (Layers, Change<'a>)) {
        loop {
            let seen = Arc::clone(&self.read().frozen);
            let (made, change) = make(&seen);
            let made = Arc::new(made);
            let mut current = self.write();
            if !Arc::ptr_eq(&current.frozen, &seen) {
                continue;
            }
            current.frozen = made;
            match change {
                Change::Freeze { next } => {
                    current.pending = Pending { version: next, rows: RoaringBitmap::new() };
                }
                Change::Rebase { base } => current.base = Arc::clone(base),
            }
            return;
        }
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
        self.pending.rows.is_empty() && self.frozen.is_empty_at(u32::MAX)
    }

    fn version_of(&self, row: RowIdx) -> Option<u32> {
        if self.pending.rows.contains(row.0) {
            return Some(self.pending.version);
        }
        self.frozen.version_of(row, u32::MAX)
    }
}
