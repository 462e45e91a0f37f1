//! Random numbers by counter: the same key and counter give the same number on any thread.

use lodestore_graph::splitmix64;

/// Positions whose numbers are made at a time.
const LANES_PER_BLOCK: usize = 64;

/// A stream of random numbers that is a function of its seed and of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRandom {
    seed: u64,
}

impl CounterRandom {
    /// Returns the stream `stream` of `seed`; different streams are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { seed: splitmix64(splitmix64(seed) ^ stream) }
    }

    /// Returns number `counter` of the stream, as 64 uniform bits.
    pub fn bits(self, counter: u64) -> u64 {
        splitmix64(self.seed ^ counter.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns number `counter` of the stream, uniform in [0, 1) with 24 bits.
    pub fn unit(self, counter: u64) -> f32 {
        (self.bits(counter) >> 40) as f32 / (1u32 << 24) as f32
    }

    /// Returns the stream `stream` within this one; different streams are independent.
    pub(crate) fn substream(self, stream: u64) -> Self {
        Self { seed: splitmix64(self.seed.rotate_left(32) ^ splitmix64(stream)) }
    }

    /// Returns the 16 bits that [`CounterRandom::for_each_lane`] has for position `at`.
    pub(crate) fn lane(self, at: u64) -> u16 {
        (self.bits(at / 4) >> (16 * (at % 4))) as u16
    }

    /// Calls `f` with each of `values` and 16 uniform bits for it, the same for the same position.
    pub(crate) fn for_each_lane(self, values: &mut [f32], mut f: impl FnMut(&mut f32, u16)) {
        // All numbers of a block first: what `f` does is then a loop of its own.
        let mut numbers = [0u64; LANES_PER_BLOCK / 4];
        for (block, values) in (0u64..).zip(values.chunks_mut(LANES_PER_BLOCK)) {
            let first = block * numbers.len() as u64;
            let used = numbers[..values.len().div_ceil(4)].iter_mut();
            (first..).zip(used).for_each(|(at, number)| *number = self.bits(at).to_le());
            let lanes: &[u16] = bytemuck::cast_slice(&numbers);
            values.iter_mut().zip(lanes).for_each(|(value, lane)| f(value, u16::from_le(*lane)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_is_uniform_and_streams_differ() {
        let (a, b) = (CounterRandom::new(7, 0), CounterRandom::new(7, 1));
        let n = 100_000u64;
        let mean = (0..n).map(|i| f64::from(a.unit(i))).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        let covariance = (0..n)
            .map(|i| (f64::from(a.unit(i)) - 0.5) * (f64::from(b.unit(i)) - 0.5))
            .sum::<f64>();
        assert!((covariance / n as f64).abs() < 0.002, "{covariance}");
        assert!((0..n).all(|i| (0.0..1.0).contains(&a.unit(i))));
    }

    #[test]
    fn a_lane_is_that_of_its_position() {
        let random = CounterRandom::new(7, 0);
        let mut values: Vec<f32> = (0..203u8).map(f32::from).collect();
        random.for_each_lane(&mut values, |value, bits| {
            assert_eq!(random.lane(*value as u64), bits);
        });
    }
}
