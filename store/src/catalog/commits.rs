//! Commits of a partition, as its catalog records them.
//!
//! Each commit is recorded under its version, by the write that makes the version visible. Two
//! histories of a partition have the same commit of a version only if they are equal up to it. A
//! copy that was restored makes that version again by another commit.

use roaring::RoaringBitmap;

use super::{Catalog, broken, keys};
use crate::error::StoreError;
use crate::file_system::Change;
use crate::limits::{COMMITS_KEPT, COMMITS_LISTED};
use crate::version_id::{CommitId, VersionId};

/// The partitions of one process that had rows of a commit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ChangedParts {
    /// The version of the commit.
    pub(crate) version: u32,
    pub(crate) parts: RoaringBitmap,
}

impl Catalog {
    /// Returns the last commits up to `version`, ascending, [`COMMITS_LISTED`] at most; the version
    /// of an import has none.
    pub(crate) fn commits(&self, version: u32) -> Result<Vec<VersionId>, StoreError> {
        let first = version.saturating_sub(COMMITS_LISTED - 1);
        let mut commits = Vec::new();
        self.scan_commits(first, |commit| commits.push(commit))?;
        commits.retain(|commit| commit.number <= version);
        Ok(commits)
    }

    /// Passes all commits from version `first` on to `each`, ascending.
    fn scan_commits(&self, first: u32, mut each: impl FnMut(VersionId)) -> Result<(), StoreError> {
        self.scan_from(&keys::commit(first), |key, value| {
            if !key.starts_with(keys::COMMITS) {
                return Ok(std::ops::ControlFlow::Break(()));
            }
            let reason = || format!("expected a version and the 16 bytes of its commit: {key:?}");
            each(commit_of(key, value).ok_or_else(|| broken(&self.dir, reason()))?);
            Ok(std::ops::ControlFlow::Continue(()))
        })
    }

    /// Returns the commit of `version`; [`CommitId::UNKNOWN`] where it is not recorded.
    pub(crate) fn commit_id(&self, version: u32) -> Result<CommitId, StoreError> {
        let key = keys::commit(version);
        let Some(value) = self.get(&key)? else { return Ok(CommitId::UNKNOWN) };
        let reason = || format!("expected 16 bytes of the commit of version {version}");
        let commit = commit_of(&key, &value).ok_or_else(|| broken(&self.dir, reason()))?;
        Ok(commit.commit)
    }

    /// Returns which partitions had rows of the last commit, where that is recorded.
    pub(crate) fn changed_parts(&self) -> Result<Option<ChangedParts>, StoreError> {
        let Some(value) = self.get(keys::CHANGED)? else { return Ok(None) };
        let changed = changed_of(&value);
        let reason = || "the partitions of the last commit cannot be read".to_owned();
        changed.map(Some).ok_or_else(|| broken(&self.dir, reason()))
    }

    /// Returns the version at which the partition came into the folder; 0 for one that was made
    /// there. Its commits up to that version may be others than those of its neighbours.
    pub(crate) fn joined_at(&self) -> Result<u32, StoreError> {
        let Some(value) = self.get(keys::JOINED)? else { return Ok(0) };
        let version = keys::little_endian(&value);
        let reason = || "the version at which the partition came cannot be read".to_owned();
        version.ok_or_else(|| broken(&self.dir, reason()))
    }

    /// Records the version at which the partition came into the folder.
    pub(crate) fn set_joined_at(&self, version: u32) -> Result<(), StoreError> {
        let value = version.to_le_bytes().to_vec();
        self.write(&[self.format_change()?, Change::Put(keys::JOINED.to_vec(), value)])
    }

    /// Puts the commits of another catalog of the partition in the place of those here.
    pub(crate) fn replace_commits(&self, by: &[VersionId]) -> Result<(), StoreError> {
        self.write(&self.commit_changes(by)?)
    }

    /// Returns the changes that record the commits `by`, which another catalog of the partition
    /// has. Of those here the ones before them stay, where both are of one history.
    pub(super) fn commit_changes(&self, by: &[VersionId]) -> Result<Vec<Change>, StoreError> {
        let mut here = Vec::new();
        self.scan_commits(0, |commit| here.push(commit))?;
        let first = by.first().map_or(u32::MAX, |commit| commit.number);
        let is_one_history = here.iter().any(|commit| by.contains(commit));
        let stays = |commit: &VersionId| {
            let is_before = is_one_history && commit.number < first;
            is_before || by.iter().any(|new| new.number == commit.number)
        };
        let old = here.iter().filter(|commit| !stays(commit));
        let old = old.map(|commit| Change::Delete(keys::commit(commit.number)));
        let new = by.iter().filter(|commit| !here.contains(commit));
        Ok(old.chain(new.map(put)).collect())
    }
}

/// Returns the changes that record a commit, and forget the oldest one.
pub(super) fn noted(commit: VersionId) -> Vec<Change> {
    let mut changes = Vec::new();
    if commit.commit.is_known() {
        changes.push(put(&commit));
    }
    if let Some(oldest) = commit.number.checked_sub(COMMITS_KEPT) {
        changes.push(Change::Delete(keys::commit(oldest)));
    }
    changes
}

fn put(commit: &VersionId) -> Change {
    Change::Put(keys::commit(commit.number), commit.commit.to_bytes().to_vec())
}

impl ChangedParts {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.version.to_le_bytes().to_vec();
        // A vector takes all bytes.
        let written = self.parts.serialize_into(&mut bytes);
        written.unwrap_or_else(|error| unreachable!("a bitmap in memory: {error}"));
        bytes
    }
}

/// Returns the partitions of a commit, if the value is such a record.
pub(super) fn changed_of(value: &[u8]) -> Option<ChangedParts> {
    let (version, parts) = value.split_first_chunk::<4>()?;
    let parts = RoaringBitmap::deserialize_from(parts).ok()?;
    Some(ChangedParts { version: u32::from_le_bytes(*version), parts })
}

/// Returns the commit of a pair, if it is one.
pub(super) fn commit_of(key: &[u8], value: &[u8]) -> Option<VersionId> {
    let version = keys::number(key.strip_prefix(keys::COMMITS)?)?;
    Some(VersionId::new(version, CommitId::from_bytes(value.try_into().ok()?)))
}
