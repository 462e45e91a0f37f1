//! A keyed shuffle of `0..n` that needs no table.

use crate::splitmix64::splitmix64;

const N_ROUNDS: usize = 6;

/// A bijection of `0..n` onto itself, by cycle walking (Black and Rogaway, CT-RSA 2002).
///
/// An unbalanced Feistel network over the next power of two, repeated until the value is below `n`.
#[derive(Clone, Debug)]
pub(crate) struct Bijection {
    n: u64,
    right_bits: u32,
    left_mask: u64,
    right_mask: u64,
    keys: [u64; N_ROUNDS],
}

impl Bijection {
    /// Returns the bijection of `key` over `0..n`, for `n` up to 2³².
    pub(crate) fn new(n: u64, key: u64) -> Self {
        // Two bits at least, so that each half has one; the walk takes 4 steps at most on average.
        let bits = (u64::BITS - n.saturating_sub(1).leading_zeros()).max(2);
        let (left_bits, right_bits) = (bits / 2, bits - bits / 2);
        let mut keys = [0; N_ROUNDS];
        for (round, round_key) in (1..).zip(&mut keys) {
            *round_key = splitmix64(key ^ splitmix64(round));
        }
        let (left_mask, right_mask) = ((1 << left_bits) - 1, (1 << right_bits) - 1);
        Self { n, right_bits, left_mask, right_mask, keys }
    }

    /// Returns the image of `x`, which must be below `n`.
    #[inline]
    pub(crate) fn forward(&self, x: u64) -> u64 {
        self.walk(x, |round| round)
    }

    /// Returns the preimage of `y`, which must be below `n`.
    #[inline]
    pub(crate) fn inverse(&self, y: u64) -> u64 {
        // Each round undoes itself, so the way back is the rounds in reverse.
        self.walk(y, |round| N_ROUNDS - 1 - round)
    }

    #[inline]
    fn walk(&self, mut x: u64, round_at: impl Fn(usize) -> usize) -> u64 {
        loop {
            let (mut left, mut right) = (x >> self.right_bits, x & self.right_mask);
            for i in 0..N_ROUNDS {
                let round = round_at(i);
                if round.is_multiple_of(2) {
                    left ^= splitmix64(self.keys[round] ^ right) & self.left_mask;
                } else {
                    right ^= splitmix64(self.keys[round] ^ left) & self.right_mask;
                }
            }
            x = left << self.right_bits | right;
            if x < self.n {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_number_is_hit_once_and_found_again(n in 1u64..600, key: u64) {
            let bijection = Bijection::new(n, key);
            let mut hit = vec![false; n as usize];
            for x in 0..n {
                let y = bijection.forward(x);
                prop_assert!(!std::mem::replace(&mut hit[y as usize], true));
                prop_assert_eq!(bijection.inverse(y), x);
            }
        }

        #[test]
        fn the_largest_ranges_work(x in 0u64..u64::from(u32::MAX), key: u64) {
            let bijection = Bijection::new(u64::from(u32::MAX), key);
            let y = bijection.forward(x);
            prop_assert!(y < u64::from(u32::MAX));
            prop_assert_eq!(bijection.inverse(y), x);
        }
    }

    #[test]
    fn neighbours_are_scattered() {
        let bijection = Bijection::new(100_000, 1);
        let near =
            (0..99_999).filter(|&x| bijection.forward(x).abs_diff(bijection.forward(x + 1)) < 1000);
        let near = near.count();
        assert!((1_700..2_300).contains(&near), "{near} of 99999 stay near, chance says 1990");
    }
}
