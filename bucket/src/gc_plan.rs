//! What garbage collection removes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use crate::layout::ChunkId;

/// Time for which a publication that was replaced, and a chunk without a publication, stay unless
/// another is given.
pub const GRACE: Duration = Duration::from_secs(24 * 3600);

/// A publication as garbage collection sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) sequence: u64,
    pub(crate) version: u32,
    /// Since it was written.
    pub(crate) age: Duration,
    /// `None` for one that was removed.
    pub(crate) chunks: Option<Vec<ChunkId>>,
}

/// What is kept beside the newest publications.
#[derive(Clone, Debug)]
pub(crate) struct Keep {
    /// Number of complete versions.
    pub(crate) n_versions: usize,
    pub(crate) pinned: BTreeSet<u32>,
    pub(crate) grace: Duration,
}

/// What is removed of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Garbage {
    /// Publications, ascending, with their versions.
    pub(crate) publications: Vec<(u64, u32)>,
    /// Chunks, in the order of the list.
    pub(crate) chunks: Vec<ChunkId>,
}

/// Returns the publications that go: of each partition all but those that are to be kept.
///
/// `parts` has the publications of each partition, ascending.
pub(crate) fn removed_publications(parts: &[Vec<Candidate>], keep: &Keep) -> Vec<Vec<(u64, u32)>> {
    // The newest live publication of each version, by partition.
    let newest: Vec<BTreeMap<u32, u64>> = parts
        .iter()
        .map(|part| {
            let live = part.iter().filter(|it| it.chunks.is_some());
            live.map(|it| (it.version, it.sequence)).collect()
        })
        .collect();
    let complete = newest.first().into_iter().flat_map(|first| first.keys().rev());
    let complete = complete.filter(|version| newest.iter().all(|it| it.contains_key(version)));
    let complete: Vec<u32> = complete.copied().collect();
    let newest_complete = complete.first().copied();
    let is_kept_version = |version: u32| {
        complete.iter().take(keep.n_versions.max(1)).any(|it| *it == version)
            || keep.pinned.contains(&version)
    };
    let removed = |(part, newest): (&Vec<Candidate>, &BTreeMap<u32, u64>)| {
        let last = part.last().map(|it| it.sequence);
        let is_removed = |(at, it): (usize, &Candidate)| {
            let is_current = newest.get(&it.version) == Some(&it.sequence);
            // Publication of a version that others have not published yet.
            let is_ahead = newest_complete.is_none_or(|version| it.version > version);
            let replaced_for = part.get(at + 1).map_or(Duration::ZERO, |next| next.age);
            let is_kept = Some(it.sequence) == last
                || is_ahead
                || is_current && is_kept_version(it.version)
                || replaced_for <= keep.grace;
            (it.chunks.is_some() && !is_kept).then_some((it.sequence, it.version))
        };
        part.iter().enumerate().filter_map(is_removed).collect()
    };
    parts.iter().zip(&newest).map(removed).collect()
}

