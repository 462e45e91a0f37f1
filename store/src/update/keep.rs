//! Versions that stay readable, whatever is folded.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use lodestore_graph::lock::IgnorePoison;

use super::GraphHandle;
use crate::layers::{Kept, next_cut};
use crate::version_id::CommitId;

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

impl GraphHandle {
    /// Says which versions folds keep readable from now on; only the newest one before.
    pub fn set_keep_rule(&self, rule: KeepRule) {
        *self.keep_rule.write().ignore_poison() = rule;
    }

    /// Leaves the next cut after `published` readable from now on: no fold puts layers up to it and
    /// layers after it into one file. `None` leaves none.
    ///
    /// A cut is a version that all writers of a graph publish, see [`next_cut`].
    pub fn keep_cut_after(&self, published: Option<u32>) {
        self.cut_after.store(published.unwrap_or(u32::MAX), Ordering::Release);
    }

    /// Returns the versions that folds keep readable at this moment: those of the rule, and the next
    /// cut.
    #[must_use]
    pub fn kept_versions(&self) -> Kept {
        let rule = *self.keep_rule.read().ignore_poison();
        let newest = self.version();
        let by_number = newest.saturating_sub(rule.n_versions.saturating_sub(1));
        let from = by_number.min(self.oldest_by_age(newest, rule.age));
        let cut = next_cut(self.cut_after.load(Ordering::Acquire), newest);
        let others = cut.into_iter().filter(|&cut| cut < from).collect();
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
            let ended = part.commit_of(from).ok().and_then(CommitId::time);
            if ended.is_none_or(|ended| ended < since) {
                break;
            }
            from -= 1;
        }
        from
    }
}
