//! The candidates that are missed most.

use std::cmp::Reverse;

use super::{Rest, Scores};

/// Misses that are counted together at first: this many or more.
const MANY_MISSES: u8 = u8::MAX - 1;

/// Higher is better; the lower the better are rank and so the id.
type Key = (u32, u64, u32, Reverse<u32>);

impl Scores {
    /// Ranks of the best `n` candidates that are not resident: first those that whole misses decide.
    ///
    /// What a round costs is divided among few batches, so it must not wait for memory: one pass
    /// over the counts in their order, one over a byte for each, and comparisons of keys that lie
    /// side by side for those alone that have as many misses as the last one in.
    pub(super) fn best(&self, n: usize) -> Vec<u32> {
        let mut n_with = [0usize; u8::MAX as usize + 1];
        // Misses and one; 0: not to be had.
        let levels = (0..self.ids.len()).map(|rank| {
            let count = self.counts[self.place(rank)];
            let level = (count.n_misses().min(u32::from(MANY_MISSES)) + 1) as u8;
            let level = if count.is_outside() { level } else { 0 };
            n_with[usize::from(level)] += 1;
            level
        });
        let levels: Vec<u8> = levels.collect();
        let (last_level, n_better) = last_level(&n_with, n);
        let mut best = Vec::with_capacity(n_better);
        let mut contenders = Contenders::new(n - n_better);
        for (rank, &level) in (0u32..).zip(&levels) {
            if level == last_level {
                contenders.offer(self.key(rank));
            } else if level > last_level {
                best.push(rank);
            }
        }
        best.extend(contenders.best().map(|(.., Reverse(rank))| rank));
        best
    }

    fn key(&self, rank: u32) -> Key {
        let place = self.place(rank as usize);
        let Rest { fraction_log, degree, .. } = self.rests[place];
        (self.counts[place].n_misses(), in_order(fraction_log), degree, Reverse(rank))
    }
}

/// The best `n` of the keys offered so far, and some others.
struct Contenders {
    keys: Vec<Key>,
    n: usize,
    /// `n` keys are above this one, so that most that come after it need not be kept.
    floor: Option<Key>,
}

impl Contenders {
    /// More keys than are wanted, before those that are not wanted are dropped.
    const N_SPARE: usize = 1 << 12;

    fn new(n: usize) -> Self {
        Self { keys: Vec::new(), n, floor: None }
    }

    #[inline]
    fn offer(&mut self, key: Key) {
        if self.n > 0 && self.floor.is_none_or(|floor| key > floor) {
            self.keys.push(key);
            if self.keys.len() > 2 * self.n + Self::N_SPARE {
                self.drop_worst();
            }
        }
    }

    fn drop_worst(&mut self) {
        if self.n < self.keys.len() {
            let (_, floor, _) = self.keys.select_nth_unstable_by(self.n, |a, b| b.cmp(a));
            self.floor = Some(*floor);
            self.keys.truncate(self.n);
        }
    }

    fn best(mut self) -> impl Iterator<Item = Key> {
        self.drop_worst();
        self.keys.into_iter()
    }
}

/// The level, at least 1, among whose candidates those to take must be chosen, and how many are
/// above it.
fn last_level(n_with: &[usize], n: usize) -> (u8, usize) {
    let mut n_better = 0;
    for level in (2..=u8::MAX).rev() {
        let n_here = n_with[usize::from(level)];
        if n_better + n_here >= n {
            return (level, n_better);
        }
        n_better += n_here;
    }
    (1, n_better)
}

/// A number whose order is that of the float: [`f64::total_cmp`]'s, as a key.
pub(in super::super) fn in_order(float: f64) -> u64 {
    let bits = float.to_bits();
    let is_negative = (bits.cast_signed() >> 63).cast_unsigned();
    bits ^ (is_negative | 1 << 63)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_are_ordered_as_floats_are(a in any::<f64>(), b in any::<f64>()) {
            prop_assert_eq!(in_order(a).cmp(&in_order(b)), a.total_cmp(&b));
        }

        #[test]
        fn contenders_are_the_best_of_all(
            misses in prop::collection::vec(0u32..50, 0..30_000), n in 0usize..300,
        ) {
            let keys = (0u32..).zip(&misses).map(|(rank, &misses)| (misses, 7, 0, Reverse(rank)));
            let mut keys: Vec<Key> = keys.collect();
            let mut contenders = Contenders::new(n);
            keys.iter().for_each(|&key| contenders.offer(key));
            let mut best: Vec<Key> = contenders.best().collect();
            best.sort_unstable();
            keys.sort_unstable();
            prop_assert_eq!(&best[..], &keys[keys.len() - n.min(keys.len())..]);
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
