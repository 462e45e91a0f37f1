//! Commits: what was put becomes a version.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::LiveGraph;
use super::parallel::for_each;
use crate::error::StoreError;

impl LiveGraph {
    /// Makes everything put so far the next version, on all open partitions; gives its number.
    ///
    /// A commit with nothing put makes a version too, equal to the one before: partitions that are
    /// committed in different processes stay in step by counting.
    ///
    /// After an error or a crash the graph has the version before or this one, and opening it for
    /// writing makes it the same everywhere.
    pub fn commit_version(&self) -> Result<u32, StoreError> {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        self.check_all_take_writes()?;
        self.check_unsealed()?;
        let version = self.pending_version()?;
        self.roll_forward(version)?;
        Ok(version)
    }

    /// As [`LiveGraph::commit_version`], as often as it takes to reach `version`; nothing if it was
    /// reached before, so that it may be repeated. Gives the committed version.
    pub fn commit_through(&self, version: u32) -> Result<u32, StoreError> {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        if version > self.version() {
            self.check_all_take_writes()?;
            self.check_unsealed()?;
            self.roll_forward(version)?;
        }
        Ok(self.version())
    }

    /// The version that puts are for; the gate must be held.
    pub(super) fn pending_version(&self) -> Result<u32, StoreError> {
        self.version().checked_add(1).ok_or_else(|| StoreError::Catalog {
            dir: self.graph.dir().to_owned(),
            reason: "there is no version after the last number; import the graph again".to_owned(),
            cause: crate::Cause::System,
        })
    }

    /// Fails while a partition is about to be given up: its version must not change under the copy.
    pub(super) fn check_unsealed(&self) -> Result<(), StoreError> {
        self.open_parts().iter().try_for_each(|part| part.check_open_to_puts())
    }

    /// Commits `version`, which is later than the committed one, on disk and then in memory; the
    /// gate must be held alone.
    pub(super) fn roll_forward(&self, version: u32) -> Result<(), StoreError> {
        let parts = self.open_parts();
        let results =
            for_each(&**self.graph.device(), &parts, |part| part.catalog.set_version(version));
        self.noted_commit(version, results.into_iter().collect())?;
        for tensor in parts.iter().flat_map(|part| &part.tensors) {
            tensor.freeze(version.saturating_add(1));
        }
        self.version.store(version, Ordering::Release);
        Ok(())
    }
}
