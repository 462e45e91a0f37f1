//! How a copy ends: the partition is given up, and perhaps taken back.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use super::export::PartCopy;
use super::pending::UncommittedRows;
use crate::error::StoreError;

impl PartCopy {
    /// Takes the partition out of the graph: only operations that have begun still reach it.
    ///
    /// Fails with [`StoreError::MoveRefused`] unless all pending rows were read since it was
    /// sealed, the seal has held since, and the graph is open for writing.
    pub fn give_up(&mut self) -> Result<(), StoreError> {
        let _alone = self.live.gate.write().unwrap_or_else(PoisonError::into_inner);
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
            tracing::warn!("{}: nobody's until the disk is mended", to.display());
        }
        Err(StoreError::io(graph.dir(), "sync")(error))
    }
}
