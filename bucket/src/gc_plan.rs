//! The choice of the publications that garbage collection removes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lodestore_graph::PartId;
use lodestore_store::CommitId;

use crate::search::{Seen, highest_up_to, source_of};

/// Time for which a publication that was replaced, and a chunk without a publication, stay unless
/// another is given.
pub const GRACE: Duration = Duration::from_secs(24 * 3600);

/// The publications of a partition, ascending, and the time since each was written.
#[derive(Clone, Debug)]
pub(crate) struct PartHistory {
    pub(crate) part: PartId,
    pub(crate) publications: Vec<Seen>,
    pub(crate) ages: Vec<Duration>,
    /// The commits of versions, as far as they are known.
    pub(crate) commits: BTreeMap<u32, CommitId>,
}

/// The versions that are kept beside the newest publications.
#[derive(Clone, Debug)]
pub(crate) struct Keep {
    /// Number of complete versions.
    pub(crate) n_versions: usize,
    pub(crate) pinned: BTreeSet<u32>,
    pub(crate) grace: Duration,
}

/// Returns, for each partition, the sequences of the publications to remove, ascending: all but
/// those that readers may need.
///
/// A reader needs the newest publication of a partition, or those of a version that is complete,
/// and may have begun before they were replaced.
pub(crate) fn removed_publications(parts: &[PartHistory], keep: &Keep) -> Vec<Vec<u64>> {
    let newest_complete = complete_up_to(parts, u32::MAX);
    let versions = kept_versions(parts, keep);
    let removed = |part: &PartHistory| {
        let sources = versions.iter().filter_map(|version| source_of(&part.publications, *version));
        let sources: BTreeSet<u64> = sources.map(|seen| seen.sequence).collect();
        let n = part.publications.len();
        let is_removed = |(at, it): (usize, &Seen)| {
            // A version that others have not published yet.
            let is_ahead = newest_complete.is_none_or(|version| it.version > version);
            let is_replaced_lately = part.ages.get(at + 1).is_none_or(|age| *age <= keep.grace);
            let is_kept =
                at + 1 == n || is_ahead || is_replaced_lately || sources.contains(&it.sequence);
            (it.coverage.is_some() && !is_kept).then_some(it.sequence)
        };
        part.publications.iter().enumerate().filter_map(is_removed).collect()
    };
    parts.iter().map(removed).collect()
}

/// Returns the highest version up to `version` that every partition has, of one commit.
fn complete_up_to(parts: &[PartHistory], mut version: u32) -> Option<u32> {
    loop {
        version = held_up_to(parts, version)?;
        if CommitId::may_be_one(
            parts.iter().map(|part| part.commits.get(&version).copied().unwrap_or_default()),
        ) {
            return Some(version);
        }
        version = version.checked_sub(1)?;
    }
}

/// Returns the highest version up to `version` that every partition has.
fn held_up_to(parts: &[PartHistory], mut version: u32) -> Option<u32> {
    let mut at = 0;
    while at < parts.len() {
        let highest = highest_up_to(&parts[at].publications, version)?;
        // Those before it have to hold the lower one too.
        at = if highest == version { at + 1 } else { 0 };
        version = highest;
    }
    Some(version)
}

/// Returns the complete versions that stay: the newest ones, those that are pinned, and those that
/// were the newest one within the grace period.
fn kept_versions(parts: &[PartHistory], keep: &Keep) -> BTreeSet<u32> {
    let mut versions = keep.pinned.clone();
    let (mut kept, mut superseded_for) = (BTreeSet::new(), Duration::ZERO);
    // Readers of the newest version have found one of these: the lowest version of a publication.
    let published = parts.iter().flat_map(|part| &part.publications);
    let published: BTreeSet<u32> = published.map(|seen| seen.version).collect();
    for version in published.into_iter().rev() {
        let Some(version) = complete_up_to(parts, version) else { break };
        if kept.contains(&version) {
            continue;
        }
        if kept.len() >= keep.n_versions.max(1) && superseded_for > keep.grace {
            break;
        }
        kept.insert(version);
        superseded_for = complete_for(parts, version);
    }
    versions.extend(kept);
    versions
}

