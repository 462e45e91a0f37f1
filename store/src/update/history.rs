//! The commits that made versions: of one partition, and of partitions that are read together.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use lodestore_graph::PartId;
use lodestore_graph::lock::IgnorePoison;

use super::open::{OpenedPart, OpenedTensor};
use super::{GraphHandle, PartHandle};
use crate::error::StoreError;
use crate::graph::Graph;
use crate::version_id::{CommitId, VersionId};

/// Commits of a partition that are kept in memory; the catalog has more.
const RECENT: usize = 64;

/// The last versions of a partition, ascending; never empty.
#[derive(Debug)]
pub(super) struct RecentCommits(VecDeque<VersionId>);

impl RecentCommits {
    /// Creates the list from the last commits of the catalog and the committed version.
    pub(super) fn new(commits: &[VersionId], committed: VersionId) -> Self {
        let earlier = commits.iter().filter(|commit| commit.number < committed.number).copied();
        let mut recent = Self(earlier.collect());
        recent.push(committed);
        recent
    }

    /// Adds a newly committed version.
    pub(super) fn push(&mut self, version: VersionId) {
        // A follower may install a fold of the version that it already has.
        if self.0.back().is_some_and(|last| last.number == version.number) {
            self.0.pop_back();
        }
        self.0.push_back(version);
        while self.0.len() > RECENT {
            self.0.pop_front();
        }
    }

    /// Returns the committed version.
    fn newest(&self) -> VersionId {
        *self.0.back().expect("the list has the committed version")
    }

    /// Returns the commit of a version; `None` if the version is older than the list.
    fn commit_of(&self, number: u32) -> Option<CommitId> {
        let oldest = self.0.front()?.number;
        let known = self.0.iter().find(|version| version.number == number);
        match known {
            Some(version) => Some(version.commit),
            // The partition skipped this version: no commit made it here.
            None if number > oldest => Some(CommitId::UNKNOWN),
            None => None,
        }
    }
}

impl PartHandle {
    /// Returns the committed version.
    pub(super) fn version_id(&self) -> VersionId {
        self.commits.lock().ignore_poison().newest()
    }

    /// Returns the commit that made a version here; unknown if none is recorded.
    pub(super) fn commit_of(&self, number: u32) -> Result<CommitId, StoreError> {
        let recent = self.commits.lock().ignore_poison().commit_of(number);
        recent.map_or_else(|| self.catalog.commit_id(number), Ok)
    }
}

impl GraphHandle {
    /// Returns the committed version of a partition, if it is open.
    #[must_use]
    pub fn part_version_id(&self, part: PartId) -> Option<VersionId> {
        Some(self.now().get(part.index())?.as_ref()?.version_id())
    }

    /// Returns the committed version of each open partition.
    #[must_use]
    pub fn part_version_ids(&self) -> Vec<(PartId, VersionId)> {
        self.open_parts().iter().map(|part| (part.part, part.version_id())).collect()
    }

    /// Returns the commit that made version `number` of a partition; unknown for the version of an
    /// import, and if none is recorded.
    ///
    /// Recent commits are in memory; for earlier ones this reads the catalog.
    pub fn commit_of(&self, part: PartId, number: u32) -> Result<CommitId, StoreError> {
        self.open_part(part)?.commit_of(number)
    }

    /// Returns the commit that all open partitions have recorded for a version; unknown if some
    /// partition has none.
    ///
    /// Fails with [`StoreError::HistoriesDiffer`] if two partitions made the version by different
    /// commits.
    pub fn common_commit(&self, number: u32) -> Result<CommitId, StoreError> {
        let parts = self.open_parts();
        let mut known: Option<(PartId, CommitId)> = None;
        let mut is_complete = true;
        for part in &parts {
            let commit = part.commit_of(number)?;
            if !commit.is_shared() || part.joined_at.load(Ordering::Acquire) >= number {
                is_complete = false;
                continue;
            }
            match known {
                None => known = Some((part.part, commit)),
                Some((_, first)) if first == commit => {}
                Some((first, of_first)) => {
                    let versions = vec![
                        (first, VersionId::new(number, of_first)),
                        (part.part, VersionId::new(number, commit)),
                    ];
                    return Err(StoreError::HistoriesDiffer {
                        dir: self.graph.dir().to_owned(),
                        versions: listed(&versions),
                    });
                }
            }
        }
        Ok(known.filter(|_| is_complete).map_or(CommitId::UNKNOWN, |(_, commit)| commit))
    }
}

