//! The last commits of a partition, by which a follower compares the writer's history with that of
//! a copy.
//!
//! Each commit draws a number and records it under its version, by the write that makes the version
//! visible. Two histories of a partition have the same number of a version only if they are equal
//! up to it. A copy that was restored makes that version again under another number.

use uuid::Uuid;

use super::{Catalog, broken, keys};
use crate::error::StoreError;
use crate::file_system::Change;
use crate::limits::COMMITS_KEPT;

/// A committed version, and the number of the commit that has made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommitId {
    pub(crate) version: u32,
    pub(crate) id: Uuid,
}

impl Catalog {
    /// Returns the last commits up to `version`, ascending; the version of an import has none.
    pub(crate) fn commits(&self, version: u32) -> Result<Vec<CommitId>, StoreError> {
        let mut commits = self.recorded_commits()?;
        commits.retain(|commit| commit.version <= version);
        Ok(commits)
    }

    fn recorded_commits(&self) -> Result<Vec<CommitId>, StoreError> {
        let mut commits = Vec::new();
        self.scan(keys::COMMITS, |key, value| {
            let reason = || format!("expected a version and the 16 bytes of its commit: {key:?}");
            commits.push(commit_of(key, value).ok_or_else(|| broken(&self.dir, reason()))?);
            Ok(())
        })?;
        Ok(commits)
    }

    /// Returns the number of the commit of `version`, if it is known.
    pub(crate) fn commit_id(&self, version: u32) -> Result<Option<Uuid>, StoreError> {
        let key = keys::commit(version);
        let Some(value) = self.get(&key)? else { return Ok(None) };
        let reason = || format!("expected 16 bytes of the commit of version {version}");
        let commit = commit_of(&key, &value).ok_or_else(|| broken(&self.dir, reason()))?;
        Ok(Some(commit.id))
    }

    /// Puts the commits of another catalog of the partition in the place of those here.
    pub(crate) fn replace_commits(&self, by: &[CommitId]) -> Result<(), StoreError> {
        self.write(&self.commit_changes(by)?)
    }

    pub(super) fn commit_changes(&self, by: &[CommitId]) -> Result<Vec<Change>, StoreError> {
        let here = self.recorded_commits()?;
        let old = here.iter().filter(|it| !by.iter().any(|new| new.version == it.version));
        let old = old.map(|it| Change::Delete(keys::commit(it.version)));
        let new = by.iter().filter(|it| !here.contains(it));
        Ok(old.chain(new.map(put)).collect())
    }
}

/// Returns the changes that record a commit of `version`, and forget the oldest.
pub(super) fn noted(version: u32) -> impl Iterator<Item = Change> {
    let oldest = version.checked_sub(COMMITS_KEPT).map(|it| Change::Delete(keys::commit(it)));
    std::iter::once(put(&CommitId { version, id: Uuid::new_v4() })).chain(oldest)
}

fn put(commit: &CommitId) -> Change {
    Change::Put(keys::commit(commit.version), commit.id.as_bytes().to_vec())
}

/// Returns the commit of a pair, if it is one.
pub(super) fn commit_of(key: &[u8], value: &[u8]) -> Option<CommitId> {
    let version = keys::number(key.strip_prefix(keys::COMMITS)?)?;
    Some(CommitId { version, id: Uuid::from_slice(value).ok()? })
}
