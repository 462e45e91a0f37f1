//! The copy of a partition that is read while others put: files, pairs, what came since, the end.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::Instant;

use lodestore_graph::PartId;
use roaring::RoaringBitmap;

use super::super::{LiveGraph, LivePart};
use super::files::{CopiedFile, open_files};
use super::{SEAL_MAX, busy};
use crate::error::StoreError;
use crate::live::LiveMode;
use crate::moving::piece;
use crate::row::RowIdx;

/// A copy of a partition that is under way; when it is dropped the partition goes on as before.
#[derive(Debug)]
pub struct PartCopy {
    pub(super) live: Arc<LiveGraph>,
    pub(super) part: Arc<LivePart>,
    files: Vec<CopiedFile>,
    pub(super) stage: Stage,
    is_over: bool,
}

/// Which pairs come next.
#[derive(Debug)]
pub(super) enum Stage {
    /// Those of the catalog from this key on; `None` when all have come.
    Catalog(Option<Vec<u8>>),
    /// The version unless it has come, and rows that were put since the start, by tensor and version.
    Since { version_is_due: bool, rows: VecDeque<(usize, u32, RoaringBitmap)> },
}

impl LiveGraph {
    /// Begins to copy a partition. Puts and gathers continue; commits are refused with
    /// [`StoreError::Busy`], and compactions leave it as it is.
    ///
    /// Fails with [`StoreError::Busy`] while somebody else copies it or anything is compacted.
    pub fn begin_copy(self: &Arc<Self>, part: PartId) -> Result<PartCopy, StoreError> {
        let open = self.now().get(part.index()).cloned().flatten();
        let open = open.ok_or_else(|| StoreError::NoPart { part, opened: self.opened() })?;
        let mut garbage = match self.garbage.try_lock() {
            Ok(garbage) => garbage,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(busy(part, "a compaction runs; it is copied after that"));
            }
        };
        let _no_commit = self.commits();
        if open.hand_over.is_copied.swap(true, Ordering::AcqRel) {
            return Err(busy(part, "somebody copies it already"));
        }
        let stage = Stage::Catalog(Some(Vec::new()));
        // From here on its end ends all of this.
        let (live, files, is_over) = (Arc::clone(self), Vec::new(), false);
        let mut copy = PartCopy { live, part: open, files, stage, is_over };
        if self.takes_writes() {
            self.sweep_garbage(&mut garbage)?;
        }
        Self::forget_garbage(&mut garbage, &copy.part.catalog);
        drop(garbage);
        if copy.part.catalog.has_losses()? {
            return Err(StoreError::MoveRefused {
                part,
                reason: "a repair of it has not come to its end; run `lode repair` first"
                    .to_owned(),
            });
        }
        copy.part.tensors.iter().for_each(|tensor| tensor.journal().start());
        copy.files = open_files(&self.graph, &copy.part)?;
        Ok(copy)
    }
}

impl PartCopy {
    /// The partition.
    #[must_use]
    pub fn part(&self) -> PartId {
        self.part.part
    }

    /// Its committed version.
    pub fn version(&self) -> Result<u32, StoreError> {
        self.part.catalog.current_version()
    }

    /// Names and bytes of all files but the catalog's; `graph.toml` is the first.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.files.iter().map(|file| (file.name.as_str(), file.n_bytes))
    }

    /// Appends to `out` what file `at` has from `offset` on, at most `limit` bytes; `true` when that
    /// is its end.
    pub fn read(
        &self,
        at: usize,
        offset: u64,
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        let Some(file) = self.files.get(at) else {
            let reason = format!("there is no file {at}, only {}", self.files.len());
            return Err(StoreError::MoveRefused { part: self.part(), reason });
        };
        file.read(offset, limit, out)
    }

    /// Appends to `out` the next pairs, about `limit` bytes of them and at least one; `true` when no
    /// more are to come. Before the seal they are those of the catalog, each as it is when its turn
    /// comes; after it those that have changed since the start.
    pub fn next_pairs(&mut self, limit: usize, out: &mut Vec<u8>) -> Result<bool, StoreError> {
        match &mut self.stage {
            Stage::Catalog(from) => {
                let Some(start) = from.take() else { return Ok(true) };
                let mut next = None;
                self.part.catalog.scan_to_copy(&start, &mut |key, value| {
                    if !out.is_empty() && out.len() + piece::n_bytes(key, value) > limit {
                        next = Some(key.to_vec());
                        return ControlFlow::Break(());
                    }
                    piece::push(out, key, value);
                    ControlFlow::Continue(())
                })?;
                *from = next;
                Ok(from.is_none())
            }
            Stage::Since { version_is_due, rows } => {
                if std::mem::take(version_is_due) {
                    let (key, value) = self.part.catalog.version_pair()?;
                    piece::push(out, &key, &value);
                }
                while let Some((tensor, version, left)) = rows.front_mut() {
                    let tensor = &self.part.tensors[*tensor];
                    let row_bytes = tensor.spec().row_bytes();
                    while let Some(row) = left.min() {
                        left.remove_smallest(1);
                        let (name, row) = (&tensor.spec().name, RowIdx(row));
                        let (key, value) = self.part.catalog.row_pair(name, *version, row)?;
                        piece::push(out, &key, &value);
                        if out.len() + row_bytes + piece::KEY_BYTES_MAX > limit {
                            return Ok(false);
                        }
                    }
                    rows.pop_front();
                }
                Ok(true)
            }
        }
    }

    /// Waits for the puts that run and takes no others, nor commits, for [`SEAL_MAX`] at most; gives
    /// the committed version. [`PartCopy::next_pairs`] then has what was put since the start. May be
    /// repeated.
    ///
    /// Fails with [`StoreError::Busy`] where the partition has been sealed too often lately: whoever
    /// seals it for ever must not keep all puts away.
    pub fn seal(&mut self) -> Result<u32, StoreError> {
        let _alone = self.live.gate.write().unwrap_or_else(PoisonError::into_inner);
        if self.live.mode == LiveMode::Write {
            let now = Instant::now();
            if !self.part.hand_over.seals().begin(now) {
                return Err(busy(self.part(), "it was sealed often just now, and must take puts"));
            }
            *self.part.hand_over.seal() = Some(now + SEAL_MAX);
        }
        let noted = self.part.tensors.iter().enumerate().flat_map(|(at, tensor)| {
            let noted = tensor.journal().noted().into_iter();
            noted.map(move |(version, rows)| (at, version, rows))
        });
        self.stage = Stage::Since { version_is_due: true, rows: noted.collect() };
        self.version()
    }
}

impl PartCopy {
    /// Lets the partition take puts and commits again; does nothing a second time.
    pub(super) fn end(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.part.tensors.iter().for_each(|tensor| tensor.journal().stop());
        if self.part.hand_over.seal().take().is_some() {
            self.part.hand_over.seals().end(Instant::now());
        }
        self.part.hand_over.is_copied.store(false, Ordering::Release);
    }
}

impl Drop for PartCopy {
    fn drop(&mut self) {
        self.end();
    }
}
