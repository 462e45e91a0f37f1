//! Cuts: versions that every writer of a graph publishes, without a word between the writers.
//!
//! A writer publishes one version of all of its partitions per round. Where one writer has all
//! partitions, any version will do. Several writers begin their rounds at different versions, and
//! have to choose the same ones. Each chooses, of the versions since its last choice, the multiple
//! of the highest power of two. A writer whose rounds take fewer than 2^k commits so chooses every
//! multiple of 2^k in the first round that begins after it: no other multiple of 2^k is among the
//! versions since its last choice. The stride is that of the slowest writer. A round that takes
//! longer has a longer stride, without a setting.
//!
//! Folds leave the next cut readable: layers up to it and layers after it stay apart.

/// Returns the multiple of the highest power of two among the versions after `after` and up to
/// `newest`, the newest of several; `None` without such a version.
#[must_use]
pub fn next_cut(after: u32, newest: u32) -> Option<u32> {
    let multiple = |shift: u32| newest >> shift << shift;
    (0..u32::BITS).rev().map(multiple).find(|version| *version > after)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::choose_deltas;
    use super::super::fold::{Fold, choose_fold};
    use super::*;
    use crate::follow::Coverage;

    proptest! {
        #[test]
        fn a_cut_has_the_most_trailing_zeros(after in 0u32..500, n_versions in 0u32..300) {
            let newest = after + n_versions;
            let naive = (after + 1..=newest).max_by_key(|it| (it.trailing_zeros(), *it));
            prop_assert_eq!(next_cut(after, newest), naive);
        }
    }

    #[test]
    fn cuts_end_at_the_last_number() {
        assert_eq!(next_cut(0, u32::MAX), Some(1 << 31));
        assert_eq!(next_cut(u32::MAX - 1, u32::MAX), Some(u32::MAX));
        assert_eq!(next_cut(u32::MAX, 7), None);
        assert_eq!(next_cut(0, 0), None);
    }

    /// The way in which writers choose the versions that they publish.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Choice {
        /// Each partition at its newest version, as its turn comes: the way before cuts.
        NewestOfPartition,
        /// One version per round.
        Cuts,
    }

    /// A delta: first version, version, rows.
    type Delta = (u32, u32, u64);

    /// A partition with one tensor.
    #[derive(Default)]
    struct Part {
        deltas: Vec<Delta>,
        /// Publications: the version of each, and the versions that it holds.
        published: Vec<(u32, Coverage)>,
    }

    /// A server that publishes some of the partitions, one after the other.
    struct Writer {
        parts: Vec<usize>,
        /// Position of the partition whose turn it is.
        turn: usize,
        /// Ticks that a publication takes.
        pace: u32,
        /// The version of this round with the layers of each partition, which are pinned.
        pinned: Option<(u32, Vec<Vec<Delta>>)>,
        last_cut: u32,
    }

    struct Simulation {
        choice: Choice,
        parts: Vec<Part>,
        writers: Vec<Writer>,
        newest: u32,
        complete: u32,
    }

    impl Part {
        fn commit(&mut self, version: u32, n_rows: u64, kept: Option<u32>) {
            self.deltas.push((version, version, n_rows));
            while self.fold(kept) {}
        }

        /// Folds as `GraphHandle::compact` does.
        fn fold(&mut self, kept: Option<u32>) -> bool {
            let sizes: Vec<u64> = self.deltas.iter().map(|it| it.2).collect();
            let n_older = kept
                .map_or(0, |kept| self.deltas.partition_point(|(_, version, _)| *version <= kept));
            let newer = choose_deltas(&sizes[n_older..]);
            let newer = newer.map(|it| it.start + n_older..it.end + n_older);
            let older = || {
                choose_fold(1 << 40, &sizes[..n_older]).map(|fold| match fold {
                    Fold::All => panic!("the base is large"),
                    Fold::Deltas(range) => range,
                })
            };
            let Some(range) = newer.or_else(older) else { return false };
            let n_rows = sizes[range.clone()].iter().sum();
            let folded = (self.deltas[range.start].0, self.deltas[range.end - 1].1, n_rows);
            self.deltas.splice(range, [folded]);
            true
        }

        fn layers_at(&self, version: u32) -> Option<Vec<Delta>> {
            let n = self.deltas.partition_point(|(_, last, _)| *last <= version);
            let is_split = self.deltas.get(n).is_some_and(|(first, ..)| *first <= version);
            (!is_split).then(|| self.deltas[..n].to_vec())
        }

        fn publish(&mut self, version: u32, layers: &[Delta]) {
            let folded = layers.iter().filter(|(first, last, _)| first < last);
            let folded = folded.map(|(first, last, _)| (*first, *last)).collect();
            self.published.push((version, Coverage::new(1, version, folded)));
        }
    }

    impl Simulation {
        fn new(choice: Choice, paces: &[u32], n_parts: usize) -> Self {
            let writer = |(at, &pace): (usize, &u32)| Writer {
                parts: (0..n_parts).filter(|part| part % paces.len() == at).collect(),
                turn: 0,
                pace,
                pinned: None,
                last_cut: 1,
            };
            let writers = paces.iter().enumerate().map(writer).collect();
            let parts = (0..n_parts).map(|_| Part::default()).collect();
            Self { choice, parts, writers, newest: 1, complete: 1 }
        }

        /// Returns the version that folds of a partition leave readable.
        fn kept(&self, part: usize) -> Option<u32> {
            let writer = self.writers.iter().find(|it| it.parts.contains(&part)).unwrap();
            let is_kept = self.choice == Choice::Cuts && self.writers.len() > 1;
            next_cut(writer.last_cut, self.newest).filter(|_| is_kept)
        }

        fn commit(&mut self, seed: &mut u64) {
            self.newest += 1;
            for part in 0..self.parts.len() {
                *seed = lodestore_graph::splitmix64(*seed);
                let kept = self.kept(part);
                self.parts[part].commit(self.newest, 1 + *seed % 1000, kept);
            }
        }

        fn publish(&mut self, writer: usize) {
            let is_alone = self.writers.len() == 1;
            let writer = &mut self.writers[writer];
            let part = writer.parts[writer.turn];
            if self.choice == Choice::NewestOfPartition {
                let layers = self.parts[part].deltas.clone();
                self.parts[part].publish(self.newest, &layers);
                writer.turn = (writer.turn + 1) % writer.parts.len();
                return;
            }
            if writer.pinned.is_none() {
                let pin = |version: u32| {
                    let layers =
                        writer.parts.iter().map(|part| self.parts[*part].layers_at(version));
                    Some((version, layers.collect::<Option<Vec<_>>>()?))
                };
                let mut cut = next_cut(writer.last_cut, self.newest).filter(|_| !is_alone);
                let mut pinned = cut.and_then(pin);
                while let (Some(version), None) = (cut, &pinned) {
                    cut = next_cut(version, self.newest);
                    pinned = cut.and_then(pin);
                }
                writer.pinned = pinned.or_else(|| pin(self.newest));
                writer.last_cut = writer.pinned.as_ref().unwrap().0;
            }
            let (version, layers) = writer.pinned.as_ref().unwrap();
            self.parts[part].publish(*version, &layers[writer.turn]);
            writer.turn = (writer.turn + 1) % writer.parts.len();
            if writer.turn == 0 {
                writer.pinned = None;
            }
        }

        /// Finds the newest complete version, and forgets the publications before it.
        fn look(&mut self) {
            let has = |part: &Part, version| part.published.iter().any(|(_, it)| it.has(version));
            let candidates = (self.complete + 1..=self.newest).rev();
            let found = candidates.into_iter().find(|it| self.parts.iter().all(|p| has(p, *it)));
            let Some(found) = found else { return };
            self.complete = found;
            self.parts
                .iter_mut()
                .for_each(|p| p.published.retain(|(version, _)| *version >= found));
        }

        /// Runs for a number of rounds of the slowest writer, with as many commits in each as
        /// given. Returns the largest lag of the newest complete version, in commits, once two
        /// rounds are over.
        fn run(&mut self, n_rounds: u32, commits: u32, seed: u64) -> u32 {
            let mut seed = seed;
            let of_round = |it: &Writer| it.pace * it.parts.len() as u32;
            let ticks = self.writers.iter().map(of_round).max().unwrap();
            let (mut worst, mut n_commits) = (0, 0);
            for tick in 1..=n_rounds * ticks {
                while n_commits * ticks < tick * commits {
                    self.commit(&mut seed);
                    n_commits += 1;
                }
                for writer in 0..self.writers.len() {
                    if tick % self.writers[writer].pace == 0 {
                        self.publish(writer);
                    }
                }
                self.look();
                if tick > 6 * ticks {
                    worst = worst.max(self.newest - self.complete);
                }
            }
            worst
        }
    }

    #[test]
    fn the_newest_complete_version_of_one_writer_is_at_most_two_rounds_old() {
        for n_parts in [1, 8, 64] {
            for commits in [1, 3, 8, 64] {
                let mut cuts = Simulation::new(Choice::Cuts, &[1], n_parts);
                let lag = cuts.run(40, commits, 7);
                assert!(lag <= 2 * commits, "{n_parts} partitions, {commits} commits: {lag}");
            }
        }
    }

    /// What cuts are for: without them folds leave no version that all partitions have published.
    #[test]
    fn partitions_that_are_published_at_their_newest_versions_complete_none() {
        let mut newest = Simulation::new(Choice::NewestOfPartition, &[1], 8);
        let lag = newest.run(70, 8, 7);
        assert!(lag > 100, "{lag}");
    }

    #[test]
    fn the_newest_complete_version_of_several_writers_is_at_most_a_stride_and_two_rounds_old() {
        for (n_parts, paces) in
            [(8, &[1, 1][..]), (8, &[1, 2, 3, 2]), (64, &[1, 5, 2, 2, 3, 1, 1, 4])]
        {
            for commits in [1, 3, 8, 64] {
                let mut cuts = Simulation::new(Choice::Cuts, paces, n_parts);
                let lag = cuts.run(40, commits, 11);
                let stride = (commits + 1).next_power_of_two();
                let bound = 2 * commits + stride;
                assert!(lag <= bound, "{n_parts} partitions, {paces:?}, {commits} commits: {lag}");
            }
        }
    }

    #[test]
    fn layers_stay_few_while_nothing_is_published() {
        let mut part = Part::default();
        let (mut seed, mut kept) = (3, BTreeSet::new());
        for version in 2..2000 {
            seed = lodestore_graph::splitmix64(seed);
            let cut = next_cut(1, version);
            kept.extend(cut);
            part.commit(version, 1 + seed % 1000, cut);
            assert!(part.deltas.len() <= 48, "{:?}", part.deltas);
        }
        assert!(part.layers_at(1024).is_some(), "the cut can be read");
        assert_eq!(kept.len(), 10, "a power of two after the other");
    }
}
