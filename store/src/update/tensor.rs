//! One tensor of one partition: its newest committed version, and which rows are pending.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use lodestore_graph::lock::IgnorePoison;
use roaring::RoaringBitmap;
use uuid::Uuid;

use super::{Layer, TensorVersion};
use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::file_system::FileSystem;
use crate::new_file::remove_if_there;
use crate::row::RowIdx;
use crate::tensor::TensorSpec;

/// A tensor of an open partition; commits and compactions change its newest version.
#[derive(Debug)]
pub struct TensorHandle {
    spec: TensorSpec,
    uuid: Uuid,
    catalog: Arc<Catalog>,
    /// Held to take or to replace the version, never while anything is read or written.
    current: RwLock<Arc<TensorVersion>>,
    /// Earlier versions that are in use, so that readers of one share its index.
    earlier: Mutex<Vec<Weak<TensorVersion>>>,
    /// Rows that were put and are not in a file yet, by the version that they were put for. That is
    /// the version that puts are for, and during a commit also the one before.
    pending: Mutex<BTreeMap<u32, PendingRows>>,
    /// Delta of a commit that is written and not published.
    prepared: Mutex<Option<Arc<Layer>>>,
    /// Whether the graph has it no more; readers that have it continue.
    is_dropped: AtomicBool,
    /// A delta that the catalog may not have taken.
    unrecorded: Mutex<Option<PathBuf>>,
}

/// Rows that were put for a version.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingRows {
    /// Those that were put since the partition was opened.
    rows: RoaringBitmap,
    /// Others were put before: only the catalog knows which.
    has_earlier: bool,
}

impl PendingRows {
    /// Returns rows that only the catalog knows.
    pub(super) fn unknown() -> Self {
        Self { has_earlier: true, ..Self::default() }
    }

    /// Returns the rows, where all of them are known without a look at the catalog.
    pub(super) fn known(&self) -> Option<&RoaringBitmap> {
        (!self.has_earlier).then_some(&self.rows)
    }
}

impl TensorHandle {
    /// Makes the handle of a tensor that has no rows but those of a version.
    pub(super) fn new(
        spec: TensorSpec,
        uuid: Uuid,
        catalog: Arc<Catalog>,
        current: TensorVersion,
    ) -> Self {
        Self {
            spec,
            uuid,
            catalog,
            current: RwLock::new(Arc::new(current)),
            earlier: Mutex::default(),
            pending: Mutex::default(),
            prepared: Mutex::default(),
            is_dropped: AtomicBool::new(false),
            unrecorded: Mutex::default(),
        }
    }

    /// Adds the delta of a commit that is not published, and versions that rows are pending for.
    pub(super) fn with_unpublished(
        self,
        prepared: Option<Arc<Layer>>,
        pending_for: &[u32],
    ) -> Self {
        let pending = pending_for.iter().map(|&version| (version, PendingRows::unknown()));
        let pending = Mutex::new(pending.collect());
        Self { pending, prepared: Mutex::new(prepared), ..self }
    }

    /// Returns what the rows are.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Returns its identity: another one for each tensor that the graph has had under its name.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the newest committed version.
    #[must_use]
    pub fn current(&self) -> Arc<TensorVersion> {
        Arc::clone(&self.current.read().ignore_poison())
    }

    /// Returns the tensor at `version`; `None` for a version that is not committed, or whose layers
    /// were folded into later ones since.
    #[must_use]
    pub fn at(&self, version: u32) -> Option<Arc<TensorVersion>> {
        let mut earlier = self.earlier.lock().ignore_poison();
        let current = self.current();
        if current.version() == version {
            return Some(current);
        }
        earlier.retain(|it| it.strong_count() > 0);
        let known = earlier.iter().filter_map(Weak::upgrade).find(|it| it.version() == version);
        if known.is_some() {
            return known;
        }
        let made = Arc::new(current.back_to(version)?);
        earlier.push(Arc::downgrade(&made));
        Some(made)
    }

    /// Returns the layers up to `version` as they are now: readers of that version may still have
    /// those that were folded since.
    pub(super) fn newest_layers_of(&self, version: u32) -> Option<Arc<TensorVersion>> {
        let current = self.current();
        match current.version() == version {
            true => Some(current),
            false => current.back_to(version).map(Arc::new),
        }
    }

    /// Returns the number of rows that were put since the partition was opened, and are not in a
    /// file yet.
    #[must_use]
    pub fn n_pending(&self) -> u64 {
        self.pending.lock().ignore_poison().values().map(|pending| pending.rows.len()).sum()
    }