/// Returns the chunks of a partition that go with its `removed` publications, among those listed with
/// their ages.
pub(crate) fn removed_chunks(
    part: &[Candidate],
    removed: &[(u64, u32)],
    listed: &[(ChunkId, Duration)],
    grace: Duration,
) -> Vec<ChunkId> {
    let is_removed = |it: &Candidate| removed.iter().any(|(sequence, _)| *sequence == it.sequence);
    let kept = part.iter().filter(|it| !is_removed(it)).filter_map(|it| it.chunks.as_ref());
    let named: HashSet<&ChunkId> = kept.flatten().collect();
    let old = listed.iter().filter(|(chunk, age)| *age > grace && !named.contains(chunk));
    old.map(|(chunk, _)| *chunk).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn parts() -> impl Strategy<Value = Vec<Vec<Candidate>>> {
        let one =
            (0u32..3, 0u32..20, prop::option::weighted(0.8, prop::collection::vec(0u8..9, 0..4)));
        let part = prop::collection::vec(one, 1..8).prop_map(|steps| {
            let mut version = 1;
            let mut part: Vec<Candidate> = (1..)
                .zip(steps)
                .map(|(sequence, (step, age, chunks))| {
                    version += step;
                    let chunks = chunks.map(|it| it.into_iter().map(|id| [id; 32]).collect());
                    Candidate { sequence, version, age: age * HOUR, chunks }
                })
                .collect();
            // Later ones are younger.
            let mut ages: Vec<Duration> = part.iter().map(|it| it.age).collect();
            ages.sort_by(|a, b| b.cmp(a));
            part.iter_mut().zip(ages).for_each(|(it, age)| it.age = age);
            part
        });
        prop::collection::vec(part, 1..4)
    }

    /// Whether a reader may need a publication, by the rules one after the other.
    fn is_needed(parts: &[Vec<Candidate>], at: usize, it: &Candidate, keep: &Keep) -> bool {
        let live = |part: &[Candidate], version| {
            part.iter().rev().find(|it| it.version == version && it.chunks.is_some()).cloned()
        };
        let complete: Vec<u32> = (1..100)
            .rev()
            .filter(|version| parts.iter().all(|part| live(part, *version).is_some()))
            .collect();
        if it.sequence == parts[at].len() as u64 || complete.first().is_none_or(|v| it.version > *v)
        {
            return true;
        }
        let next = &parts[at][it.sequence as usize];
        if next.age <= keep.grace {
            return true;
        }
        let kept: Vec<u32> = complete.iter().take(keep.n_versions.max(1)).copied().collect();
        (kept.contains(&it.version) || keep.pinned.contains(&it.version))
            && live(&parts[at], it.version).as_ref() == Some(it)
    }

    proptest! {
        #[test]
        fn exactly_what_nobody_needs_is_removed(
            parts in parts(), n_versions in 0usize..4, pinned in prop::collection::btree_set(1u32..9, 0..2),
            grace in 0u32..12,
        ) {
            let keep = Keep { n_versions, pinned, grace: grace * HOUR };
            let removed = removed_publications(&parts, &keep);
            for (at, part) in parts.iter().enumerate() {
                for it in part.iter().filter(|it| it.chunks.is_some()) {
                    let is_removed = removed[at].contains(&(it.sequence, it.version));
                    prop_assert_eq!(is_removed, !is_needed(&parts, at, it, &keep), "{:?}", it);
                }
                let listed: Vec<(ChunkId, Duration)> =
                    (0u8..9).map(|id| ([id; 32], u32::from(id) * 2 * HOUR)).collect();
                let gone = removed_chunks(part, &removed[at], &listed, keep.grace);
                for (chunk, age) in listed {
                    let is_named = part.iter().any(|it| {
                        !removed[at].contains(&(it.sequence, it.version))
                            && it.chunks.as_ref().is_some_and(|chunks| chunks.contains(&chunk))
                    });
                    prop_assert_eq!(gone.contains(&chunk), !is_named && age > keep.grace);
                }
            }
        }
    }

    #[test]
    fn a_version_that_one_partition_lacks_is_not_counted() {
        let at = |sequence, version| Candidate {
            sequence,
            version,
            age: (9 - sequence) as u32 * 100 * HOUR,
            chunks: Some(Vec::new()),
        };
        let parts = vec![vec![at(1, 1), at(2, 2), at(3, 3)], vec![at(1, 1), at(2, 2)]];
        let keep = Keep { n_versions: 1, pinned: BTreeSet::new(), grace: GRACE };
        let removed = removed_publications(&parts, &keep);
        assert_eq!(removed, [vec![(1, 1)], vec![(1, 1)]], "version 2 is the newest complete one");
        let keep = Keep { pinned: BTreeSet::from([1]), ..keep };
        assert_eq!(removed_publications(&parts, &keep), [vec![], vec![]]);
    }
}
