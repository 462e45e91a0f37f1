//! The candidates that are missed most.

use std::cmp::Reverse;

use bytemuck::Pod;

use super::{Replacement, Rest, Scores};
use crate::huge_vec::HugeVec;

/// Misses that are counted together at first: this many or more.
const MANY_MISSES: u8 = u8::MAX - 1;
/// The level of candidates without a whole miss.
const NO_MISS: u8 = 1;

/// Candidates whose scores are prefetched, where these are not adjacent.
const N_AHEAD: usize = 32;

/// Keys that decide among candidates with equally many misses. Higher is better; the lower the
/// better are rank and so the id.
type Tie = (u64, u32, Reverse<u32>);

impl Scores {
    /// Ranks of the best `n` candidates that are not resident and that may replace others: first
    /// those that whole misses decide.
    ///
    /// The cost of a round is divided among few batches, so it must not wait for memory. It takes
    /// one pass over the counts in their order, and two over a byte for each. Adjacent keys are
    /// compared for those alone that have as many misses as the last one in.
    pub(super) fn best(&self, n: usize, replacement: Replacement) -> Vec<u32> {
        let mut n_with = [0usize; u8::MAX as usize + 1];
        // Misses and one; 0 for a row that cannot come.
        let levels = (0..self.ids.len()).map(|rank| {
            self.ask_for(&self.counts, self.ids.get(rank + N_AHEAD).copied());
            let count = self.counts[self.place(rank)];
            let level = (count.n_misses().min(u32::from(MANY_MISSES)) + 1) as u8;
            let level = if count.is_outside() { level } else { 0 };
            n_with[usize::from(level)] += 1;
            level
        });
        let levels: Vec<u8> = levels.collect();
        let (last_level, n_better) = last_level(&n_with, n);
        let mut best = ranks_where(&levels, n_better, |level| level > last_level);
        let n_tied = n_with[usize::from(last_level)];
        let mut tied = ranks_where(&levels, n_tied, |level| level == last_level);
        if last_level == NO_MISS {
            tied.retain(|&rank| self.may_replace_unmissed(rank, replacement));
        }
        let n_left = n - n_better;
        if n_left >= tied.len() {
            best.extend(tied);
        } else if last_level > MANY_MISSES {
            let misses = |tie: &Tie| self.counts[self.place(tie.2.0 as usize)].n_misses();
            let keys = self.ties(&tied).map(|tie| (misses(&tie), tie)).collect();
            best.extend(best_of(keys, n_left).iter().map(|(_, tie)| tie.2.0));
        } else {
            best.extend(best_of(self.ties(&tied).collect(), n_left).iter().map(|tie| tie.2.0));
        }
        best
    }

    /// Returns whether a candidate without a whole miss may replace a victim.
    fn may_replace_unmissed(&self, rank: u32, replacement: Replacement) -> bool {
        match replacement {
            Replacement::Missed => false,
            Replacement::Scored => {
                self.rests[self.place(rank as usize)].fraction_log > f64::NEG_INFINITY
            }
            Replacement::Any => true,
        }
    }

    /// Ranks of the first `n`: halo nodes before others, then by degree, then by id.
    pub(super) fn first(&self, n: usize) -> Vec<u32> {
        let key = |rank: u32| {
            let Rest { degree, halo, .. } = self.rests[self.place(rank as usize)];
            (halo, degree, Reverse(rank))
        };
        let keys = (0..self.ids.len() as u32).map(key).collect();
        best_of(keys, n).into_iter().map(|(_, _, Reverse(rank))| rank).collect()
    }

    fn ties<'a>(&'a self, ranks: &'a [u32]) -> impl Iterator<Item = Tie> + 'a {
        ranks.iter().enumerate().map(|(at, &rank)| {
            let ahead = ranks.get(at + N_AHEAD).map(|&rank| self.ids[rank as usize]);
            self.ask_for(&self.rests, ahead);
            let Rest { fraction_log, degree, .. } = self.rests[self.place(rank as usize)];
            (in_order(fraction_log), degree, Reverse(rank))
        })
    }

    /// Prefetches the score of an id, where those of candidates are not adjacent.
    #[inline]
    fn ask_for<T: Pod>(&self, scores: &HugeVec<T>, id: Option<u32>) {
        if let (Some(id), None) = (id, &self.places) {
            scores.prefetch(id as usize);
        }
    }
}

