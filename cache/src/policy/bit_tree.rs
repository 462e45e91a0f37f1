//! A set of small numbers that knows its highest.

/// A set of small numbers that finds the highest below a bound. It has words of bits, and over them
/// words with a bit for each word that is not 0.
pub(super) struct BitTree {
    /// The numbers first; each level has a bit per word of the one before.
    levels: Vec<Vec<u64>>,
}

impl BitTree {
    fn level_words(n: u32) -> impl Iterator<Item = usize> {
        let words = |n: usize| n.div_ceil(64).max(1);
        std::iter::successors(Some(words(n as usize)), move |&n| (n > 1).then(|| words(n)))
    }

    pub(super) fn planned_bytes(n: u32) -> usize {
        Self::level_words(n).sum::<usize>() * size_of::<u64>()
    }

    pub(super) fn new(n: u32) -> Self {
        Self { levels: Self::level_words(n).map(|n_words| vec![0; n_words]).collect() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.levels.iter().map(|level| size_of_val(level.as_slice())).sum()
    }

    #[inline]
    pub(super) fn set(&mut self, number: u32) {
        let mut at = number as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let was = *word;
            *word |= 1 << (at % 64);
            if was != 0 {
                break;
            }
            at /= 64;
        }
    }

    #[inline]
    pub(super) fn clear(&mut self, number: u32) {
        let mut at = number as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                break;
            }
            at /= 64;
        }
    }

    /// Returns the highest number in the set that is at most `bound`.
    #[inline]
    pub(super) fn last_up_to(&self, bound: u32) -> Option<u32> {
        let (mut at, mut mask) = (bound as usize, bits_up_to(bound));
        let height = self.levels.iter().position(|level| {
            let found = level[at / 64] & mask != 0;
            if !found {
                // One level up: the words before this one.
                at /= 64;
                mask = bits_up_to(at as u32) >> 1;
            }
            found
        })?;
        let highest = |word: u64| 63 - word.leading_zeros() as usize;
        let word = at / 64;
        let mut number = word * 64 + highest(self.levels[height][word] & mask);
        for level in self.levels[..height].iter().rev() {
            number = number * 64 + highest(level[number]);
        }
        Some(number as u32)
    }
}

/// Returns the bits of a word up to that of a number.
fn bits_up_to(number: u32) -> u64 {
    u64::MAX >> (63 - number % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_bit_tree_is_a_set(
            n in prop::sample::select(vec![1u32, 63, 64, 65, 4096, 4097, 300_000]),
            toggles in prop::collection::vec((any::<u32>(), any::<u32>()), 0..300),
        ) {
            let mut tree = BitTree::new(n);
            let mut naive = BTreeSet::new();
            for (number, bound) in toggles {
                let (number, bound) = (number % n, bound % n);
                if naive.remove(&number) {
                    tree.clear(number);
                } else {
                    naive.insert(number);
                    tree.set(number);
                }
                for bound in [bound, number, n - 1, 0] {
                    let last = naive.range(..=bound).next_back().copied();
                    prop_assert_eq!(tree.last_up_to(bound), last);
                }
            }
            prop_assert_eq!(tree.bytes(), BitTree::planned_bytes(n));
        }
    }
}
