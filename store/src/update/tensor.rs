//! One tensor of one partition: its newest committed version and its pending rows.

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

/// A tensor of an open partition; commits and compactions replace its newest version.
#[derive(Debug)]
pub struct TensorHandle {
    spec: TensorSpec,
    uuid: Uuid,
    catalog: Arc<Catalog>,
    /// Locked to read or replace the pointer, never during I/O.
    current: RwLock<Arc<TensorVersion>>,
    /// Earlier versions in use, so that readers of one version share its index.
    earlier: Mutex<Vec<Weak<TensorVersion>>>,
    /// Pending rows by version. There are rows of the version that puts are for, and during a
    /// commit also of the version before.
    pending: Mutex<BTreeMap<u32, PendingRows>>,
    /// Delta of a commit that is written and not published.
    prepared: Mutex<Option<Arc<Layer>>>,
    /// Whether the tensor was dropped; existing views continue.
    is_dropped: AtomicBool,
    /// A delta that the catalog may not have recorded.
    unrecorded: Mutex<Option<PathBuf>>,
}

/// Pending rows of a version.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingRows {
    /// Rows that were put since the partition was opened.
    rows: RoaringBitmap,
    /// Whether rows were put before, which only the catalog lists.
    has_earlier: bool,
}

impl PendingRows {
    /// Returns a set of pending rows that only the catalog lists.
    pub(super) fn unknown() -> Self {
        Self { has_earlier: true, ..Self::default() }
    }

    /// Returns the rows, if all of them are known without reading the catalog.
    pub(super) fn known(&self) -> Option<&RoaringBitmap> {
        (!self.has_earlier).then_some(&self.rows)
    }
}

impl TensorHandle {
    /// Creates the handle of a tensor without pending rows.
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

    /// Adds the delta of an unpublished commit, and the versions with pending rows.
    pub(super) fn with_unpublished(
        self,
        prepared: Option<Arc<Layer>>,
        pending_for: &[u32],
    ) -> Self {
        let pending = pending_for.iter().map(|&version| (version, PendingRows::unknown()));
        let pending = Mutex::new(pending.collect());
        Self { pending, prepared: Mutex::new(prepared), ..self }
    }

    /// Returns the name, element type and width.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Returns the tensor's identity, which differs for each tensor that has had this name.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the newest committed version.
    #[must_use]
    pub fn current(&self) -> Arc<TensorVersion> {
        Arc::clone(&self.current.read().ignore_poison())
    }

    /// Returns the tensor at `version`; `None` if the version is not committed, or its layers were
    /// folded into later ones.
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

    /// Returns the present layers up to `version`; readers of that version may still have layers
    /// that were folded since.
    pub(super) fn newest_layers_of(&self, version: u32) -> Option<Arc<TensorVersion>> {
        let current = self.current();
        match current.version() == version {
            true => Some(current),
            false => current.back_to(version).map(Arc::new),
        }
    }

    /// Returns the number of rows that were put since the partition was opened and are not in a
    /// file.
    #[must_use]
    pub fn n_pending(&self) -> u64 {
        self.pending.lock().ignore_poison().values().map(|pending| pending.rows.len()).sum()
    }

    /// Returns the newest version with pending rows.
    pub(super) fn newest_pending(&self) -> Option<u32> {
        self.pending.lock().ignore_poison().last_key_value().map(|(&version, _)| version)
    }

    /// Returns the oldest version with pending or prepared rows.
    pub(super) fn oldest_pending(&self) -> Option<u32> {
        let pending = self.pending.lock().ignore_poison();
        let oldest = pending.first_key_value().map(|(&version, _)| version);
        let prepared = self.prepared().map(|delta| delta.version());
        oldest.into_iter().chain(prepared).min()
    }

    /// Returns the number of remembered earlier versions, in use or not.
    #[cfg(test)]
    pub(super) fn n_earlier(&self) -> usize {
        self.earlier.lock().ignore_poison().len()
    }

    pub(super) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Adds durable rows to the pending rows of `version`.
    pub(super) fn add(&self, version: u32, rows: impl Iterator<Item = RowIdx>) {
        let mut pending = self.pending.lock().ignore_poison();
        pending.entry(version).or_default().rows.extend(rows.map(|row| row.0));
    }

    /// Returns the pending rows of `version`, if any. No put may add rows to it any more.
    pub(super) fn pending_for(&self, version: u32) -> Option<PendingRows> {
        self.pending.lock().ignore_poison().get(&version).cloned()
    }

    /// Sets the delta that a commit has written from the rows pending for `version`.
    pub(super) fn set_prepared(&self, version: u32, delta: Arc<Layer>) {
        *self.prepared.lock().ignore_poison() = Some(delta);
        self.pending.lock().ignore_poison().remove(&version);
    }

    /// Sets the file that a commit is about to record; `None` once it is recorded.
    pub(super) fn set_unrecorded(&self, file: Option<PathBuf>) {
        *self.unrecorded.lock().ignore_poison() = file;
    }

    /// Removes a file that a commit has written but not recorded; its rows are still pending.
    pub(super) fn remove_unrecorded(&self, fs: &dyn FileSystem) -> Result<(), StoreError> {
        let mut unrecorded = self.unrecorded.lock().ignore_poison();
        let Some(file) = &*unrecorded else { return Ok(()) };
        remove_if_there(fs, file)?;
        *unrecorded = None;
        Ok(())
    }

    /// Returns the delta that a commit has prepared, if any.
    pub(super) fn prepared(&self) -> Option<Arc<Layer>> {
        self.prepared.lock().ignore_poison().clone()
    }

    /// Returns whether the tensor was dropped since the graph was opened.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.is_dropped.load(Ordering::Acquire)
    }

    /// Marks the tensor as dropped; no put and no commit may be running.
    pub(super) fn set_dropped(&self) {
        self.is_dropped.store(true, Ordering::Release);
        *self.prepared.lock().ignore_poison() = None;
        self.pending.lock().ignore_poison().clear();
    }

    /// Installs a version of the followed writer.
    pub(super) fn install(&self, version: &TensorVersion) {
        self.replace(|_| version.clone());
    }

    /// Makes `version` the newest, together with its prepared delta.
    pub(super) fn publish(&self, version: u32) {
        let prepared = self.prepared.lock().ignore_poison().take();
        self.replace(|current| current.at(version, prepared.clone()));
    }

    /// Replaces neighbouring layers (by position, the same in `seen`) by one layer.
    ///
    /// Layers that were committed since stay on top.
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

    /// Replaces the newest version by the result of `make`. Gathers continue meanwhile. If a commit
    /// and a compaction collide, one of them calls `make` again.
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
