//! Partitions that accept writes.
//!
//! A failed write stops the writes of its partition only, see `catalog/health.rs`. A commit
//! involves all partitions. If it fails midway, some are prepared or published, and repeating the
//! same commit completes it.

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;

use super::{GraphHandle, OpenMode, PartHandle};
use crate::error::StoreError;

/// A partition that rejects writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppedWrites {
    /// The partition.
    pub part: PartId,
    /// Why it rejects them, such as the write that failed.
    pub reason: String,
    /// The remedy.
    pub advice: &'static str,
}

impl GraphHandle {
    /// Returns whether puts and commits can succeed: the graph is open for writing, and no
    /// partition rejects writes.
    #[must_use]
    pub fn takes_writes(&self) -> bool {
        let is_writer = self.mode == OpenMode::Write && self.check_process().is_ok();
        is_writer && self.stopped_writes().is_empty()
    }

    /// Returns the partitions that reject writes.
    #[must_use]
    pub fn stopped_writes(&self) -> Vec<StoppedWrites> {
        let stopped = |part: &PartHandle| {
            let (reason, advice) = part.catalog.write_failure()?;
            Some(StoppedWrites { part: part.part, reason, advice })
        };
        self.open_parts().iter().filter_map(|part| stopped(part)).collect()
    }

    /// Rejects puts and commits of a partition with [`StoreError::WritesStopped`] until the graph
    /// is opened again. Reads continue.
    pub fn stop_writes(&self, part: PartId, reason: String, advice: &'static str) {
        // Excludes running puts and commits.
        let _alone = self.commits();
        let _gate = self.gate.write().ignore_poison();
        if let Some(open) = self.open_parts().iter().find(|open| open.part == part) {
            open.catalog.stop_writes(reason, advice);
        }
    }

    /// Rejects puts and commits of a partition with [`StoreError::WritesStopped`] until a call with
    /// `None`, or until the graph is opened again. Reads continue.
    pub fn pause_writes(&self, part: PartId, paused: Option<(String, &'static str)>) {
        // Excludes running puts and commits.
        let _alone = self.commits();
        let _gate = self.gate.write().ignore_poison();
        if let Some(open) = self.open_parts().iter().find(|open| open.part == part) {
            open.catalog.pause_writes(paused);
        }
    }

    /// Fails unless the graph is open for writing.
    pub(super) fn check_writable(&self) -> Result<(), StoreError> {
        self.check_process()?;
        match self.mode {
            OpenMode::Read => Err(StoreError::ReadOnly { dir: self.graph.dir().to_owned() }),
            OpenMode::Follow => {
                let read_only = StoreError::ReadOnly { dir: self.graph.dir().to_owned() };
                self.graph.check_owned().and(Err(read_only))
            }
            OpenMode::Write => Ok(()),
        }
    }

    /// Fails if the graph is open for reading, which must not remove files.
    pub(super) fn check_changes(&self) -> Result<(), StoreError> {
        match self.mode {
            OpenMode::Follow => self.check_process(),
            OpenMode::Read | OpenMode::Write => self.check_writable(),
        }
    }

    /// Fails if a partition rejects writes, before any partition is written.
    pub(super) fn check_all_take_writes(&self) -> Result<(), StoreError> {
        self.open_parts().iter().try_for_each(|part| part.catalog.check_takes_writes())
    }
}
