//! How long requests took: counts by a quarter of an octave, of one shard and one kind.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::add;

/// Buckets: four to an octave, from below 5 µs to 2^28 µs (4.5 minutes).
pub(crate) const N_BUCKETS: usize = 104;

/// Written by one shard, read by all.
#[derive(Debug)]
pub(crate) struct LatencyCounts {
    buckets: [AtomicU64; N_BUCKETS],
    sum_ns: AtomicU64,
}

/// Counts of several shards together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LatencySum {
    pub(crate) buckets: [u64; N_BUCKETS],
    pub(crate) sum_ns: u64,
}

impl Default for LatencyCounts {
    fn default() -> Self {
        Self { buckets: array::from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }
}

impl Default for LatencySum {
    fn default() -> Self {
        Self { buckets: [0; N_BUCKETS], sum_ns: 0 }
    }
}

impl LatencyCounts {
    pub(crate) fn record(&self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        add(&self.buckets[bucket_of(us)], 1);
        add(&self.sum_ns, u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn add_to(&self, sum: &mut LatencySum) {
        for (sum, bucket) in sum.buckets.iter_mut().zip(&self.buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
        sum.sum_ns = sum.sum_ns.wrapping_add(self.sum_ns.load(Ordering::Relaxed));
    }
}

/// Returns where a latency counts: by its highest bit and the two after it.
fn bucket_of(us: u64) -> usize {
    let us = us.max(4);
    let octave = us.ilog2() as usize;
    let quarter = (us >> (octave - 2)) as usize & 3;
    ((octave - 2) * 4 + quarter).min(N_BUCKETS - 1)
}

/// Returns the bound of a bucket: its latencies are below this many microseconds. Latencies beyond
/// the last bucket count in it.
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

    #[test]
    fn shards_add_up() {
        let (a, b, mut sum) =
            (LatencyCounts::default(), LatencyCounts::default(), LatencySum::default());
        a.record(Duration::from_micros(100));
        b.record(Duration::from_micros(100));
        b.record(Duration::from_secs(3600));
        a.add_to(&mut sum);
        b.add_to(&mut sum);
        assert_eq!(sum.buckets.iter().sum::<u64>(), 3);
        assert_eq!(sum.buckets[bucket_of(100)], 2);
        assert_eq!(sum.sum_ns, 3_600_000_200_000);
    }
}