    /// Returns the newest version that rows are pending for.
    pub(super) fn newest_pending(&self) -> Option<u32> {
        self.pending.lock().ignore_poison().last_key_value().map(|(&version, _)| version)
    }

    /// Returns the oldest version that rows are pending or prepared for.
    pub(super) fn oldest_pending(&self) -> Option<u32> {
        let pending = self.pending.lock().ignore_poison();
        let oldest = pending.first_key_value().map(|(&version, _)| version);
        let prepared = self.prepared().map(|delta| delta.version());
        oldest.into_iter().chain(prepared).min()
    }

    /// Returns the number of earlier versions that are remembered, in use or not.
    #[cfg(test)]
    pub(super) fn n_earlier(&self) -> usize {
        self.earlier.lock().ignore_poison().len()
    }

    pub(super) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Notes rows that were put for `version` and are durable.
    pub(super) fn add(&self, version: u32, rows: impl Iterator<Item = RowIdx>) {
        let mut pending = self.pending.lock().ignore_poison();
        pending.entry(version).or_default().rows.extend(rows.map(|row| row.0));
    }

    /// Returns the rows that are pending for `version`, if there are any; no put may be for it any
    /// more.
    pub(super) fn pending_for(&self, version: u32) -> Option<PendingRows> {
        self.pending.lock().ignore_poison().get(&version).cloned()
    }

    /// Takes over the file that a commit has written of the rows that were pending for `version`.
    pub(super) fn set_prepared(&self, version: u32, delta: Arc<Layer>) {
        *self.prepared.lock().ignore_poison() = Some(delta);
        self.pending.lock().ignore_poison().remove(&version);
    }

    /// Notes the file that a commit is about to record, or that it has.
    pub(super) fn set_unrecorded(&self, file: Option<PathBuf>) {
        *self.unrecorded.lock().ignore_poison() = file;
    }

    /// Removes a file that a commit has written and could not record: its rows are still pending.
    pub(super) fn remove_unrecorded(&self, device: &dyn FileSystem) -> Result<(), StoreError> {
        let mut unrecorded = self.unrecorded.lock().ignore_poison();
        let Some(file) = &*unrecorded else { return Ok(()) };
        remove_if_there(device, file)?;
        *unrecorded = None;
        Ok(())
    }

    /// Returns the file that a commit has prepared, if it has one.
    pub(super) fn prepared(&self) -> Option<Arc<Layer>> {
        self.prepared.lock().ignore_poison().clone()
    }

    /// Returns whether it was dropped since the graph was opened.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.is_dropped.load(Ordering::Acquire)
    }

    /// Notes that it was dropped; no put and no commit may be under way.
    pub(super) fn set_dropped(&self) {
        self.is_dropped.store(true, Ordering::Release);
        *self.prepared.lock().ignore_poison() = None;
        self.pending.lock().ignore_poison().clear();
    }

    /// Takes over a version of the writer that is followed.
    pub(super) fn install(&self, version: &TensorVersion) {
        self.replace(|_| version.clone());
    }

    /// Makes `version` the newest one, with what was prepared for it.
    pub(super) fn publish(&self, version: u32) {
        let prepared = self.prepared.lock().ignore_poison().take();
        self.replace(|current| current.at(version, prepared.clone()));
    }

    /// Puts one layer in the place of neighbours, by position, of which `seen` had the same.
    ///
    /// Layers that were committed since stay over it.
    pub(super) fn fold(
        &self,
        seen: &TensorVersion,
        folded: std::ops::Range<usize>,
        by: &Arc<Layer>,
    ) {
        self.replace(|current| {
            let is_same = |at: usize| Arc::ptr_eq(&current.layers()[at], &seen.layers()[at]);
            assert!(folded.clone().all(is_same), "only one compaction changes layers");
            let mut layers = current.layers().to_vec();
            layers.splice(folded.clone(), [Arc::clone(by)]);
            current.with_layers(current.version(), layers)
        });
    }

    /// Puts what `make` makes of the newest version in its place. Gathers continue while it does;
    /// where a commit and a compaction meet, one of them makes its version again.
    fn replace(&self, make: impl Fn(&TensorVersion) -> TensorVersion) {
        loop {
            let seen = self.current();
            let made = Arc::new(make(&seen));
            let mut earlier = self.earlier.lock().ignore_poison();
            let mut current = self.current.write().ignore_poison();
            if Arc::ptr_eq(&current, &seen) {
                if seen.version() != made.version() {
                    earlier.retain(|it| it.strong_count() > 0);
                    earlier.push(Arc::downgrade(&seen));
                }
                *current = made;
                return;
            }
        }
    }
}
