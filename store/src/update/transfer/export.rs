//! A copy of a partition that is under way: its seal, what is handed over under it, its end.
//!
//! The files come from [`GraphHandle::part_files`], as for a follower, before the seal and under
//! it.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use lodestore_graph::PartId;

use super::super::{GraphHandle, OpenMode, PartHandle};
use super::pending::UncommittedRows;
use super::{SEAL_MAX, busy};
use crate::error::StoreError;

/// A copy of a partition that is under way; when it is dropped the partition continues as before.
#[derive(Debug)]
pub struct PartCopy {
    pub(super) live: Arc<GraphHandle>,
    pub(super) part: Arc<PartHandle>,
    /// Since the seal.
    pub(super) pending: Option<UncommittedRows>,
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
        let _alone = self.live.gate.write().unwrap_or_else(PoisonError::into_inner);
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

    /// Lets the partition take puts and commits again; does nothing a second time.
    pub(super) fn end(&mut self) {
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
