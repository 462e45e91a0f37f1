//! Adoption and release of partitions while a graph is open.
//!
//! `docs/replication.md` has the steps, and the owner of the partition at each. This module has the
//! side of the present owner, and the opening of an arrived partition. The name of a folder owns a
//! partition, so a release is a single rename. No state in memory matters after a crash.

mod export;
mod part_files;
mod pending;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;

use super::open::OpenedPart;
use super::{GraphHandle, OpenMode, PartHandle, Parts};
use crate::error::StoreError;
use crate::graph::{Graph, part_dir};
use crate::version_id::{CommitId, VersionId};

pub use export::PartCopy;
pub use part_files::PartFiles;

/// Maximum time for which a seal blocks puts.
pub const SEAL_MAX: Duration = Duration::from_secs(10);
/// Seals of full length within [`WINDOW`]: as many as a restarted move needs.
const SEALS_MAX: u32 = 3;
/// Period of which at most half may be sealed.
const WINDOW: Duration = SEAL_MAX.saturating_mul(2 * SEALS_MAX);
/// Minimum time that a seal counts for.
const COUNTED_MIN: Duration = Duration::from_secs(1);

/// State of a move of a partition to another owner.
#[derive(Debug, Default)]
pub(super) struct TransferState {
    /// Whether a copy is in progress, of which there is one at a time.
    is_copied: AtomicBool,
    /// Until when puts, commits and compactions are rejected; changed with exclusive `gate`.
    sealed_until: Mutex<Option<Instant>>,
    /// Recent seals.
    seals: Mutex<Seals>,
}

/// When recent seals began and ended, or will expire.
#[derive(Debug, Default)]
struct Seals(VecDeque<(Instant, Instant)>);

impl Seals {
    /// Records a seal that begins now, and ends the previous one. Returns `false`, and records
    /// nothing, if puts could then have less than half of the time.
    fn begin(&mut self, now: Instant) -> bool {
        self.end(now);
        self.0.retain(|&(_, end)| now.saturating_duration_since(end) < WINDOW);
        let lasted = |&(begun, end): &(Instant, Instant)| (end - begun).max(COUNTED_MIN);
        let may_begin = self.0.iter().map(lasted).sum::<Duration>() <= SEAL_MAX * (SEALS_MAX - 1);
        if may_begin {
            self.0.push_back((now, now + SEAL_MAX));
        }
        may_begin
    }

    /// Ends the last seal now, if it has not ended.
    fn end(&mut self, now: Instant) {
        if let Some((begun, end)) = self.0.back_mut() {
            *end = now.clamp(*begun, *end);
        }
    }
}

impl TransferState {
    pub(super) fn is_sealed(&self) -> bool {
        self.seal().is_some_and(|until| Instant::now() < until)
    }

    /// Begins a copy until [`TransferState::end_copy`]; `false` if one is in progress.
    pub(super) fn begin_copy(&self) -> bool {
        !self.is_copied.swap(true, Ordering::AcqRel)
    }

    pub(super) fn end_copy(&self) {
        self.is_copied.store(false, Ordering::Release);
    }

    fn seals(&self) -> MutexGuard<'_, Seals> {
        self.seals.lock().ignore_poison()
    }

    fn seal(&self) -> MutexGuard<'_, Option<Instant>> {
        self.sealed_until.lock().ignore_poison()
    }
}

impl PartHandle {
    /// Fails while the partition is sealed; the gate must be held.
    pub(super) fn check_is_not_sealed(&self) -> Result<(), StoreError> {
        if self.transfer.is_sealed() {
            return Err(busy(self.part, "it is sealed for a move"));
        }
        Ok(())
    }
}

impl Graph {
    /// Returns the folder of a partition that move `id` has released.
    #[must_use]
    pub fn released_dir(&self, part: PartId, id: u64) -> PathBuf {
        let mut name = part_dir(self.dir(), part).into_os_string();
        name.push(format!(".moved-{id:016x}"));
        name.into()
    }

    /// Returns whether move `id` has released the partition.
    #[must_use]
    pub fn was_given_up(&self, part: PartId, id: u64) -> bool {
        self.file_system().exists(&self.released_dir(part, id))
    }
}

impl GraphHandle {
    /// Opens a partition whose folder has arrived; returns the graph's version. Does nothing if it
    /// is already open.
    ///
    /// On a writer this raises the partition and the others to the higher of their versions, as if
    /// they had been opened together. Pending rows of those that were behind were put before that
    /// commit was acknowledged.
    pub fn open_received(&self, part: PartId) -> Result<u32, StoreError> {
        self.graph.check_part(part)?;
        if self.now()[part.index()].is_some() {
            return Ok(self.version());
        }
        let stored = self.check_receivable(part)?;
        let opened = OpenedPart::open_in(&stored, part, self.mode)?;
        let version = opened.version;
        self.take_in(Arc::new(opened.live(self.reader)?), version)?;
        Ok(self.version())
    }

