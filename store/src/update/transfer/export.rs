//! A copy of a partition that is under way: its seal, what is handed over under it, and its end. By
//! that the partition is given up, and perhaps taken back.
//!
//! The files come from [`GraphHandle::part_files`], as for a follower, before the seal and under
//! it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;

use super::super::{GraphHandle, OpenMode, PartHandle};
use super::pending::UncommittedRows;
use super::{SEAL_MAX, busy};
use crate::error::StoreError;

/// A copy of a partition that is under way; when it is dropped the partition continues as before.
#[derive(Debug)]
pub struct PartCopy {
    live: Arc<GraphHandle>,
    part: Arc<PartHandle>,
    /// Since the seal.
    pending: Option<UncommittedRows>,
    is_over: bool,
}

impl GraphHandle {
    /// Begins to copy a partition. Puts, commits, compactions and gathers continue until it is
    /// sealed.
    ///
    /// Fails with [`StoreError::Busy`] while another copy of it is under way.
    pub fn begin_copy(self: &Arc<Self>, part: PartId) -> Result<PartCopy, StoreError> {
        let open = self.open_part(part)?;
        if !open.transfer.begin_copy() {
            return Err(busy(part, "another copy of it is under way"));
        }
        // From here on its end ends all of this.
        let copy = PartCopy { live: Arc::clone(self), part: open, pending: None, is_over: false };
        if copy.part.catalog.has_losses()? {
            return Err(StoreError::MoveRefused {
                part,
                reason: "a repair of it has not come to its end; run `lode repair` first"
                    .to_owned(),
            });
        }
        Ok(copy)
    }
}

impl PartCopy {
    /// Returns the partition.
    #[must_use]
    pub fn part(&self) -> PartId {
        self.part.part
    }

    /// Waits for the commit and the puts that run, and takes no others, nor compactions, for
    /// [`SEAL_MAX`] at most; returns the committed version. [`PartCopy::next_pending`] then has
    /// what is pending. May be repeated.
    ///
    /// Fails with [`StoreError::Busy`] where the partition has been sealed too often lately: a
    /// client that seals it for ever must not keep all puts away. Fails too while an earlier write
    /// is in doubt.
    pub fn seal(&mut self) -> Result<u32, StoreError> {
        let _no_commit = self.live.commits();
        let _alone = self.live.gate.write().ignore_poison();
        let (catalog, version) = (&self.part.catalog, self.part.version());
        if self.live.mode == OpenMode::Write {
            catalog.check_takes_writes()?;
            if catalog.current_version()? != version {
                return Err(busy(self.part(), "its last commit has failed midway; commit again"));
            }
            let now = Instant::now();
            if !self.part.transfer.seals().begin(now) {
                return Err(busy(self.part(), "it was sealed often just now, and must take puts"));
            }
            *self.part.transfer.seal() = Some(now + SEAL_MAX);
        }
        self.pending = Some(UncommittedRows::of(&self.live, &self.part)?);
        Ok(version)
    }

    /// Appends to `out` the next pending rows, about `limit` bytes of them and at least one row;
    /// returns whether they are the last.
    ///
    /// Fails with [`StoreError::MoveRefused`] before the partition has been sealed.
    pub fn next_pending(&mut self, limit: usize, out: &mut Vec<u8>) -> Result<bool, StoreError> {
        let part = self.part();
        let Some(pending) = &mut self.pending else {
            let reason = "its pending rows are read once it is sealed; seal it first".to_owned();
            return Err(StoreError::MoveRefused { part, reason });
        };
        pending.next(&self.part, limit, out)
    }

    /// Takes the partition out of the graph: only operations that have begun still reach it.
    ///
    /// Fails with [`StoreError::MoveRefused`] unless all pending rows were read since it was
    /// sealed, the seal has held since, and the graph is open for writing.
    pub fn give_up(&mut self) -> Result<(), StoreError> {
        let _alone = self.live.gate.write().ignore_poison();
        self.check_complete()?;
        self.live.replace(self.part(), None);
        Ok(())
    }

    /// Fails unless the copy has all that the partition has, and no more puts are possible; the
    /// gate must be held alone.
    fn check_complete(&self) -> Result<(), StoreError> {
        self.live.check_writable()?;
        let refused = |reason: &str| {
            let (part, reason) = (self.part(), reason.to_owned());
            Err(StoreError::MoveRefused { part, reason })
        };
        if !self.pending.as_ref().is_some_and(UncommittedRows::is_over) {
            return refused("its pending rows have not all been fetched since it was sealed");
        }
        if !self.part.transfer.is_sealed() {
            return refused(
                "its seal has run out, and rows may have been put since; if the pending rows are many, commit them \
                 first, then move it again",
            );
        }
        Ok(())
    }

    /// Takes [`PartCopy::give_up`] back. Versions that were committed meanwhile are committed on it
    /// too: with what was pending for them.
    ///
    /// That ends the copy. After an error it stays given up, with its folder as it was.
    pub fn put_back(&mut self) -> Result<(), StoreError> {
        let version = self.part.version();
        self.end();
        self.live.take_in(Arc::clone(&self.part), version)
    }

    /// Returns whether no other holder of the partition is left, once it is released.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_alone = |tensor| Arc::strong_count(tensor) == 1;
        Arc::strong_count(&self.part) == 1 && self.part.tensors.iter().all(is_alone)
    }

    /// Closes the partition, which must have been given up and be idle, and renames its folder:
    /// that is when it is given up for good. Returns the new name.
    ///
    /// After an error the folder is as it was, and may be opened again.
    pub fn close(self, id: u64) -> Result<PathBuf, StoreError> {
        assert!(self.is_idle(), "no gather reads from a partition that is closed");
        self.live.forget_garbage(&self.part.catalog);
        // Rows in the log alone would be there as well: this is for readers of the old folder.
        self.part.catalog.flush()?;
        let (live, part) = (Arc::clone(&self.live), self.part());
        // Held until it has its other name, so that no other process opens it in between.
        let _guard = self.part.catalog.guard();
        drop(self);
        let graph = &live.graph;
        let (from, to) = (graph.part_dir(part), graph.released_dir(part, id));
        graph.device().rename(&from, &to).map_err(StoreError::io(&to, "move the partition to"))?;
        let Err(error) = graph.device().sync(graph.dir()) else { return Ok(to) };
        // Later syncs would not say that this name was lost: the old one is given again, durably.
        let back = graph.device().rename(&to, &from);
        if back.and_then(|()| graph.device().sync(graph.dir())).is_err()
            && graph.device().rename(&from, &to).is_ok()
        {
            tracing::warn!("{}: no server owns this until the disk is repaired", to.display());
        }
        Err(StoreError::io(graph.dir(), "sync")(error))
    }

    /// Lets the partition take puts and commits again; does nothing a second time.
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