/// Returns the highest version of the partitions, with the commit that made it.
///
/// An interrupted commit leaves partitions at most one version apart. A partition that is behind
/// may roll forward if it has all its rows of that commit: it has prepared them, or had none.
/// Anything else is not a crash: a partition that was restored from a copy, or fetched alone, lacks
/// rows of the versions in between.
///
/// Fails with [`StoreError::HistoriesDiffer`] for such a partition, and if two partitions made a
/// version by different commits.
pub(super) fn roll_forward_to(
    graph: &Graph,
    parts: &[OpenedPart],
) -> Result<VersionId, StoreError> {
    let highest = parts.iter().map(|part| part.version).max().unwrap_or(0);
    let differ = || StoreError::HistoriesDiffer {
        dir: graph.dir().to_owned(),
        versions: listed(
            &parts.iter().map(|part| (part.part, part.version_id())).collect::<Vec<_>>(),
        ),
    };
    let ahead: Vec<&OpenedPart> = parts.iter().filter(|it| it.version == highest).collect();
    let mut commit = CommitId::UNKNOWN;
    for part in &ahead {
        if part.joined_at >= highest || !part.commit.is_shared() {
            continue;
        }
        if !commit.may_be_shared_with(part.commit) {
            return Err(differ());
        }
        commit = part.commit;
    }
    for behind in parts.iter().filter(|part| part.version < highest) {
        for part in &ahead {
            if !behind.may_roll_forward_to(part) {
                return Err(differ());
            }
        }
    }
    Ok(VersionId::new(highest, commit))
}
impl OpenedPart {
    pub(super) fn version_id(&self) -> VersionId {
        VersionId::new(self.version, self.commit)
    }

    /// Returns whether a crash during the commit of `ahead`'s version explains that this partition
    /// is behind.
    fn may_roll_forward_to(&self, ahead: &Self) -> bool {
        if self.version + 1 != ahead.version {
            return false;
        }
        let is_compared = self.joined_at.max(ahead.joined_at) < self.version;
        if is_compared && !self.commit.may_be_shared_with(ahead.commit_before) {
            return false;
        }
        // The first step leaves no pending rows for the version, so these were put after another
        // commit.
        let is_pending = |tensor: &OpenedTensor| tensor.pending_for.contains(&ahead.version);
        if self.tensors.iter().any(is_pending) {
            return false;
        }
        let is_prepared = self.prepared.is_some_and(|it| it.number == ahead.version);
        let changed = ahead.changed.as_ref().filter(|it| it.version == ahead.version);
        let may_have_had_rows = match changed {
            Some(changed) => changed.parts.contains(self.part.0.into()),
            // The record is missing after a repair, in partitions of an older release, and for a
            // partition that was moved here from another server.
            None => ahead.commit.is_shared() && ahead.joined_at < ahead.version,
        };
        is_prepared || !may_have_had_rows
    }
}

/// Lists partitions with their versions, for messages; neighbours with the same version together.
fn listed(versions: &[(PartId, VersionId)]) -> String {
    let runs = versions.chunk_by(|a, b| a.1 == b.1);
    let named = runs.map(|run| {
        let (first, version) = run[0];
        let last = run[run.len() - 1].0;
        match run.len() {
            1 => format!("partition {first} has version {version}"),
            _ => format!("partitions {first} to {last} have version {version}"),
        }
    });
    named.collect::<Vec<_>>().join(", ")
}
