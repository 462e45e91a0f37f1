//! Finding publications by their keys: the newest one, and the newest version that is complete.
//!
//! Keys of a partition are 1, 2, 3, … without a gap, so that no list is needed, which may be late.

use lodestore_store::follow::Coverage;

use crate::publication::Published;

/// The search for the newest publication of a partition: by doubling, then by halving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewestSearch {
    /// It is known to be there; 0 before the first.
    there: u64,
    /// It is known not to be there, once one is.
    absent: Option<u64>,
    step: u64,
}

impl NewestSearch {
    /// Begins behind a publication that is known to be there, or behind 0.
    pub(crate) fn new(there: u64) -> Self {
        Self { there, absent: None, step: 1 }
    }

    /// Returns the key to look at next; `None` at the end.
    pub(crate) fn next(&self) -> Option<u64> {
        match self.absent {
            // No publication has the last number.
            None => Some(self.there.saturating_add(self.step)).filter(|it| *it < u64::MAX),
            Some(absent) if absent - self.there > 1 => Some(self.there + (absent - self.there) / 2),
            Some(_) => None,
        }
    }

    /// Takes whether the key of [`NewestSearch::next`] is there.
    pub(crate) fn take(&mut self, is_there: bool) {
        let Some(looked_at) = self.next() else { return };
        if is_there {
            self.there = looked_at;
            self.step = self.step.saturating_mul(2);
        } else {
            self.absent = Some(looked_at);
        }
    }

    /// Returns the newest one that is known to be there; 0 without any.
    pub(crate) fn newest(&self) -> u64 {
        self.there
    }
}

/// A publication as the search sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) sequence: u64,
    pub(crate) version: u32,
    /// The versions that its files hold; `None` for one that was removed.
    pub(crate) coverage: Option<Coverage>,
}

impl Seen {
    pub(crate) fn new(sequence: u64, published: &Published) -> Self {
        let coverage = published.live().map(|live| live.manifest.coverage());
        Self { sequence, version: published.version(), coverage }
    }

    fn highest_up_to(&self, version: u32) -> Option<u32> {
        self.coverage.as_ref()?.highest_up_to(version)
    }
}

/// Returns the highest version up to `version` that one of these publications, ascending, holds.
pub(crate) fn highest_up_to(ascending: &[Seen], version: u32) -> Option<u32> {
    let (before, from) =
        ascending.split_at(ascending.partition_point(|seen| seen.version < version));
    // Of those before, the last one that is there holds its own.
    let mut highest = before.iter().rev().find(|seen| seen.coverage.is_some()).map(|it| it.version);
    for seen in from {
        highest = highest.max(seen.highest_up_to(version));
        if highest == Some(version) {
            break;
        }
    }
    highest
}

/// Returns the publication that readers of a version take, among those of a partition, ascending.
/// It is the newest with the lowest version of those that hold it.
pub(crate) fn source_of(ascending: &[Seen], version: u32) -> Option<&Seen> {
    let from = ascending.partition_point(|seen| seen.version < version);
    let holds = |seen: &&Seen| seen.highest_up_to(version) == Some(version);
    let mut holders = ascending[from..].iter().filter(holds);
    let first = holders.next()?;
    // Several are of one version where tensors were added, or another writer took over.
    Some(holders.take_while(|it| it.version == first.version).last().unwrap_or(first))
}

/// A publication that a search reads next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Position of the partition.
    pub(crate) at: usize,
    pub(crate) sequence: u64,
}

/// The next requests of the search, or its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Publications of different partitions, none of which waits for another.
    Read(Vec<Wanted>),
    /// The version, and the publication of each partition that holds it.
    Found { version: u32, sequences: Vec<u64> },
    /// The partition at this position has no publication that holds the version that was asked for,
    /// or one that others hold.
    Missing { at: usize },
}

/// The search for the newest version that every partition has published, or for a given one.
///
/// A publication holds the earlier versions too of which it still has the layers. Versions never
/// fall from one publication of a partition to the next.
#[derive(Clone, Debug)]
pub(crate) struct CompleteSearch {
    wanted: Option<u32>,
    /// Later versions are of several commits.
    highest: u32,
    /// The publications that were read of each partition, ascending.
    read: Vec<Vec<Seen>>,
}

impl CompleteSearch {
    /// Begins at the newest publication of each partition.
    pub(crate) fn new(newest: Vec<Seen>, wanted: Option<u32>) -> Self {
        let read = newest.into_iter().map(|seen| vec![seen]).collect();
        Self { wanted, highest: u32::MAX, read }
    }

    /// Looks for a version before one that was found.
    pub(crate) fn reject(&mut self, version: u32) {
        self.highest = version.saturating_sub(1);
    }

    pub(crate) fn next(&self) -> Step {
        let newest = self.read.iter().filter_map(|part| part.last());
        let newest = newest.map(|it| it.version).min().unwrap_or(0).min(self.highest);
        let mut version = self.wanted.unwrap_or(newest);
        loop {
            // Each version before this one needs them too.
            let reads = self.reads_for(version);
            if !reads.is_empty() {
                return Step::Read(reads);
            }
            match self.highest_of_all(version) {
                Ok(highest) if highest == version => break,
                Ok(lower) => version = lower,
                Err(step) => return step,
            }
        }
        let source = |part: &Vec<Seen>| source_of(part, version).map_or(0, |seen| seen.sequence);
        Step::Found { version, sequences: self.read.iter().map(source).collect() }
    }

