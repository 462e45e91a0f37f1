//! The recent health of a server: how fast it replies, and whether it is worth asking now.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lodestore_graph::fork::PerProcess;

use crate::latency_estimate::QuantileEstimate;

/// A server rests for this long after its first failure, if another can be asked. The time doubles
/// with each failure.
const REST_MIN: Duration = Duration::from_millis(250);
/// Longest rest of a server that fails.
const REST_MAX: Duration = Duration::from_secs(30);
/// A server that lost a hedge is asked second for this many times the time that it had.
const OUTRUN_FACTOR: u32 = 10;
/// A latency counts half as much after this time, so that a slow server is tried again.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// Weight of a new latency in the average.
const WEIGHT: f64 = 0.2;
/// Time limit of the first reply of a server without measurements.
const ANSWER_LIMIT_UNKNOWN: Duration = Duration::from_secs(1);
const ANSWER_LIMIT_MIN: Duration = Duration::from_millis(200);
const ANSWER_LIMIT_MAX: Duration = Duration::from_secs(2);
/// A reply may take this multiple of the usual latency before another server is asked.
const PATIENCE_FACTOR: f64 = 10.0;
/// Lowest rate of rows, in bytes per second, before another server is asked.
const RATE_MIN: f64 = 8e6;

/// Origin of times. A forked child keeps that of its parent.
static START: PerProcess<Instant> = PerProcess::new();

/// Record of one server, shared by the threads of a client. Figures of different moments may mix,
/// which at worst makes a choice that is not the best.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Average latency in microseconds; 0 for none yet.
    latency_us: AtomicU64,
    /// When the average was updated last.
    measured_us: AtomicU64,
    failed_us: AtomicU64,
    rests_until_us: AtomicU64,
    strikes: AtomicU32,
    /// Whether an outage was reported that has not ended.
    is_away: AtomicBool,
    /// Until when the server that won a hedge against this one is asked first.
    outrun_until_us: AtomicU64,
    /// Estimate of the p95 time until rows begin to arrive.
    tail: QuantileEstimate,
    /// Busy share of the server's time, as it reports. Ranks servers without measurements.
    busy_permille: AtomicU32,
}

impl Health {
    /// Records a reply.
    pub(crate) fn answered(&self, latency: Duration, now: Instant) {
        self.took(latency, now);
        self.is_well();
    }

    /// Records a reply without a known latency.
    pub(crate) fn is_well(&self) {
        self.strikes.store(0, Ordering::Relaxed);
        self.is_away.store(false, Ordering::Relaxed);
        self.rests_until_us.store(0, Ordering::Relaxed);
    }

    fn took(&self, latency: Duration, now: Instant) {
        let (latency, old) = (latency.as_micros() as f64, self.latency_us.load(Ordering::Relaxed));
        let mean = if old == 0 { latency } else { old as f64 + WEIGHT * (latency - old as f64) };
        self.latency_us.store(mean.max(1.0) as u64, Ordering::Relaxed);
        self.measured_us.store(at(now), Ordering::Relaxed);
    }

    /// Records the latency of the first rows of a reply.
    pub(crate) fn began(&self, latency: Duration) {
        self.tail.record(latency);
    }

    /// Records that another server replied first, while this one had not replied after `after`. The
    /// other server, perhaps the hedge, is asked first for some time, so that no other pull waits
    /// for this one. A server that had less time than its p95 has not lost.
    pub(crate) fn lost_hedge(&self, after: Duration, now: Instant) {
        if self.slow().is_none_or(|slow| after < slow) {
            return;
        }
        self.tail.record(after);
        let until = now + REST_MIN.min(OUTRUN_FACTOR * after);
        self.outrun_until_us.fetch_max(at(until), Ordering::Relaxed);
        if self.usual().is_some_and(|usual| after > usual) {
            self.took(after, now);
        }
    }

