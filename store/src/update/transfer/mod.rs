//! Partitions that come and go while a graph is open: sealed, given up, taken in.
//!
//! `docs/replication.md` has the steps and the owner of the partition at each. Here is the side
//! that has the partition, and the opening of one that has come. A folder's name owns a partition,
//! so that giving it up is one rename. Nothing that this module keeps in memory outlives a crash.

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

/// Longest time for which a partition that is about to be given up takes no puts.
pub const SEAL_MAX: Duration = Duration::from_secs(10);
/// Seals of full length within [`WINDOW`]: as many as a move takes that must begin again.
const SEALS_MAX: u32 = 3;
/// Time of which a partition is sealed for half at most.
const WINDOW: Duration = SEAL_MAX.saturating_mul(2 * SEALS_MAX);
/// Shortest time that a seal counts for, however soon it ends.
const COUNTED_MIN: Duration = Duration::from_secs(1);

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

/// When the last seals began and ended, or would end by themselves.
#[derive(Debug, Default)]
struct Seals(VecDeque<(Instant, Instant)>);

impl Seals {
    /// Notes a seal that begins now, where the one before ends. Returns `false`, and notes nothing,
    /// where puts might have less than half of the time then.
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

    /// Ends the last one now, if it has not yet.
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

    /// Keeps copies from beginning, until [`TransferState::end_copy`]; `false` where one is under
    /// way.
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
    /// Opens a partition whose folder has come since; returns the graph's version. Nothing happens
    /// if it is open.
    ///
    /// Where puts are accepted, the partition and the others are brought to the higher of their
    /// versions, as if they had been opened together. Pending rows of those behind were put before
    /// that commit was acknowledged.
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

    /// Returns the graph as it is stored. Fails with [`StoreError::MoveRefused`] where its tensors
    /// are not those that are open here, in their order: readers name tensors by position.
    ///
    /// Tensors may have been added since the graph was opened.
    pub fn check_receivable(&self, part: PartId) -> Result<Graph, StoreError> {
        let stored = Graph::open_on(Arc::clone(self.graph.device()), self.graph.dir())?;
        let is_dropped = |it: &Arc<PartHandle>| it.tensors.iter().any(|tensor| tensor.is_dropped());
        let known = &self.graph.meta().tensors;
        if stored.meta().tensors.starts_with(known) && !self.open_parts().iter().any(is_dropped) {
            return Ok(stored);
        }
        let reason = "a tensor was dropped since the graph was opened; open it again first";
        Err(StoreError::MoveRefused { part, reason: reason.to_owned() })
    }

    /// Puts a partition in the list, and where puts are taken brings it and the others to the
    /// higher of their versions.
    ///
    /// Commits of other servers may have made its versions up to there, and those of the others:
    /// its catalog says so.
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

    /// Puts a partition in the list, or none in its place.
    fn replace(&self, part: PartId, by: Option<Arc<PartHandle>>) {
        let mut parts = self.parts.write().ignore_poison();
        let mut changed: Vec<Option<Arc<PartHandle>>> = parts.to_vec();
        changed[part.index()] = by;
        *parts = Parts::from(changed);
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_after_the_other_leaves_puts_half_of_the_time() {
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
    fn seals_that_end_soon_count_for_what_they_lasted_and_not_for_nothing() {
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
        assert!(seals.begin(start + SEAL_MAX), "each has ended the one before it");
    }
}