    /// Returns the next publication of each partition that may hold a version beside those that
    /// were read.
    fn reads_for(&self, version: u32) -> Vec<Wanted> {
        let mut reads = Vec::new();
        for (at, part) in self.read.iter().enumerate() {
            // Those before it may hold a version up to its own.
            if let Some(oldest) = part.first()
                && oldest.sequence > 1
                && (oldest.version > version
                    || oldest.version == version && oldest.coverage.is_none())
            {
                reads.push(Wanted { at, sequence: oldest.sequence - 1 });
            }
        }
        reads
    }

    /// Returns `version` where all partitions hold it, else a version before it that the first one
    /// without it holds.
    fn highest_of_all(&self, version: u32) -> Result<u32, Step> {
        let mut reads = Vec::new();
        for (at, part) in self.read.iter().enumerate() {
            match highest_up_to(part, version) {
                Some(highest) if highest == version => {}
                Some(lower) if self.wanted.is_none() => return Ok(lower),
                // Only removed ones were read so far.
                None if self.wanted.is_none() && part[0].sequence > 1 => {
                    reads.push(Wanted { at, sequence: part[0].sequence - 1 });
                }
                _ => return Err(Step::Missing { at }),
            }
        }
        if reads.is_empty() { Ok(version) } else { Err(Step::Read(reads)) }
    }

    /// Takes a publication that [`CompleteSearch::next`] has asked for.
    pub(crate) fn take(&mut self, at: usize, seen: Seen) {
        self.read[at].insert(0, seen);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_newest_is_found_with_few_looks(newest in 0u64..5000, known in 0u64..5000) {
            let mut search = NewestSearch::new(known.min(newest));
            let mut looks = 0;
            while let Some(key) = search.next() {
                prop_assert!(key > known.min(newest));
                search.take(key <= newest);
                looks += 1;
            }
            prop_assert_eq!(search.newest(), newest);
            prop_assert!(looks <= 2 * 13 + 1, "{} looks", looks);
        }

        #[test]
        fn the_complete_version_is_that_of_the_naive_search(
            parts in prop::collection::vec(publications(), 1..4),
            wanted in prop::option::of(1u32..12),
        ) {
            let newest = parts.iter().map(|part| part.last().unwrap().clone()).collect();
            let mut search = CompleteSearch::new(newest, wanted);
            let (mut n_reads, mut n_rounds) = (0, 0);
            let found = loop {
                match search.next() {
                    Step::Read(reads) => {
                        n_rounds += 1;
                        for Wanted { at, sequence } in reads {
                            n_reads += 1;
                            search.take(at, parts[at][sequence as usize - 1].clone());
                        }
                    }
                    Step::Found { version, sequences } => break Some((version, sequences)),
                    Step::Missing { .. } => break None,
                }
            };
            prop_assert!(n_reads <= parts.iter().map(Vec::len).sum::<usize>());
            prop_assert!(n_rounds <= n_reads);
            prop_assert_eq!(found, naive(&parts, wanted));
        }
    }

    #[test]
    fn partitions_that_are_ahead_are_read_back_in_one_round() {
        let whole = |sequence: u64| {
            let version = sequence as u32;
            Seen { sequence, version, coverage: Some(Coverage::new(version, version, Vec::new())) }
        };
        // The last partition has not published version 3 yet.
        let newest: Vec<Seen> = (0..1000).map(|at| whole(if at == 999 { 2 } else { 3 })).collect();
        let mut search = CompleteSearch::new(newest, None);
        let Step::Read(reads) = search.next() else { panic!("999 partitions are ahead") };
        let expected: Vec<Wanted> = (0..999).map(|at| Wanted { at, sequence: 2 }).collect();
        assert_eq!(reads, expected);
        for Wanted { at, sequence } in reads {
            search.take(at, whole(sequence));
        }
        assert_eq!(search.next(), Step::Found { version: 2, sequences: vec![2; 1000] });
    }

    /// Returns publications of a partition, ascending: versions that never fall, with folded
    /// layers.
    pub(crate) fn publications() -> impl Strategy<Value = Vec<Seen>> {
        let one = (0u32..3, prop::option::weighted(0.8, (0u32..6, 0u32..3, 0u32..3)));
        prop::collection::vec(one, 1..8).prop_map(|steps| {
            let mut version = 1;
            let mut seen = Vec::new();
            for (sequence, (step, layers)) in (1..).zip(steps) {
                version += step;
                let coverage = layers.map(|(depth, after, width)| {
                    let first = version.saturating_sub(after + width).max(1);
                    let folded = vec![(first, (first + width).min(version))];
                    Coverage::new(version.saturating_sub(depth).max(1), version, folded)
                });
                seen.push(Seen { sequence, version, coverage });
            }
            seen
        })
    }

    /// Finds the highest version that each partition holds, and of each the newest publication with
    /// the lowest version among those that hold it.
    fn naive(parts: &[Vec<Seen>], wanted: Option<u32>) -> Option<(u32, Vec<u64>)> {
        let is_wanted = |version: &u32| wanted.is_none_or(|it| it == *version);
        (1..100).rev().filter(is_wanted).find_map(|version| {
            let source = |part: &Vec<Seen>| {
                let holds = |seen: &&Seen| seen.coverage.as_ref().is_some_and(|it| it.has(version));
                let holders = part.iter().filter(holds);
                let best = holders.min_by_key(|it| (it.version, std::cmp::Reverse(it.sequence)));
                best.map(|seen| seen.sequence)
            };
            let sources: Option<Vec<u64>> = parts.iter().map(source).collect();
            Some((version, sources?))
        })
    }
}
