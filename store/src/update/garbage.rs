//! Leftovers of compactions: files that are removed once the last view of them ends.

use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, Weak};

use lodestore_graph::lock::IgnorePoison;

use super::{GraphHandle, Layer};
use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::file_system::FileSystem;
use crate::graph::tensor_of_file;

/// Folded layers, oldest first.
pub(super) type Garbage = Vec<Retired>;

/// A layer that no record names; its file is removed once no view holds it.
#[derive(Debug)]
pub(super) struct Retired {
    layer: Weak<Layer>,
    catalog: Arc<Catalog>,
    file: PathBuf,
    /// Whether the record of the layer's successor is in a table of the catalog, not only in the
    /// log.
    is_in_table: bool,
}

impl Retired {
    pub(super) fn new(layer: &Arc<Layer>, catalog: &Arc<Catalog>) -> Self {
        let file = layer.segment().path().to_owned();
        Self {
            layer: Arc::downgrade(layer),
            catalog: Arc::clone(catalog),
            file,
            is_in_table: false,
        }
    }

    /// Returns whether the file belongs to tensor `name`.
    pub(super) fn is_of(&self, name: &str) -> bool {
        let file = self.file.file_name().unwrap_or_default().to_string_lossy();
        tensor_of_file(&file).is_some_and(|tensor| tensor == name)
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

impl GraphHandle {
    /// Removes files that compactions or installed versions have replaced and that no view needs.
    /// Returns how many files still wait for a view to end.
    ///
    /// Every compaction, every installed version and opening for writing do this too.
    pub fn sweep(&self) -> Result<usize, StoreError> {
        self.check_changes()?;
        let mut garbage = self.garbage();
        self.sweep_garbage(&mut garbage)?;
        Ok(garbage.len())
    }

    /// Drops the garbage entries of the partition with this catalog, so that nothing holds it. Its
    /// files are removed when the partition is next opened for writing.
    pub(super) fn forget_garbage(&self, catalog: &Arc<Catalog>) {
        self.garbage().retain(|retired| !Arc::ptr_eq(&retired.catalog, catalog));
    }

    pub(super) fn garbage(&self) -> MutexGuard<'_, Garbage> {
        self.garbage.lock().ignore_poison()
    }

    /// Removes the files that no view and no process holds; the others stay in `garbage`.
    ///
    /// Before a replaced file is removed, the record of its successor is flushed from the catalog's
    /// log into a table. Otherwise the remains of a damaged log might still name the old file. The
    /// flush happens even while views hold the file, so that the removal itself writes nothing and
    /// frees space on a full disk.
    pub(super) fn sweep_garbage(&self, garbage: &mut Garbage) -> Result<(), StoreError> {
        let mut kept = Garbage::new();
        while let Some(mut retired) = garbage.pop() {
            // On a full disk the flush waits; nothing else waits for the flush.
            if !retired.is_in_table && retired.catalog.check_takes_writes().is_ok() {
                let flushed = retired.catalog.flush();
                if flushed.is_err() {
                    garbage.push(retired);
                    garbage.append(&mut kept);
                    return flushed;
                }
                retired.is_in_table = true;
                let catalog = Arc::clone(&retired.catalog);
                let others = garbage.iter_mut().filter(|it| Arc::ptr_eq(&it.catalog, &catalog));
                others.for_each(|it| it.is_in_table = true);
            }
            let is_free = retired.is_in_table && retired.layer.strong_count() == 0;
            if !is_free || !remove_unpinned(&**self.graph.file_system(), &retired.file) {
                kept.push(retired);
            }
        }
        *garbage = kept;
        Ok(())
    }
}

/// Removes a file unless some process has pinned it; returns whether the file is gone. A file that
/// cannot be removed is left for the next sweep.
pub(crate) fn remove_unpinned(fs: &dyn FileSystem, file: &Path) -> bool {
    fs.remove_if_unpinned(file).unwrap_or_else(|error| {
        tracing::warn!("{}: cannot remove: {error}; will be retried", file.display());
        false
    })
}
