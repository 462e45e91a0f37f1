//! Some of many, each set equally likely.

use crate::sampler::stream::RandomStream;

/// Floyd's algorithm F2 (Bentley and Floyd 1987): one draw per element chosen, whatever the length
/// of the list.
#[derive(Default)]
pub(super) struct Choice {
    /// One bit per position of the longest list seen; all clear between calls.
    taken: Vec<u64>,
}

impl Choice {
    /// Fills `positions`, at most `len`, with distinct numbers below `len`.
    #[inline]
    pub(super) fn fill(&mut self, positions: &mut [u32], len: u32, mut stream: RandomStream) {
        let n_words = len.div_ceil(64) as usize;
        if self.taken.len() < n_words {
            self.taken.resize(n_words, 0);
        }
        let first = len - positions.len() as u32;
        for (last, position) in (first..len).zip(positions.iter_mut()) {
            let drawn = stream.below(last + 1);
            *position = if self.is_taken(drawn) { last } else { drawn };
            self.taken[*position as usize / 64] |= 1 << (*position % 64);
        }
        for &position in &*positions {
            self.taken[position as usize / 64] = 0;
        }
    }

    #[inline]
    fn is_taken(&self, position: u32) -> bool {
        self.taken[position as usize / 64] >> (position % 64) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn choose(choice: &mut Choice, list: &[u32], n: u32, key: u64) -> Vec<u32> {
        let mut positions = vec![u32::MAX; n as usize];
        choice.fill(&mut positions, list.len() as u32, RandomStream::new(key));
        positions.into_iter().map(|position| list[position as usize]).collect()
    }

    #[test]
    fn all_pairs_of_five_are_equally_likely() {
        const DRAWS: u32 = 50_000;
        let mut counts = std::collections::BTreeMap::new();
        let mut choice = Choice::default();
        for key in 0..u64::from(DRAWS) {
            let mut pair = choose(&mut choice, &[0, 1, 2, 3, 4], 2, key * 77);
            pair.sort_unstable();
            *counts.entry(pair).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 10);
        // Chi-square with 9 degrees of freedom: above 27.9 once in 1000.
        let expected = f64::from(DRAWS / 10);
        let chi = counts.values().map(|&n| (f64::from(n) - expected).powi(2) / expected);
        assert!(chi.sum::<f64>() < 27.9, "{counts:?}");
    }

    proptest! {
        #[test]
        fn takes_distinct_positions_as_a_plain_set_would(
            len in 1u32..300,
            share in 0.0f64..=1.0,
            key: u64,
        ) {
            let n = (f64::from(len) * share) as u32;
            let list: Vec<u32> = (0..len).map(|i| i * 3).collect();
            // Marks of a longer list before must not show.
            let mut choice = Choice::default();
            choose(&mut choice, &[0; 400], 200, key);
            let chosen = choose(&mut choice, &list, n, key);

            let (mut naive, mut stream) = (Vec::new(), RandomStream::new(key));
            for last in len - n..len {
                let drawn = stream.below(last + 1) * 3;
                naive.push(if naive.contains(&drawn) { last * 3 } else { drawn });
            }
            prop_assert_eq!(&chosen, &naive);
            prop_assert_eq!(chosen.into_iter().collect::<HashSet<_>>().len(), n as usize);
        }
    }
}