/// Returns the ranks, `n` of them, whose level is asked for.
fn ranks_where(levels: &[u8], n: usize, is_asked_for: impl Fn(u8) -> bool) -> Vec<u32> {
    // Without a branch, which could not be predicted: one place more takes what is not asked for.
    let mut ranks = vec![0; n + 1];
    let mut n_found = 0;
    for (rank, &level) in (0u32..).zip(levels) {
        ranks[n_found] = rank;
        n_found += usize::from(is_asked_for(level));
    }
    ranks.truncate(n);
    ranks
}

/// Returns the best `n` of the keys, or all.
fn best_of<K: Ord>(mut keys: Vec<K>, n: usize) -> Vec<K> {
    if n < keys.len() {
        keys.select_nth_unstable_by(n, |a, b| b.cmp(a));
        keys.truncate(n);
    }
    keys
}

/// Returns the level, at least [`NO_MISS`], among whose candidates those to take must be chosen,
/// and how many are above it.
fn last_level(n_with: &[usize], n: usize) -> (u8, usize) {
    let mut n_better = 0;
    for level in (NO_MISS + 1..=u8::MAX).rev() {
        let n_here = n_with[usize::from(level)];
        if n_better + n_here >= n {
            return (level, n_better);
        }
        n_better += n_here;
    }
    (NO_MISS, n_better)
}

/// Returns a number whose order is that of the float: [`f64::total_cmp`]'s, as a key.
pub(in super::super) fn in_order(float: f64) -> u64 {
    let bits = float.to_bits();
    let is_negative = (bits.cast_signed() >> 63).cast_unsigned();
    bits ^ (is_negative | 1 << 63)
}

#[cfg(test)]
mod tests {
    use super::super::super::DecaySpec;
    use super::super::{Candidate, RESIDENT, Scoreboard};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_are_ordered_as_floats_are(a in any::<f64>(), b in any::<f64>()) {
            prop_assert_eq!(in_order(a).cmp(&in_order(b)), a.total_cmp(&b));
        }

        /// Beside a sort of all, with counts above and below those that one level holds together.
        #[test]
        fn the_best_are_those_of_a_sort(
            scores in prop::collection::vec((0u32..400, 0u8..4, 0u32..3, any::<u8>()), 0..300),
            n in 0usize..300,
            is_dense: bool,
            replacement in prop::sample::select(vec![
                Replacement::Missed, Replacement::Scored, Replacement::Any,
            ]),
        ) {
            let id = |rank: usize| 3 * rank as u32 + 1;
            let degrees = scores.iter().enumerate();
            let degrees = degrees.map(|(rank, score)| Candidate {
                id: id(rank), degree: score.2, is_halo: score.3 & 8 == 0,
            });
            let scoreboard = if is_dense { Scoreboard::Dense } else { Scoreboard::Compact };
            let candidates = degrees.collect();
            let (gamma, interval) = (0.9, 1);
            let spec = DecaySpec { candidates, gamma, interval, replacement, scoreboard };
            let mut all = Scores::new(9, 1000, &spec).unwrap();
            let mut naive = Vec::new();
            for (rank, &(misses, fraction, degree, flags)) in scores.iter().enumerate() {
                let place = all.place(rank);
                let misses = if flags & 1 == 0 { misses } else { misses / 100 };
                all.counts[place].word |= misses;
                all.rests[place].fraction_log = f64::from(fraction).ln() - 2.0;
                let may_replace = match replacement {
                    Replacement::Missed => misses > 0,
                    Replacement::Scored => misses > 0 || fraction > 0,
                    Replacement::Any => true,
                };
                if flags & 6 == 6 {
                    all.counts[place].word |= RESIDENT;
                } else if may_replace {
                    naive.push((misses, fraction, degree, Reverse(rank as u32)));
                }
            }
            naive.sort_unstable();
            let mut naive: Vec<u32> = naive.iter().rev().take(n).map(|key| key.3.0).collect();
            let mut best = all.best(n, replacement);
            naive.sort_unstable();
            best.sort_unstable();
            prop_assert_eq!(best, naive);
        }
    }

    #[test]
    fn levels_end_where_enough_are_taken() {
        let mut n_with = [0; 256];
        (n_with[1], n_with[3], n_with[255]) = (10, 4, 2);
        for (n, found) in [(0, (255, 0)), (2, (255, 0)), (3, (3, 2)), (6, (3, 2)), (7, (1, 6))] {
            assert_eq!(last_level(&n_with, n), found, "{n}");
        }
        assert_eq!(last_level(&n_with, 99), (1, 6), "all");
    }
}
