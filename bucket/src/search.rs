//! Finding publications by their keys: the newest one, and the newest version that is complete.
//!
//! Keys of a partition are 1, 2, 3, … without a gap, so that no list is needed, which may be late.

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
            None => Some(self.there.saturating_add(self.step)),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) sequence: u64,
    pub(crate) version: u32,
    pub(crate) is_live: bool,
}

/// What the search needs, or its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A publication of the partition at this position.
    Read { at: usize, sequence: u64 },
    /// The version, and the publication of each partition that has it.
    Found { version: u32, sequences: Vec<u64> },
    /// The partition at this position has no publication of the version that was asked for, or none
    /// that others have.
    Missing { at: usize },
}

/// The search for the newest version that every partition has published, or for a given one.
#[derive(Clone, Debug)]
pub(crate) struct CompleteSearch {
    wanted: Option<u32>,
    /// The publications that are looked at.
    now: Vec<Seen>,
}

impl CompleteSearch {
    /// Begins at the newest publication of each partition.
    pub(crate) fn new(newest: Vec<Seen>, wanted: Option<u32>) -> Self {
        Self { wanted, now: newest }
    }

    pub(crate) fn next(&self) -> Step {
        let lowest = self.now.iter().map(|seen| seen.version).min().unwrap_or(0);
        let version = self.wanted.unwrap_or(lowest);
        for (at, seen) in self.now.iter().enumerate() {
            if seen.version == version && seen.is_live {
                continue;
            }
            // One that was removed is stepped over; without a wanted version, earlier ones follow.
            if seen.version < version || seen.sequence <= 1 {
                return Step::Missing { at };
            }
            return Step::Read { at, sequence: seen.sequence - 1 };
        }
        let sequences = self.now.iter().map(|seen| seen.sequence).collect();
        Step::Found { version, sequences }
    }

    /// Takes the publication that [`CompleteSearch::next`] has asked for.
    pub(crate) fn take(&mut self, at: usize, seen: Seen) {
        self.now[at] = seen;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
            parts in prop::collection::vec(
                prop::collection::vec((0u32..3, any::<bool>()), 1..8), 1..4),
            wanted in prop::option::of(1u32..10),
        ) {
            // Versions never fall from one publication to the next.
            let parts: Vec<Vec<Seen>> = parts.into_iter().map(|steps| {
                let mut version = 1;
                (1..).zip(steps).map(|(sequence, (step, is_live))| {
                    version += step;
                    Seen { sequence, version, is_live }
                }).collect()
            }).collect();
            let newest = parts.iter().map(|part| *part.last().unwrap()).collect();
            let mut search = CompleteSearch::new(newest, wanted);
            let found = loop {
                match search.next() {
                    Step::Read { at, sequence } => {
                        search.take(at, parts[at][sequence as usize - 1]);
                    }
                    Step::Found { version, sequences } => break Some((version, sequences)),
                    Step::Missing { .. } => break None,
                }
            };
            prop_assert_eq!(found, naive(&parts, wanted));
        }
    }

    /// Every version, the newest first: of each partition the newest live publication of it.
    fn naive(parts: &[Vec<Seen>], wanted: Option<u32>) -> Option<(u32, Vec<u64>)> {
        let versions: BTreeSet<u32> = parts.iter().flatten().map(|seen| seen.version).collect();
        versions
            .into_iter()
            .rev()
            .filter(|version| wanted.is_none_or(|it| it == *version))
            .find_map(|version| {
                let newest = |part: &Vec<Seen>| {
                    let has = |seen: &&Seen| seen.version == version && seen.is_live;
                    part.iter().rfind(has).map(|seen| seen.sequence)
                };
                let sequences: Option<Vec<u64>> = parts.iter().map(newest).collect();
                Some((version, sequences?))
            })
    }
}