    /// Returns the graph as stored on disk. Fails with [`StoreError::MoveRefused`] unless its
    /// tensors begin with the open ones, in their order, because readers identify tensors by
    /// position.
    ///
    /// Tensors may have been added since the graph was opened.
    pub fn check_receivable(&self, part: PartId) -> Result<Graph, StoreError> {
        let stored = Graph::open_on(Arc::clone(self.graph.file_system()), self.graph.dir())?;
        let is_dropped = |it: &Arc<PartHandle>| it.tensors.iter().any(|tensor| tensor.is_dropped());
        let known = &self.graph.meta().tensors;
        if stored.meta().tensors.starts_with(known) && !self.open_parts().iter().any(is_dropped) {
            return Ok(stored);
        }
        let reason = "a tensor was dropped since the graph was opened; open it again first";
        Err(StoreError::MoveRefused { part, reason: reason.to_owned() })
    }

    /// Adds a partition to the list, and on a writer raises it and the others to the higher of
    /// their versions.
    ///
    /// Commits of other servers may have made the partition's versions up to there, and those of
    /// the others, which the catalog records as `joined`.
    pub(super) fn take_in(&self, opened: Arc<PartHandle>, version: u32) -> Result<(), StoreError> {
        let mut turn = self.commits();
        let highest =
            version.max(self.open_parts().iter().map(|it| it.version()).max().unwrap_or(0));
        if self.mode == OpenMode::Write && !self.open_parts().is_empty() {
            opened.catalog.set_joined_at(highest)?;
            opened.joined_at.store(highest, Ordering::Release);
        }
        {
            let _gate = self.gate.write().ignore_poison();
            self.replace(opened.part, Some(opened));
        }
        if self.mode == OpenMode::Write {
            self.check_writable()?;
            let highest = VersionId::new(highest, CommitId::UNKNOWN);
            self.advance(&mut turn, highest)?;
        }
        self.note_version();
        Ok(())
    }

    /// Sets or removes a partition in the list.
    fn replace(&self, part: PartId, by: Option<Arc<PartHandle>>) {
        let mut parts = self.parts.write().ignore_poison();
        let mut changed: Vec<Option<Arc<PartHandle>>> = parts.to_vec();
        changed[part.index()] = by;
        *parts = Parts::from(changed);
    }

    /// Returns whether move `id` has released the partition for good: the rename is on disk on
    /// return.
    ///
    /// Fails with [`StoreError::MoveRefused`] if the partition has returned since, because the copy
    /// of that move is outdated.
    pub fn was_given_up(&self, part: PartId, id: u64) -> Result<bool, StoreError> {
        if !self.graph.was_given_up(part, id) {
            return Ok(false);
        }
        if self.parts().any(|open| open == part) {
            let dir = self.graph.released_dir(part, id);
            let reason = format!(
                "it is open here, but the same move has released it before, as {}; its copy at the \
                 target is outdated: remove both, and move it again",
                dir.display()
            );
            return Err(StoreError::MoveRefused { part, reason });
        }
        let dir = self.graph.dir();
        self.graph.file_system().sync(dir).map_err(StoreError::io(dir, "sync"))?;
        Ok(true)
    }
}

pub(super) fn busy(part: PartId, reason: &'static str) -> StoreError {
    StoreError::Busy { part, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_seals_leave_puts_half_of_the_time() {
        let (start, mut seals) = (Instant::now(), Seals::default());
        let mut until = start;
        let mut sealed_ms = 0;
        for ms in 0..10 * WINDOW.as_millis() as u64 {
            let now = start + Duration::from_millis(ms);
            if now >= until && seals.begin(now) {
                until = now + SEAL_MAX;
            }
            sealed_ms += u64::from(now < until);
        }
        let all = 10 * WINDOW.as_millis() as u64;
        assert!(sealed_ms > 0 && sealed_ms <= all / 2, "{sealed_ms} of {all} ms");
    }

    #[test]
    fn short_seals_count_for_their_length_and_for_a_minimum() {
        let (start, mut seals) = (Instant::now(), Seals::default());
        let mut n_seals = 0;
        while seals.begin(start) {
            seals.end(start);
            n_seals += 1;
            assert!(n_seals < 100, "as often as requested");
        }
        assert!(n_seals > 10, "{n_seals}");
        let mut seals = Seals::default();
        assert!((0..3).all(|_| seals.begin(start + SEAL_MAX)) && seals.0.len() == 3);
        assert!(seals.begin(start + SEAL_MAX), "each seal has ended the previous one");
    }
}
