//! Which partitions take writes, and a commit that some of them have and others do not.
//!
//! A write that fails stops the writes of its partition alone: see `catalog/health.rs`. A commit
//! concerns all of them. Where it fails in between, what it froze must stay so in those that have
//! it: so it is finished before anything else is put, or puts are refused until it can be.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use lodestore_graph::PartId;

use super::{LiveGraph, LiveMode, LivePart};
use crate::error::StoreError;

/// A partition that takes no writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppedWrites {
    /// The partition.
    pub part: PartId,
    /// The write that failed.
    pub reason: String,
    /// What helps.
    pub advice: &'static str,
}

impl LiveGraph {
    /// Whether puts and commits can succeed: the graph is open for writing, and no partition has a
    /// failed write that keeps others away.
    #[must_use]
    pub fn takes_writes(&self) -> bool {
        self.mode == LiveMode::Write && self.stopped_writes().is_empty()
    }

    /// Returns the partitions that take no writes since one has failed.
    #[must_use]
    pub fn stopped_writes(&self) -> Vec<StoppedWrites> {
        let stopped = |part: &LivePart| {
            let (reason, advice) = part.catalog.write_failure()?;
            Some(StoppedWrites { part: part.part, reason, advice })
        };
        self.open_parts().iter().filter_map(|part| stopped(part)).collect()
    }

    /// Fails unless the graph is open for writing.
    pub(super) fn check_writable(&self) -> Result<(), StoreError> {
        match self.mode {
            LiveMode::Read => Err(StoreError::ReadOnly { dir: self.graph.dir().to_owned() }),
            LiveMode::Write => Ok(()),
        }
    }

    /// Fails while a partition takes no writes, before any of them is written to.
    pub(super) fn check_all_take_writes(&self) -> Result<(), StoreError> {
        self.open_parts().iter().try_for_each(|part| part.catalog.check_takes_writes())
    }

    /// Notes how a commit of `version` to all partitions ended, and passes that on.
    pub(super) fn noted_commit(
        &self,
        version: u32,
        written: Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let unfinished = if written.is_err() { version } else { 0 };
        self.unfinished_commit.store(unfinished, Ordering::Release);
        written
    }

    /// Finishes a commit that has failed in between, if there is one.
    pub(super) fn finish_commit(&self) -> Result<(), StoreError> {
        if self.unfinished_commit.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        match self.unfinished_commit.load(Ordering::Acquire) {
            0 => Ok(()),
            version => {
                self.check_all_take_writes()?;
                self.roll_forward(version)
            }
        }
    }
}
