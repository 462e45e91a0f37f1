//! Which commit made a version: of a partition, and of partitions that are read together.

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
    /// Takes the last commits as the catalog has them, and the committed version.
    pub(super) fn new(commits: &[VersionId], committed: VersionId) -> Self {
        let earlier = commits.iter().filter(|commit| commit.number < committed.number).copied();
        let mut recent = Self(earlier.collect());
        recent.push(committed);
        recent
    }

    /// Adds the version that is committed now.
    pub(super) fn push(&mut self, version: VersionId) {
        // A follower may install a fold of the version that it has.
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
        *self.0.back().expect("it has the committed version")
    }

    /// Returns the commit of a version; `None` for one that is not among the last ones.
    fn commit_of(&self, number: u32) -> Option<CommitId> {
        let oldest = self.0.front()?.number;
        let known = self.0.iter().find(|version| version.number == number);
        match known {
            Some(version) => Some(version.commit),
            // The partition passed it over: no commit made it here.
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

    /// Returns the commit that made a version here; unknown for one that is not recorded.
    pub(super) fn commit_of(&self, number: u32) -> Result<CommitId, StoreError> {
        let recent = self.commits.lock().ignore_poison().commit_of(number);
        recent.map_or_else(|| self.catalog.commit_id(number), Ok)
    }
}

impl GraphHandle {
    /// Returns the committed version of a partition, if it is open here.
    #[must_use]
    pub fn part_version_id(&self, part: PartId) -> Option<VersionId> {
        Some(self.now().get(part.index())?.as_ref()?.version_id())
    }

    /// Returns the committed version of each partition that is open.
    #[must_use]
    pub fn part_version_ids(&self) -> Vec<(PartId, VersionId)> {
        self.open_parts().iter().map(|part| (part.part, part.version_id())).collect()
    }

    /// Returns the commit that made version `number` of a partition; unknown for the version of an
    /// import, and for one that is not recorded.
    ///
    /// The last commits are in memory; for earlier ones it reads the catalog.
    pub fn commit_of(&self, part: PartId, number: u32) -> Result<CommitId, StoreError> {
        self.open_part(part)?.commit_of(number)
    }

    /// Returns the commit that all open partitions have recorded for a version; unknown where a
    /// partition has recorded none.
    ///
    /// Fails with [`StoreError::HistoriesDiffer`] where two of them made it by different commits.
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
/// A commit that was cut off leaves partitions one version apart at most. A partition behind
/// may be brought forward if it has what it had of that commit: it prepared its rows, or had
/// none. Anything else is no crash: a partition that was restored from a copy, or fetched on its
/// own, lacks rows of the versions in between.
///
/// Fails with [`StoreError::HistoriesDiffer`] for these, and for two partitions that made a
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

    /// Returns whether a crash of the commit that made the version of `ahead` explains that this
    /// partition does not have it.
    fn may_roll_forward_to(&self, ahead: &Self) -> bool {
        if self.version + 1 != ahead.version {
            return false;
        }
        let is_compared = self.joined_at.max(ahead.joined_at) < self.version;
        if is_compared && !self.commit.may_be_shared_with(ahead.commit_before) {
            return false;
        }
        // The first step leaves none: the partition had other rows when the commit was made.
        let is_pending = |tensor: &OpenedTensor| tensor.pending_for.contains(&ahead.version);
        if self.tensors.iter().any(is_pending) {
            return false;
        }
        let is_prepared = self.prepared.is_some_and(|it| it.number == ahead.version);
        let changed = ahead.changed.as_ref().filter(|it| it.version == ahead.version);
        let may_have_had_rows = match changed {
            Some(changed) => changed.parts.contains(self.part.0.into()),
            // A repair has lost the record. An older release has written none, nor has a server that
            // the partition came from.
            None => ahead.commit.is_shared() && ahead.joined_at < ahead.version,
        };
        is_prepared || !may_have_had_rows
    }
}

/// Names partitions with their versions, for messages: neighbours of one version together.
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
