//! What compactions leave behind: segment files and overlay rows that nobody needs once the last
//! view of them is gone.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use super::{Base, LiveGraph, LiveTensor, Pinned};
use crate::catalog::Catalog;
use crate::device::Device;
use crate::error::StoreError;

/// Bases that compactions have taken out of use, oldest first.
pub(super) type Garbage = Vec<Retired>;

/// A base that no record names any more, with what goes when nobody holds it.
#[derive(Debug)]
pub(super) struct Retired {
    base: Weak<Base>,
    tensor: Arc<LiveTensor>,
    /// Its file; `None` once that is removed.
    file: Option<PathBuf>,
    /// Versions and bytes of the overlay rows that its successor has taken in; `None` once they are
    /// removed.
    folded: Option<(RangeInclusive<u32>, u64)>,
    /// The record of its successor is in a table of the catalog, and no longer in the log alone.
    is_in_table: bool,
}

impl Retired {
    /// Retires the base of `folded`, whose successor is of version `up_to` and has taken in all of
    /// its layers.
    pub(super) fn new(folded: &Pinned, tensor: Arc<LiveTensor>, up_to: u32) -> Self {
        let base = &folded.base;
        let n_bytes = folded.n_put() * tensor.spec().row_bytes() as u64;
        let folded = Some((base.version().saturating_add(1)..=up_to, n_bytes));
        let file = Some(base.segment().path().to_owned());
        Self { base: Arc::downgrade(base), tensor, file, folded, is_in_table: false }
    }

    fn is_held(&self) -> bool {
        self.base.strong_count() > 0
    }

    fn is_done(&self) -> bool {
        self.file.is_none() && self.folded.is_none()
    }
}

impl LiveGraph {
    /// Removes what compactions have left and no view needs any more; gives how many retired
    /// segments are still waiting for a view to go.
    ///
    /// Every compaction does it too, and so does opening for writing.
    pub fn sweep(&self) -> Result<usize, StoreError> {
        self.check_writable()?;
        let mut garbage = self.garbage();
        self.sweep_garbage(&mut garbage)?;
        Ok(garbage.len())
    }

    /// Stops waiting for views of old segments of the partition with this catalog, so that nothing
    /// of it is held; what is left goes when the partition is opened for writing again.
    pub(super) fn forget_garbage(garbage: &mut Garbage, catalog: &Arc<Catalog>) {
        garbage.retain(|retired| !Arc::ptr_eq(retired.tensor.catalog(), catalog));
    }

    pub(super) fn garbage(&self) -> MutexGuard<'_, Garbage> {
        self.garbage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record that names a successor goes from the catalog's log into a table before the file
    /// that it has replaced is removed: what is left of a damaged log may still name the old file.
    pub(super) fn sweep_garbage(&self, garbage: &mut Garbage) -> Result<(), StoreError> {
        for at in 0..garbage.len() {
            // What a full disk keeps from being removed waits, and nothing waits for that.
            let takes_writes = || garbage[at].tensor.catalog().check_takes_writes().is_ok();
            if garbage[at].is_held() || !takes_writes() {
                continue;
            }
            if !garbage[at].is_in_table {
                let catalog = Arc::clone(garbage[at].tensor.catalog());
                catalog.flush()?;
                let of_catalog = |it: &&mut Retired| Arc::ptr_eq(it.tensor.catalog(), &catalog);
                garbage.iter_mut().filter(of_catalog).for_each(|it| it.is_in_table = true);
            }
            if let Some(file) = &garbage[at].file
                && remove_unpinned(&**self.graph.device(), file)
            {
                garbage[at].file = None;
            }
            // A view of an older base may read rows that came over it before this one was made.
            let mut older = garbage[..at].iter();
            let needed =
                older.any(|it| it.is_held() && Arc::ptr_eq(&it.tensor, &garbage[at].tensor));
            if !needed && let Some((versions, n_bytes)) = garbage[at].folded.clone() {
                let tensor = &garbage[at].tensor;
                tensor.catalog().remove_rows(&tensor.spec().name, versions, n_bytes)?;
                garbage[at].folded = None;
            }
        }
        garbage.retain(|retired| !retired.is_done());
        Ok(())
    }
}

/// Removes a file unless some process has pinned it; gives whether it is gone. What cannot be
/// removed stays for another time: it harms nobody.
pub(super) fn remove_unpinned(device: &dyn Device, file: &Path) -> bool {
    let pinned = match device.open(file).and_then(|open| open.is_pinned()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
        pinned => pinned,
    };
    match pinned.and_then(|pinned| if pinned { Ok(false) } else { remove(device, file) }) {
        Ok(removed) => removed,
        Err(error) => {
            tracing::warn!("{}: cannot remove: {error}; left for later", file.display());
            false
        }
    }
}

fn remove(device: &dyn Device, file: &Path) -> io::Result<bool> {
    device.remove_file(file).map(|()| true)
}
