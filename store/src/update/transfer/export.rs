//! A copy of a partition in progress: its seal, the transfer under the seal, and its end, by which
//! the partition is released or restored.
//!
//! The files are read through [`GraphHandle::part_files`], as by a follower, before and under the
//! seal.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;

use super::super::{GraphHandle, OpenMode, PartHandle};
use super::pending::UncommittedRows;
use super::{SEAL_MAX, busy};
use crate::error::StoreError;

/// A copy of a partition in progress; if it is dropped, the partition continues as before.
#[derive(Debug)]
pub struct PartCopy {
    live: Arc<GraphHandle>,
    part: Arc<PartHandle>,
    /// Set by the seal.
    pending: Option<UncommittedRows>,
    is_over: bool,
}

impl GraphHandle {
    /// Begins to copy a partition. Puts, commits, compactions and gathers continue until it is
    /// sealed.
    ///
    /// Fails with [`StoreError::Busy`] while another copy of the partition is in progress.
    pub fn begin_copy(self: &Arc<Self>, part: PartId) -> Result<PartCopy, StoreError> {
        let open = self.open_part(part)?;
        if !open.transfer.begin_copy() {
            return Err(busy(part, "another copy of it is in progress"));
        }
        // Dropping the copy undoes all that follows.
        let copy = PartCopy { live: Arc::clone(self), part: open, pending: None, is_over: false };
        if copy.part.catalog.has_losses()? {
            return Err(StoreError::MoveRefused {
                part,
                reason: "its repair is unfinished; repair the graph first".to_owned(),
            });
        }
        Ok(copy)
    }
}

impl PartCopy {
    /// Returns the partition that moves.
    #[must_use]
    pub fn part(&self) -> PartId {
        self.part.part
    }

    /// Waits for running commits and puts, then rejects further ones, and compactions, for at most
    /// [`SEAL_MAX`]; returns the committed version. [`PartCopy::next_pending`] then reads the
    /// pending rows. May be repeated.
    ///
    /// Fails with [`StoreError::Busy`] if the partition was sealed too often recently, so that a
    /// client cannot block puts for ever by repeated seals. Also fails while the outcome of an
    /// earlier write is unknown.
    pub fn seal(&mut self) -> Result<u32, StoreError> {
        let _no_commit = self.live.commits();
        let _alone = self.live.gate.write().ignore_poison();
        let (catalog, version) = (&self.part.catalog, self.part.version());
        if self.live.mode == OpenMode::Write {
            catalog.check_takes_writes()?;
            if catalog.current_version()? != version {
                return Err(busy(self.part(), "its last commit failed midway; commit again"));
            }
            let now = Instant::now();
            if !self.part.transfer.seals().begin(now) {
                return Err(busy(
                    self.part(),
                    "it was sealed too often recently, and must accept puts",
                ));
            }
            *self.part.transfer.seal() = Some(now + SEAL_MAX);
        }
        self.pending = Some(UncommittedRows::of(&self.live, &self.part)?);
        Ok(version)
    }

    /// Appends the next pending rows to `out`, about `limit` bytes and at least one row; returns
    /// whether they are the last.
    ///
    /// Fails with [`StoreError::MoveRefused`] unless the partition was sealed.
    pub fn next_pending(&mut self, limit: usize, out: &mut Vec<u8>) -> Result<bool, StoreError> {
        let part = self.part();
        let Some(pending) = &mut self.pending else {
            let reason = "it is not sealed; seal it before its pending rows are read".to_owned();
            return Err(StoreError::MoveRefused { part, reason });
        };
        pending.next(&self.part, limit, out)
    }

    /// Removes the partition from the graph: only running operations still reach it.
    ///
    /// Fails with [`StoreError::MoveRefused`] unless all pending rows were read since the seal, the
    /// seal still holds, and the graph is open for writing.
    pub fn give_up(&mut self) -> Result<(), StoreError> {
        let _alone = self.live.gate.write().ignore_poison();
        self.check_complete()?;
        self.live.replace(self.part(), None);
        Ok(())
    }

    /// Fails unless the copy is complete and no further puts are possible. The gate must be held
    /// exclusively.
    fn check_complete(&self) -> Result<(), StoreError> {
        self.live.check_writable()?;
        let refused = |reason: &str| {
            let (part, reason) = (self.part(), reason.to_owned());
            Err(StoreError::MoveRefused { part, reason })
        };
        if !self.pending.as_ref().is_some_and(UncommittedRows::is_over) {
            return refused("its pending rows were not all fetched since the seal");
        }
        if !self.part.transfer.is_sealed() {
            return refused(
                "its seal has expired, and rows may have been put since; if there are many pending \
                 rows, commit them first, then move it again",
            );
        }
        Ok(())
    }

    /// Undoes [`PartCopy::give_up`]. Versions that were committed meanwhile are committed on the
    /// partition too, with its rows that were pending for them.
    ///
    /// This ends the copy. After an error the partition stays removed, with its folder unchanged.
    pub fn put_back(&mut self) -> Result<(), StoreError> {
        let version = self.part.version();
        self.end();
        self.live.take_in(Arc::clone(&self.part), version)
    }

    /// Returns whether this is the last holder of the removed partition.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_alone = |tensor| Arc::strong_count(tensor) == 1;
        Arc::strong_count(&self.part) == 1 && self.part.tensors.iter().all(is_alone)
    }

    /// Closes the partition, which must be removed and idle, and renames its folder, which releases
    /// it for good. Returns the new name.
    ///
    /// After an error the folder is unchanged, and may be opened again.
    pub fn close(self, id: u64) -> Result<PathBuf, StoreError> {
        assert!(self.is_idle(), "a closed partition has no gathers");
        self.live.forget_garbage(&self.part.catalog);
        // For readers of the old folder; rows that are only in the log would be durable too.
        self.part.catalog.flush()?;
        let (live, part) = (Arc::clone(&self.live), self.part());
        // Held until the rename, so that no other process opens the partition in between.
        let _guard = self.part.catalog.guard();
        drop(self);
        let graph = &live.graph;
        let (from, to) = (graph.part_dir(part), graph.released_dir(part, id));
        graph
            .file_system()
            .rename(&from, &to)
            .map_err(StoreError::io(&to, "move the partition to"))?;
        let Err(error) = graph.file_system().sync(graph.dir()) else { return Ok(to) };
        // Later syncs would not report a lost rename, so the old name is restored, durably.
        let back = graph.file_system().rename(&to, &from);
        if back.and_then(|()| graph.file_system().sync(graph.dir())).is_err()
            && graph.file_system().rename(&from, &to).is_ok()
        {
            tracing::warn!(
                "{}: no server owns this partition until the disk is repaired",
                to.display()
            );
        }
        Err(StoreError::io(graph.dir(), "sync")(error))
    }

    /// Accepts puts and commits of the partition again; idempotent.
    fn end(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        if self.part.transfer.seal().take().is_some() {
            self.part.transfer.seals().end(Instant::now());
        }
        self.part.transfer.end_copy();
    }
}

impl Drop for PartCopy {
    fn drop(&mut self) {
        self.end();
    }
}
