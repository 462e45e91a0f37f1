//! Partitions that come and go while a graph is open: sealed, given up, taken in.
//!
//! `docs/replication.md` has the steps and the owner of the partition at each. Here is the side
//! that has the partition, and the opening of one that has come. A folder's name owns a partition,
//! so that giving it up is one rename. Nothing that this module keeps in memory outlives a crash.

mod export;
mod open_received;
mod part_files;
mod pending;
mod release;
mod seal;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lodestore_graph::PartId;

use super::{GraphHandle, PartHandle};
use crate::error::StoreError;
use crate::graph::{Graph, part_dir};

use seal::Seals;

pub use export::PartCopy;
pub use part_files::PartFiles;

/// Longest time for which a partition that is about to be given up takes no puts.
pub const SEAL_MAX: Duration = Duration::from_secs(10);

/// How far a partition is on its way to another owner.
#[derive(Debug, Default)]
pub(super) struct TransferState {
    /// A copy of it is under way: there is one at a time.
    is_copied: AtomicBool,
    /// Until when it takes no puts, commits and compactions; changed under the gate, held alone.
    sealed_until: Mutex<Option<Instant>>,
    /// When it was sealed lately.
    seals: Mutex<Seals>,
}

impl TransferState {
    pub(super) fn is_sealed(&self) -> bool {
        self.seal().is_some_and(|until| Instant::now() < until)
    }

    /// Keeps copies from beginning, until [`TransferState::end_copy`]; `false` where one is under
    /// way.
    pub(super) fn begin_copy(&self) -> bool {
        !self.is_copied.swap(true, Ordering::AcqRel)
    }

    pub(super) fn end_copy(&self) {
        self.is_copied.store(false, Ordering::Release);
    }

    fn seals(&self) -> MutexGuard<'_, Seals> {
        self.seals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seal(&self) -> MutexGuard<'_, Option<Instant>> {
        self.sealed_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartHandle {
    /// Fails while the partition is sealed; the gate must be held.
    pub(super) fn check_is_not_sealed(&self) -> Result<(), StoreError> {
        if self.transfer.is_sealed() {
            return Err(busy(self.part, "it is being handed over, which takes a moment"));
        }
        Ok(())
    }
}

impl Graph {
    /// Returns the folder of a partition that move `id` has taken away.
    #[must_use]
    pub fn released_dir(&self, part: PartId, id: u64) -> PathBuf {
        let mut name = part_dir(self.dir(), part).into_os_string();
        name.push(format!(".moved-{id:016x}"));
        name.into()
    }

    /// Returns whether move `id` has taken the partition away.
    #[must_use]
    pub fn was_given_up(&self, part: PartId, id: u64) -> bool {
        self.device().exists(&self.released_dir(part, id))
    }
}

impl GraphHandle {
    /// Returns whether move `id` has taken the partition away, for good: that is on disk when it
    /// returns.
    ///
    /// Fails with [`StoreError::MoveRefused`] where the partition has come back since: what was
    /// copied under that number is old.
    pub fn was_given_up(&self, part: PartId, id: u64) -> Result<bool, StoreError> {
        if !self.graph.was_given_up(part, id) {
            return Ok(false);
        }
        if self.parts().any(|open| open == part) {
            let dir = self.graph.released_dir(part, id);
            let reason = format!(
                "it is open here, though the same move took it away once, as {}; its copy at the target \
                 is old: remove both, and move it again",
                dir.display()
            );
            return Err(StoreError::MoveRefused { part, reason });
        }
        let dir = self.graph.dir();
        self.graph.device().sync(dir).map_err(StoreError::io(dir, "sync"))?;
        Ok(true)
    }
}

pub(super) fn busy(part: PartId, reason: &'static str) -> StoreError {
    StoreError::Busy { part, reason }
}
