//! Versions that stay readable across compactions.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use lodestore_graph::lock::IgnorePoison;

use super::GraphHandle;
use crate::layers::{Kept, next_cut};
use crate::version_id::CommitId;

/// Which versions stay readable when layers are folded.
///
/// A kept version costs the space of the rows that later versions changed, and, per later commit, a
/// file for each tensor that the commit changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepRule {
    /// Number of newest versions to keep, at least one.
    pub n_versions: u32,
    /// How long a version is kept after the next one was committed; at most the 32 newest versions
    /// are kept by age.
    pub age: Duration,
}

impl KeepRule {
    /// Keeps only the newest version.
    pub const NEWEST: Self = Self { n_versions: 1, age: Duration::ZERO };
}

impl Default for KeepRule {
    /// Keeps two versions, and each for ten minutes, so that a reader of the newest version's
    /// number can pin it however soon the next one is committed.
    fn default() -> Self {
        Self { n_versions: 2, age: Duration::from_mins(10) }
    }
}

/// Maximum versions kept by age: each later commit has a file per changed tensor, and readers have
/// all of them open.
pub(super) const KEPT_BY_AGE_MAX: u32 = 32;

impl GraphHandle {
    /// Sets which versions later compactions keep readable; by default only the newest.
    pub fn set_keep_rule(&self, rule: KeepRule) {
        *self.keep_rule.write().ignore_poison() = rule;
    }

    /// Keeps the next cut after `published` readable: no compaction folds layers up to that cut and
    /// layers after it into one file. `None` keeps no cut.
    ///
    /// A cut is a version that all writers of a graph publish, see [`next_cut`].
    pub fn keep_cut_after(&self, published: Option<u32>) {
        self.cut_after.store(published.unwrap_or(u32::MAX), Ordering::Release);
    }

    /// Returns the versions that compactions currently keep readable: those of the rule, and the
    /// next cut.
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

    /// Returns the oldest version that is kept by age.
    fn oldest_by_age(&self, newest: u32, age: Duration) -> u32 {
        if age.is_zero() {
            return newest;
        }
        let since = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        let oldest = newest.saturating_sub(KEPT_BY_AGE_MAX - 1).max(1);
        let Some(part) = self.open_parts().into_iter().next() else { return newest };
        let mut from = newest;
        while from > oldest {
            // The previous version was the newest until the commit of `from`.
            let ended = part.commit_of(from).ok().and_then(CommitId::time);
            if ended.is_none_or(|ended| ended < since) {
                break;
            }
            from -= 1;
        }
        from
    }
}
