//! The p95 of latencies: a running estimate of a high quantile, in one word.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Share of replies that take longer than the estimate.
const SHARE: f64 = 0.05;
/// Growth of the estimate after a reply that took longer. Other replies shrink it by less, so that
/// a share of [`SHARE`] takes longer once it settles.
const GROWTH: f64 = 0.2;
/// Replies before there is an estimate.
const SEEN_MIN: u32 = 20;
/// The first estimate is this multiple of the first latency.
const FIRST_FACTOR: f64 = 3.0;

/// The time that 95 of 100 replies take at most, shared by the threads of a client. Of two
/// concurrent updates one may be lost, and its reply is not counted.
#[derive(Debug, Default)]
pub(crate) struct QuantileEstimate {
    /// In nanoseconds, as the bits of an f64; 0 before the first answer.
    estimate: AtomicU64,
    n_seen: AtomicU32,
}

impl QuantileEstimate {
    /// Records a reply that took this time, or had not arrived by then.
    pub(crate) fn record(&self, time: Duration) {
        let (time_ns, old) = (time.as_nanos() as f64, self.estimate_ns());
        let new = if old == 0.0 {
            FIRST_FACTOR * time_ns.max(1.0)
        } else if time_ns > old {
            old * (1.0 + GROWTH)
        } else {
            old * (1.0 + GROWTH).powf(-SHARE / (1.0 - SHARE))
        };
        self.estimate.store(new.to_bits(), Ordering::Relaxed);
        let n_seen = self.n_seen.load(Ordering::Relaxed);
        self.n_seen.store(n_seen.saturating_add(1), Ordering::Relaxed);
    }

    /// Returns the estimate, once enough replies were recorded.
    pub(crate) fn time(&self) -> Option<Duration> {
        let is_known = self.n_seen.load(Ordering::Relaxed) >= SEEN_MIN;
        is_known.then(|| Duration::from_nanos(self.estimate_ns() as u64))
    }

    /// Copies another estimate.
    pub(crate) fn copy(&self, other: &Self) {
        self.estimate.store(other.estimate.load(Ordering::Relaxed), Ordering::Relaxed);
        self.n_seen.store(other.n_seen.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn estimate_ns(&self) -> f64 {
        f64::from_bits(self.estimate.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compared with the share that is counted, of latencies with a long tail.
        #[test]
        fn about_one_of_twenty_replies_takes_longer(
            seed in 1u64..1 << 40, median_us in 20.0f64..20_000.0, spread in 0.1f64..1.5,
        ) {
            let (tail, mut n_longer, mut state) = (QuantileEstimate::default(), 0, seed);
            for i in 0..6000 {
                // The sum of twelve uniform numbers is about normal; times are lognormal.
                let normal: f64 = (0..12).map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 40) as f64 / (1u64 << 24) as f64
                }).sum::<f64>() - 6.0;
                let time = Duration::from_secs_f64(median_us * 1e-6 * (spread * normal).exp());
                n_longer += u32::from(i >= 1000 && tail.time().is_some_and(|most| time > most));
                tail.record(time);
            }
            prop_assert!((125..=400).contains(&n_longer), "{n_longer} of 5000");
        }
    }

    #[test]
    fn there_is_no_estimate_at_first_and_it_follows_a_slowdown() {
        let tail = QuantileEstimate::default();
        for _ in 0..SEEN_MIN {
            assert_eq!(tail.time(), None);
            tail.record(Duration::from_millis(1));
        }
        let before = tail.time().unwrap();
        assert!(before < Duration::from_millis(4), "{before:?}");
        for _ in 0..60 {
            tail.record(Duration::from_millis(50));
        }
        let after = tail.time().unwrap();
        assert!((50..=70).contains(&after.as_millis()), "{after:?}");
    }
}