/// Returns the time since the last partition has published a version, or one behind it.
fn complete_for(parts: &[PartHistory], version: u32) -> Duration {
    let age = |part: &PartHistory| {
        let at = part.publications.partition_point(|seen| seen.version < version);
        part.ages.get(at).copied().unwrap_or_default()
    };
    parts.iter().map(age).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::search::tests::publications;

    const HOUR: Duration = Duration::from_secs(3600);

    fn histories() -> impl Strategy<Value = Vec<PartHistory>> {
        let part = publications().prop_flat_map(|mut publications| {
            // The newest one is never removed.
            let last = publications.last_mut().unwrap();
            let whole =
                lodestore_store::follow::Coverage::new(last.version, last.version, Vec::new());
            last.coverage.get_or_insert(whole);
            let n = publications.len();
            prop::collection::vec(0u32..20, n).prop_map(move |mut hours| {
                // Later ones are younger.
                hours.sort_by(|a, b| b.cmp(a));
                let ages = hours.into_iter().map(|it| it * HOUR).collect();
                PartHistory {
                    part: PartId(0),
                    publications: publications.clone(),
                    ages,
                    commits: BTreeMap::new(),
                }
            })
        });
        prop::collection::vec(part, 1..4)
    }

    fn holds(seen: &Seen, version: u32) -> bool {
        seen.coverage.as_ref().is_some_and(|it| it.has(version))
    }

    /// Returns the complete versions that readers of the newest one have found, the newest first:
    /// up to each version that is published.
    fn complete(parts: &[PartHistory]) -> Vec<u32> {
        let is_complete = |version: &u32| {
            parts.iter().all(|part| part.publications.iter().any(|it| holds(it, *version)))
        };
        let published = parts.iter().flat_map(|part| &part.publications).map(|it| it.version);
        let mut found: Vec<u32> =
            published.filter_map(|it| (0..=it).rev().find(is_complete)).collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.dedup();
        found
    }

    /// Returns whether a reader may need a publication, by the rules one after the other.
    fn is_needed(parts: &[PartHistory], part: &PartHistory, at: usize, keep: &Keep) -> bool {
        let (it, complete) = (&part.publications[at], complete(parts));
        if at + 1 == part.publications.len()
            || part.ages[at + 1] <= keep.grace
            || complete.first().is_none_or(|newest| it.version > *newest)
        {
            return true;
        }
        let is_source = |version: &u32| {
            let holders = part.publications.iter().filter(|it| holds(it, *version));
            let source = holders.min_by_key(|it| (it.version, std::cmp::Reverse(it.sequence)));
            source.is_some_and(|source| source.sequence == it.sequence)
        };
        let was_newest_lately = |at: usize| {
            let Some(newer) = at.checked_sub(1).map(|at| complete[at]) else { return true };
            let first = |part: &PartHistory| {
                let all = part.publications.iter().zip(&part.ages);
                all.filter(|(it, _)| it.version >= newer).map(|(_, age)| *age).max().unwrap()
            };
            parts.iter().map(first).min().unwrap() <= keep.grace
        };
        let mut kept: Vec<u32> = keep.pinned.iter().copied().collect();
        for (at, version) in complete.iter().enumerate() {
            if at < keep.n_versions.max(1) || was_newest_lately(at) {
                kept.push(*version);
            }
        }
        kept.iter().any(is_source)
    }

    proptest! {
        #[test]
        fn exactly_the_publications_that_no_reader_needs_are_removed(
            parts in histories(), n_versions in 0usize..4,
            pinned in prop::collection::btree_set(1u32..9, 0..2), grace in 0u32..12,
        ) {
            let keep = Keep { n_versions, pinned, grace: grace * HOUR };
            let removed = removed_publications(&parts, &keep);
            for (part, removed) in parts.iter().zip(removed) {
                for (at, it) in part.publications.iter().enumerate() {
                    let is_live = it.coverage.is_some();
                    let expected = is_live && !is_needed(&parts, part, at, &keep);
                    prop_assert_eq!(removed.contains(&it.sequence), expected, "{:?}", it);
                }
            }
        }
    }

    #[test]
    fn a_version_that_one_partition_lacks_is_not_counted() {
        let whole = |sequence, version| Seen {
            sequence,
            version,
            coverage: Some(lodestore_store::follow::Coverage::new(version, version, Vec::new())),
        };
        let part = |versions: &[u32]| PartHistory {
            commits: BTreeMap::new(),
            part: PartId(0),
            publications: (1..).zip(versions).map(|(at, version)| whole(at, *version)).collect(),
            ages: (1..=versions.len() as u32).rev().map(|age| age * 100 * HOUR).collect(),
        };
        let parts = vec![part(&[1, 2, 3]), part(&[1, 2])];
        let keep = Keep { n_versions: 1, pinned: BTreeSet::new(), grace: GRACE };
        let removed = removed_publications(&parts, &keep);
        assert_eq!(removed, [vec![1], vec![1]], "version 2 is the newest complete one");
        let keep = Keep { pinned: BTreeSet::from([1]), ..keep };
        assert_eq!(removed_publications(&parts, &keep), vec![Vec::<u64>::new(); 2]);
    }

    #[test]
    fn a_version_of_two_commits_is_not_counted() {
        let of_2 = CommitId::draw();
        let part = |of_3: CommitId| PartHistory {
            part: PartId(0),
            publications: (1..=3)
                .map(|version| Seen {
                    sequence: version.into(),
                    version,
                    coverage: Some(lodestore_store::follow::Coverage::new(
                        version,
                        version,
                        Vec::new(),
                    )),
                })
                .collect(),
            ages: vec![300 * HOUR, 200 * HOUR, 100 * HOUR],
            commits: BTreeMap::from([(2, of_2), (3, of_3)]),
        };
        let keep = Keep { n_versions: 1, pinned: BTreeSet::new(), grace: GRACE };
        let (a, b) = (CommitId::draw(), CommitId::draw());
        let removed = removed_publications(&[part(a), part(b)], &keep);
        assert_eq!(removed, [vec![1], vec![1]], "version 2 is the newest complete one");
        let removed = removed_publications(&[part(a), part(a)], &keep);
        assert_eq!(removed, [vec![1, 2], vec![1, 2]]);
    }

    /// A reader of the version before may be midway, whenever its publications were replaced.
    #[test]
    fn a_version_stays_for_the_grace_period_after_another_is_complete() {
        let whole = |sequence, version| Seen {
            sequence,
            version,
            coverage: Some(lodestore_store::follow::Coverage::new(version, version, Vec::new())),
        };
        let part = |hours: [u32; 2]| PartHistory {
            commits: BTreeMap::new(),
            part: PartId(0),
            publications: vec![whole(1, 1), whole(2, 2)],
            ages: hours.map(|age| age * HOUR).to_vec(),
        };
        let keep = Keep { n_versions: 1, pinned: BTreeSet::new(), grace: GRACE };
        let parts = [part([500, 400]), part([500, 1])];
        assert_eq!(removed_publications(&parts, &keep), vec![Vec::<u64>::new(); 2]);
        let parts = [part([500, 400]), part([500, 25])];
        assert_eq!(removed_publications(&parts, &keep), [vec![1], vec![1]]);
    }
}