    /// Returns the average latency, once known.
    pub(crate) fn usual(&self) -> Option<Duration> {
        let us = self.latency_us.load(Ordering::Relaxed);
        (us > 0).then(|| Duration::from_micros(us))
    }

    /// Returns the p95 time until a reply begins, once known.
    pub(crate) fn slow(&self) -> Option<Duration> {
        self.tail.time()
    }

    /// Records the load that the server has reported, from 0 to 1.
    pub(crate) fn tells(&self, busy: f64) {
        self.busy_permille.store((busy * 1000.0) as u32, Ordering::Relaxed);
    }

    /// Records a failure, or silence.
    pub(crate) fn failed(&self, now: Instant) {
        let strikes = self.strikes.fetch_add(1, Ordering::Relaxed);
        self.rest(REST_MAX.min(REST_MIN * (1 << strikes.min(10))), now);
    }

    /// Records that the server refuses connections. Returns whether it is the first refusal since
    /// its last reply.
    pub(crate) fn is_first_refusal(&self) -> bool {
        !self.is_away.swap(true, Ordering::Relaxed)
    }

    /// Lets the server rest for some time, as after a failure or at its own request.
    pub(crate) fn rest(&self, time: Duration, now: Instant) {
        self.failed_us.store(at(now), Ordering::Relaxed);
        self.rests_until_us.store(at(now + time), Ordering::Relaxed);
    }

    /// Ends the rest: the server has registered its address, which is worth an immediate attempt.
    pub(crate) fn is_back(&self) {
        self.rests_until_us.store(0, Ordering::Relaxed);
    }

    /// Returns whether the server rests: it is not asked while another can be.
    pub(crate) fn is_resting(&self, now: Instant) -> bool {
        self.rests_until_us.load(Ordering::Relaxed) > at(now)
    }

    /// Returns the cost of asking this server, the lower the better: its latency, halved as it
    /// ages, and more if another server has just won a hedge against it. Among resting servers, the
    /// one that failed longest ago has the lowest cost.
    pub(crate) fn cost(&self, now: Instant) -> f64 {
        if self.is_resting(now) {
            return 1e12 + self.failed_us.load(Ordering::Relaxed) as f64;
        }
        if self.outrun_until_us.load(Ordering::Relaxed) > at(now) {
            return 1e11;
        }
        if self.latency_us.load(Ordering::Relaxed) == 0 {
            return f64::from(self.busy_permille.load(Ordering::Relaxed)) / 1000.0;
        }
        let age = at(now).saturating_sub(self.measured_us.load(Ordering::Relaxed)) as f64;
        let halvings = age / HALF_LIFE.as_micros() as f64;
        self.latency_us.load(Ordering::Relaxed) as f64 * 0.5f64.powf(halvings)
    }

    /// Returns how long a reply of `n_bytes` may take before another server is asked. The limit
    /// doubles with every attempt, since all servers may be slow.
    pub(crate) fn answer_limit(&self, n_bytes: usize, attempt: u32) -> Duration {
        let usual = self.usual().map_or(ANSWER_LIMIT_UNKNOWN, |us| us.mul_f64(PATIENCE_FACTOR));
        let first = usual.clamp(ANSWER_LIMIT_MIN, ANSWER_LIMIT_MAX);
        (first + Duration::from_secs_f64(n_bytes as f64 / RATE_MIN)) * (1 << attempt.min(6))
    }

