//! Seeds and counter-based random streams: what is drawn depends on names, not on order.

use crate::splitmix64::splitmix64;

/// 2⁶⁴ divided by the golden ratio, odd: the step of SplitMix64.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the seed of one mini-batch: BLAKE3 over the run's seed and the batch's place, each a
/// fixed-width little-endian field (RapidGNN, section 4.1). Seeds of different places are
/// unrelated.
#[must_use]
pub fn batch_seed(s0: u64, worker: u32, epoch: u32, batch: u32) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("lodestore 1 seed of a mini-batch");
    hasher.update(&s0.to_le_bytes());
    hasher.update(&worker.to_le_bytes());
    hasher.update(&epoch.to_le_bytes());
    hasher.update(&batch.to_le_bytes());
    first_word(&hasher)
}

/// Returns the seed of the order of the roots in one epoch, over the run's seed and the epoch.
pub(super) fn epoch_seed(s0: u64, epoch: u32) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("lodestore 1 seed of the roots of an epoch");
    hasher.update(&s0.to_le_bytes());
    hasher.update(&epoch.to_le_bytes());
    first_word(&hasher)
}

fn first_word(hasher: &blake3::Hasher) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// A sequence of random words (SplitMix64: Steele, Lea and Flood, OOPSLA 2014); two streams of
/// different keys are unrelated.
#[derive(Clone, Copy)]
pub(super) struct RandomStream {
    state: u64,
}

impl RandomStream {
    pub(super) const fn new(key: u64) -> Self {
        Self { state: key }
    }

    /// Returns the stream named by `name` under this one's key.
    #[inline]
    pub(super) const fn child(self, name: u64) -> Self {
        Self { state: splitmix64(self.state ^ splitmix64(name)) }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        let word = splitmix64(self.state);
        self.state = self.state.wrapping_add(STEP);
        word
    }

    /// Returns a number below `n`, which must not be 0. It is the upper half of a product (Lemire
    /// 2019) without its rejection step, since the bias is below n / 2⁶⁴.
    #[inline]
    pub(super) fn below(&mut self, n: u32) -> u32 {
        debug_assert!(n > 0);
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn seeds_are_pinned_and_differ_in_every_field() {
        assert_eq!(batch_seed(1, 2, 3, 4), 17_538_282_662_810_024_076);
        assert_eq!(epoch_seed(1, 3), 7_816_962_304_387_651_536);
        let seeds: HashSet<u64> = [
            batch_seed(0, 0, 0, 0),
            batch_seed(1, 0, 0, 0),
            batch_seed(0, 1, 0, 0),
            batch_seed(0, 0, 1, 0),
            batch_seed(0, 0, 0, 1),
            epoch_seed(0, 0),
            epoch_seed(1, 0),
            epoch_seed(0, 1),
        ]
        .into();
        assert_eq!(seeds.len(), 8);
    }

    #[test]
    fn draws_are_uniform() {
        const N: u32 = 10;
        const DRAWS: u32 = 100_000;
        let mut counts = [0u32; N as usize];
        for name in 0..u64::from(DRAWS) {
            counts[RandomStream::new(5).child(name).below(N) as usize] += 1;
        }
        // Chi-square with 9 degrees of freedom: above 27.9 once in 1000.
        let expected = f64::from(DRAWS / N);
        let chi = counts.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum::<f64>();
        assert!(chi < 27.9, "{chi} {counts:?}");
    }
}
