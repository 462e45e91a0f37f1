//! Versions that stay readable, whatever is folded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use lodestore_graph::lock::IgnorePoison;

use super::GraphHandle;
use crate::error::StoreError;
use crate::layers::Kept;

/// Which versions stay readable when layers are folded.
///
/// A version that is kept costs the room of the rows that later ones have changed, and each commit
/// since a file of each tensor that it changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepRule {
    /// How many of the newest versions; at least the newest one is kept.
    pub n_versions: u32,
    /// How long a version is kept after the next one was committed. The newest 32 versions at most
    /// are kept so.
    pub age: Duration,
}

impl KeepRule {
    /// Only the newest version is kept.
    pub const NEWEST: Self = Self { n_versions: 1, age: Duration::ZERO };
}

impl Default for KeepRule {
    /// Keeps two versions, and each for ten minutes: who has read the number of the newest version
    /// can pin it, however soon the next one is committed.
    fn default() -> Self {
        Self { n_versions: 2, age: Duration::from_mins(10) }
    }
}

/// Most versions that are kept by their age: each commit since is a file of each tensor that it
/// changed, and readers have all of them open.
pub(super) const KEPT_BY_AGE_MAX: u32 = 32;

/// Versions that are held, each with how often.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds(Arc<Mutex<BTreeMap<u32, usize>>>);

/// Versions that are held, while none can be added.
pub(super) type HoldsGuard<'a> = MutexGuard<'a, BTreeMap<u32, usize>>;

impl Holds {
    pub(super) fn lock(&self) -> HoldsGuard<'_> {
        self.0.lock().ignore_poison()
    }
}

/// Keeps a version readable until it is dropped: no fold of the graph takes rows from both sides of
/// it. It holds no file, and does not outlive the process.
#[derive(Debug)]
pub struct HeldVersion {
    version: u32,
    holds: Holds,
}

impl HeldVersion {
    /// Returns the version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }
}

impl Drop for HeldVersion {
    fn drop(&mut self) {
        let mut holds = self.holds.lock();
        if let Some(n_holds) = holds.get_mut(&self.version) {
            *n_holds -= 1;
            if *n_holds == 0 {
                holds.remove(&self.version);
            }
        }
    }
}

impl GraphHandle {
    /// Says which versions folds keep readable from now on; only the newest one before.
    pub fn set_keep_rule(&self, rule: KeepRule) {
        *self.keep_rule.write().ignore_poison() = rule;
    }

    /// Holds a version that is readable now.
    ///
    /// Fails with [`StoreError::NoVersion`] for one that is not committed on all open partitions,
    /// and for one whose layers were folded into later ones.
    pub fn hold_version(&self, version: u32) -> Result<HeldVersion, StoreError> {
        // A fold that is about to count waits, and looks again then.
        let mut holds = self.holds.lock();
        if version > self.version() || !self.has_layers_of(version) {
            return Err(self.no_version(version));
        }
        *holds.entry(version).or_default() += 1;
        drop(holds);
        Ok(HeldVersion { version, holds: self.holds.clone() })
    }

    /// Returns the versions that folds keep readable at this moment.
    #[must_use]
    pub fn kept_versions(&self) -> Kept {
        self.kept_with(&self.holds.lock())
    }

    pub(super) fn kept_with(&self, holds: &HoldsGuard<'_>) -> Kept {
        let rule = *self.keep_rule.read().ignore_poison();
        let newest = self.version();
        let by_number = newest.saturating_sub(rule.n_versions.saturating_sub(1));
        let from = by_number.min(self.oldest_by_age(newest, rule.age));
        let others = holds.keys().copied().filter(|&version| version < from).collect();
        Kept { from, others }
    }

    /// Returns the oldest version that is kept by its age.
    fn oldest_by_age(&self, newest: u32, age: Duration) -> u32 {
        if age.is_zero() {
            return newest;
        }
        let since = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        let oldest = newest.saturating_sub(KEPT_BY_AGE_MAX - 1).max(1);
        let Some(part) = self.open_parts().into_iter().next() else { return newest };
        let mut from = newest;
        while from > oldest {
            // The version before was the newest one until then.
            let ended = part.commit_of(from).ok().and_then(|commit| commit.time());
            if ended.is_none_or(|ended| ended < since) {
                break;
            }
            from -= 1;
        }
        from
    }

    /// Returns whether the layers of a committed version can be told apart from later ones.
    fn has_layers_of(&self, version: u32) -> bool {
        let parts = self.open_parts();
        parts.iter().all(|part| part.listed().all(|tensor| tensor.current().is_readable(version)))
    }
}
