//! Leftovers of compactions: files that no reader needs once the last view of them is gone.

use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, Weak};

use lodestore_graph::lock::IgnorePoison;

use super::{GraphHandle, Layer};
use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::file_system::FileSystem;
use crate::graph::tensor_of_file;

/// Layers that compactions have folded, oldest first.
pub(super) type Garbage = Vec<Retired>;

/// A layer that no record names any more; its file goes when no view holds it.
#[derive(Debug)]
pub(super) struct Retired {
    layer: Weak<Layer>,
    catalog: Arc<Catalog>,
    file: PathBuf,
    /// The record of its successor is in a table of the catalog, and no longer in the log alone.
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

    /// Returns whether its file is of the tensor called `name`.
    pub(super) fn is_of(&self, name: &str) -> bool {
        let file = self.file.file_name().unwrap_or_default().to_string_lossy();
        tensor_of_file(&file).is_some_and(|tensor| tensor == name)
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

impl GraphHandle {
    /// Removes the files that compactions have folded, or versions of a writer have replaced, and
    /// that no view needs. Returns how many still wait for a view to end.
    ///
    /// Every compaction and every installed version does it too, and so does opening for writing.
    pub fn sweep(&self) -> Result<usize, StoreError> {
        self.check_changes()?;
        let mut garbage = self.garbage();
        self.sweep_garbage(&mut garbage)?;
        Ok(garbage.len())
    }

    /// Stops waiting for views of folded layers of the partition with this catalog, so that nothing
    /// of it is held. Files that are left go when the partition is opened for writing again.
    pub(super) fn forget_garbage(&self, catalog: &Arc<Catalog>) {
        self.garbage().retain(|retired| !Arc::ptr_eq(&retired.catalog, catalog));
    }

    pub(super) fn garbage(&self) -> MutexGuard<'_, Garbage> {
        self.garbage.lock().ignore_poison()
    }

    /// Removes the files that no view and no process holds; the others stay in `garbage`.
    ///
    /// The record that names a successor goes from the catalog's log into a table before the file
    /// that it has replaced is removed. Otherwise what is left of a damaged log may still name the
    /// old file. That is done while views hold the file too, so that its removal writes nothing: a
    /// full disk gets the room back.
    pub(super) fn sweep_garbage(&self, garbage: &mut Garbage) -> Result<(), StoreError> {
        let mut kept = Garbage::new();
        while let Some(mut retired) = garbage.pop() {
            // A record that a full disk keeps from its table waits, and nothing waits for that.
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
            if !is_free || !remove_unpinned(&**self.graph.device(), &retired.file) {
                kept.push(retired);
            }
        }
        *garbage = kept;
        Ok(())
    }
}

/// Removes a file unless some process has pinned it; returns whether it is gone. A file that cannot
/// be removed stays for another time, without harm.
pub(crate) fn remove_unpinned(device: &dyn FileSystem, file: &Path) -> bool {
    device.remove_if_unpinned(file).unwrap_or_else(|error| {
        tracing::warn!("{}: cannot remove: {error}; left for later", file.display());
        false
    })
}
