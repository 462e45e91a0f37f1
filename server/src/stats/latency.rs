//! Latency histogram of one shard and one kind of request: four buckets per octave.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::add;

/// Number of buckets: four per octave, from below 5 µs to 2^28 µs (4.5 minutes).
pub(crate) const N_BUCKETS: usize = 104;

/// Counts that one shard writes and any thread reads.
#[derive(Debug)]
pub(crate) struct LatencyCounts {
    buckets: [AtomicU64; N_BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for LatencyCounts {
    fn default() -> Self {
        Self { buckets: array::from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }
}

impl LatencyCounts {
    pub(crate) fn record(&self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        add(&self.buckets[bucket_of(us)], 1);
        add(&self.sum_ns, u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn buckets(&self) -> impl Iterator<Item = u64> {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed))
    }

    pub(crate) fn sum_ns(&self) -> u64 {
        self.sum_ns.load(Ordering::Relaxed)
    }
}

/// Returns the bucket of a latency, from its highest bit and the next two.
fn bucket_of(us: u64) -> usize {
    let us = us.max(4);
    let octave = us.ilog2() as usize;
    let quarter = (us >> (octave - 2)) as usize & 3;
    ((octave - 2) * 4 + quarter).min(N_BUCKETS - 1)
}

/// Returns the exclusive upper bound of a bucket in microseconds. The last bucket also counts
/// latencies beyond its bound.
pub(crate) fn bound_us(bucket: usize) -> u64 {
    (5 + bucket as u64 % 4) << (bucket / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_latency_is_below_its_bound_and_not_below_the_one_before() {
        for us in (0..5000).chain([1 << 20, (1 << 28) - 1]) {
            let bucket = bucket_of(us);
            assert!(us < bound_us(bucket), "{us}");
            assert!(bucket == 0 || us >= bound_us(bucket - 1), "{us}");
        }
        assert_eq!(bound_us(N_BUCKETS - 1), 1 << 28);
        assert_eq!(bucket_of(u64::MAX), N_BUCKETS - 1);
    }

    #[test]
    fn bounds_are_a_quarter_apart_at_most() {
        for bucket in 1..N_BUCKETS {
            let (low, high) = (bound_us(bucket - 1), bound_us(bucket));
            assert!(low < high && 4 * high <= 5 * low, "{low} {high}");
        }
    }
}