    /// Copies the record of another server, apart from its reported load.
    pub(crate) fn copy(&self, other: &Self) {
        let pairs = [
            (&self.latency_us, &other.latency_us),
            (&self.measured_us, &other.measured_us),
            (&self.failed_us, &other.failed_us),
            (&self.rests_until_us, &other.rests_until_us),
            (&self.outrun_until_us, &other.outrun_until_us),
        ];
        for (to, from) in pairs {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.strikes.store(other.strikes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.is_away.store(other.is_away.load(Ordering::Relaxed), Ordering::Relaxed);
        self.tail.copy(&other.tail);
    }
}

fn at(time: Instant) -> u64 {
    let start = *START.get_or(|parents| parents.copied().unwrap_or_else(Instant::now));
    // Plus one, so that 0 means none.
    u64::try_from(time.saturating_duration_since(start).as_micros()).unwrap_or(u64::MAX - 1) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn the_faster_server_is_cheaper_and_the_slower_is_tried_again_later() {
        let (now, fast, slow) = (Instant::now(), Health::default(), Health::default());
        fast.answered(MS(1), now);
        slow.answered(MS(8), now);
        assert!(fast.cost(now) < slow.cost(now));
        let later = now + 4 * HALF_LIFE;
        fast.answered(MS(1), later);
        assert!(slow.cost(later) < fast.cost(later), "it may be slow no longer");
        slow.answered(MS(8), later);
        assert!(fast.cost(later) < slow.cost(later));
    }

    #[test]
    fn a_failing_server_rests_longer_each_time_until_it_replies() {
        let (mut now, health) = (Instant::now(), Health::default());
        let mut rests = Vec::new();
        for _ in 0..12 {
            health.failed(now);
            let start = now;
            while health.is_resting(now) {
                now += MS(50);
            }
            rests.push(now - start);
        }
        assert!(rests.is_sorted() && rests[0] <= MS(300), "{rests:?}");
        assert!(rests[11] <= REST_MAX + MS(50), "{rests:?}");
        health.failed(now);
        let other = Health::default();
        other.answered(MS(500), now);
        assert!(
            health.cost(now) > other.cost(now),
            "any other server is better than a resting one"
        );
        health.answered(MS(1), now);
        assert!(!health.is_resting(now));
        health.failed(now);
        assert!(!health.is_resting(now + MS(300)), "as after a first failure");
    }

    #[test]
    fn a_server_that_loses_a_hedge_is_asked_second_for_a_moment_and_does_not_rest() {
        let (now, health, other) = (Instant::now(), Health::default(), Health::default());
        health.answered(MS(1), now);
        other.answered(MS(2), now);
        health.lost_hedge(MS(3), now);
        assert!(health.cost(now) < 1e10, "it is unknown how slow it may be");
        (0..20).for_each(|_| health.began(MS(1)));
        let slow = health.slow().unwrap();
        assert!((2000..3000).contains(&slow.as_micros()), "{slow:?}");
        health.lost_hedge(MS(1), now);
        assert!(health.cost(now) < 1e10, "it was asked only just now");
        assert_eq!((health.slow(), health.usual()), (Some(slow), Some(MS(1))));
        health.lost_hedge(MS(3), now);
        assert!(health.cost(now + MS(29)) > other.cost(now + MS(29)));
        assert!(health.cost(now + MS(31)) < other.cost(now + MS(31)));
        assert!(!health.is_resting(now), "it may be asked, as a hedge of the other");
        assert_eq!(health.usual(), Some(Duration::from_micros(1400)));
        health.lost_hedge(Duration::from_secs(9), now);
        let later = now + REST_MIN + MS(1);
        assert!(health.cost(now) > 1e10 && health.cost(later) < 1e10);
        health.failed(now);
        assert!(!health.is_resting(now + MS(300)), "as after a first failure");
    }

    #[test]
    fn the_answer_limit_follows_the_usual_latency_within_bounds() {
        let (now, health) = (Instant::now(), Health::default());
        assert_eq!(health.answer_limit(0, 0), ANSWER_LIMIT_UNKNOWN);
        health.answered(MS(50), now);
        assert_eq!(health.answer_limit(0, 0), MS(500));
        assert_eq!(health.answer_limit(8_000_000, 1), 2 * MS(1500));
        health.answered(Duration::from_secs(3600), now);
        assert_eq!(health.answer_limit(0, 0), ANSWER_LIMIT_MAX);
    }
}
