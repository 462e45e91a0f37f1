//! Forecast of when the reads of a pull will complete, from the work queued at the shard's disk and
//! the disk's measured rate.

use std::time::{Duration, Instant};

use lodestore_schema::request::PullKind;

use crate::limits::{RETRY_AFTER, RETRY_AFTER_MAX};

/// Busy time after which the rate is sampled.
const SAMPLE: Duration = Duration::from_millis(100);
/// Weight of the newest sample.
const NEWEST: f64 = 0.5;
/// Safety factor of a forecast, for the variance of pulls and the time to send replies.
const MARGIN: f64 = 4.0 / 3.0;

/// Share of the disk that bulk is assumed to get when latency-bound pulls use all of it.
const BULK_PART_MIN: f64 = 0.01;
/// A sample in which pulls waited for this share of the time shows the disk's full rate.
const QUEUED: f64 = 0.9;

/// The work of a shard's disk, in nanoseconds of the disk's cost model.
///
/// The rate is sampled while pulls wait for reads, because an idle disk does little work. Other
/// samples can only raise the rate, so a disk that was slow for a while does not stay slow in the
/// forecast. Before the first sample no pull is late, and a pull that is alone never is.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    /// By class, the cost of expected work that has not started.
    expected: [u64; 2],
    in_flight: u64,
    is_queued: bool,
    /// Cost per nanosecond.
    rate: Option<f64>,
    /// Share of the disk's work for latency-bound pulls; bulk gets the rest.
    latency_share: f64,
    sample: Sample,
    /// End of the time that the sample covers.
    last: Option<Instant>,
}

/// Work since the last sample, its busy time, and the part of that in which pulls waited.
#[derive(Debug, Default)]
struct Sample {
    done: u64,
    /// Part of `done` for latency-bound pulls.
    done_latency: u64,
    busy: Duration,
    queued: Duration,
}

impl Forecast {
    /// Replaces the expected cost of a pull.
    pub(crate) fn expect(&mut self, class: PullKind, before: u64, now: u64) {
        let expected = &mut self.expected[class as usize];
        *expected = expected.saturating_sub(before).saturating_add(now);
    }

    /// Counts the start of a read.
    pub(crate) fn start(&mut self, cost: u64, now: Instant) {
        self.advance(now);
        self.in_flight += cost;
    }

    /// Counts the end of a read.
    pub(crate) fn end(&mut self, class: PullKind, cost: u64, now: Instant) {
        self.advance(now);
        self.in_flight = self.in_flight.saturating_sub(cost);
        self.sample.done += cost;
        if class == PullKind::Sync {
            self.sample.done_latency += cost;
        }
        if self.sample.busy >= SAMPLE {
            self.take_sample();
        }
    }

    /// Records that pulls wait from now on.
    pub(crate) fn begin_queue(&mut self, now: Instant) {
        self.advance(now);
        self.is_queued = true;
    }

    /// Records that no pull waits any more.
    pub(crate) fn end_queue(&mut self, now: Instant) {
        self.advance(now);
        self.is_queued = false;
    }

    /// Fails with a retry hint if a new pull of `cost` would take longer than `time`. The pull runs
    /// behind the expected work of its class and of higher classes.
    pub(crate) fn check_behind(
        &self,
        class: PullKind,
        cost: u64,
        time: Duration,
    ) -> Result<(), Duration> {
        if self.all() == 0 {
            return Ok(());
        }
        let ahead: u64 = self.expected[..=class as usize].iter().sum();
        let all = ahead.saturating_add(self.in_flight).saturating_add(cost);
        let of_class = self.expected[class as usize].saturating_add(cost);
        check(self.time_of(all).max(self.time_in_class(class, of_class)), time)
    }

    /// Like `check_behind`, for a pull at the head of the queue whose expected cost is `cost`.
    pub(crate) fn check_next(
        &self,
        class: PullKind,
        cost: u64,
        time: Duration,
    ) -> Result<(), Duration> {
        if self.all() <= cost {
            return Ok(());
        }
        check(self.time_in_class(class, cost), time)
    }

    /// Returns how long all expected work takes, as far as known.
    pub(crate) fn backlog(&self) -> Duration {
        self.time_of(self.all()).unwrap_or_default()
    }

    fn all(&self) -> u64 {
        self.expected.iter().sum::<u64>().saturating_add(self.in_flight)
    }

    /// Returns how long `cost` takes if latency-bound pulls keep arriving at their recent rate.
    fn time_in_class(&self, class: PullKind, cost: u64) -> Option<Duration> {
        let part = if class == PullKind::Vector { 1.0 - self.latency_share } else { 1.0 };
        self.time_of((cost as f64 / part.max(BULK_PART_MIN)) as u64)
    }

    /// Returns the time that `cost` takes, bounded so that a margin can be added.
    fn time_of(&self, cost: u64) -> Option<Duration> {
        let nanos = cost as f64 / self.rate?;
        Some(Duration::from_nanos((nanos as u64).min(u64::MAX / 4)))
    }

    fn advance(&mut self, now: Instant) {
        let last = self.last.replace(now).unwrap_or(now);
        let passed = now.saturating_duration_since(last);
        if self.in_flight > 0 || self.is_queued {
            self.sample.busy += passed;
        }
        if self.is_queued {
            self.sample.queued += passed;
        }
    }

    fn take_sample(&mut self) {
        let Sample { done, done_latency, busy, queued } = std::mem::take(&mut self.sample);
        let share = done_latency as f64 / done.max(1) as f64;
        self.latency_share += NEWEST * (share - self.latency_share);
        let found = (done as f64 / busy.as_nanos() as f64).max(f64::MIN_POSITIVE);
        let is_queued = queued.as_secs_f64() >= QUEUED * busy.as_secs_f64();
        self.rate = match self.rate {
            None if is_queued => Some(found),
            Some(rate) if is_queued => Some(rate + NEWEST * (found - rate)),
            rate => rate.map(|rate| rate.max(found)),
        };
    }
}

/// Fails with a retry hint if work of about `needed` would not complete in `time`.
fn check(needed: Option<Duration>, time: Duration) -> Result<(), Duration> {
    match needed.map(|needed| needed.mul_f64(MARGIN)) {
        Some(needed) if needed > time => Err((needed - time).clamp(RETRY_AFTER, RETRY_AFTER_MAX)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    /// Makes a disk do `done` of its cost per nanosecond for 400 ms from `start`.
    fn work(forecast: &mut Forecast, start: Instant, done: f64) {
        work_for(PullKind::Vector, forecast, start, done);
    }

    fn work_for(class: PullKind, forecast: &mut Forecast, start: Instant, done: f64) {
        for ms in 0..400u64 {
            forecast.start((done * MS as f64) as u64, at(start, ms));
            forecast.end(class, (done * MS as f64) as u64, at(start, ms + 1));
        }
    }

    fn measured(start: Instant, done: f64) -> Forecast {
        let mut forecast = Forecast::default();
        forecast.begin_queue(start);
        work(&mut forecast, start, done);
        forecast.end_queue(at(start, 400));
        forecast
    }

    #[test]
    fn a_disk_of_unknown_rate_refuses_no_pull() {
        let (mut forecast, start) = (Forecast::default(), Instant::now());
        forecast.expect(PullKind::Vector, 0, u64::MAX / 2);
        assert!(forecast.check_behind(PullKind::Vector, u64::MAX, Duration::ZERO).is_ok());
        // One read at a time while no pull waits does not show the disk's full rate.
        work(&mut forecast, start, 0.001);
        assert!(forecast.check_behind(PullKind::Vector, MS, Duration::ZERO).is_ok());
        assert_eq!(forecast.backlog(), Duration::ZERO);
    }

    #[test]
    fn a_pull_waits_for_its_class_and_higher_classes() {
        let mut forecast = measured(Instant::now(), 0.5);
        let millis = Duration::from_millis;
        forecast.expect(PullKind::Vector, 0, 3000 * MS);
        forecast.expect(PullKind::Sync, 0, 600 * MS);
        // 3 s and 0.6 s of work at half the rate, plus a third.
        assert!(forecast.check_behind(PullKind::Sync, 0, millis(1700)).is_ok());
        assert!(forecast.check_behind(PullKind::Sync, 0, millis(1500)).is_err());
        assert!(forecast.check_behind(PullKind::Sync, 75 * MS, millis(1700)).is_err());
        assert!(forecast.check_behind(PullKind::Vector, 0, millis(10_000)).is_ok());
        let hint = forecast.check_behind(PullKind::Vector, 0, millis(9000)).unwrap_err();
        assert!((millis(550)..millis(650)).contains(&hint), "{hint:?}");
        assert!(forecast.check_next(PullKind::Sync, 600 * MS, millis(1700)).is_ok());
        assert!(forecast.check_next(PullKind::Sync, 600 * MS, millis(1500)).is_err());
        forecast.expect(PullKind::Vector, 3000 * MS, 0);
        assert!(forecast.check_behind(PullKind::Vector, 0, millis(2000)).is_ok());
        let hint =
            |cost| forecast.check_behind(PullKind::Vector, cost, Duration::ZERO).unwrap_err();
        assert_eq!(hint(u64::MAX), RETRY_AFTER_MAX);
        forecast.expect(PullKind::Sync, 600 * MS, 1);
        assert_eq!(forecast.check_behind(PullKind::Vector, 0, Duration::ZERO), Err(RETRY_AFTER));
    }

    #[test]
    fn bulk_is_late_while_latency_bound_pulls_pass_it_and_no_longer() {
        let start = Instant::now();
        let mut forecast = measured(start, 1.0);
        let second = Duration::from_secs(1);
        forecast.expect(PullKind::Sync, 0, MS);
        assert!(forecast.check_behind(PullKind::Vector, 400 * MS, second).is_ok());
        work_for(PullKind::Sync, &mut forecast, at(start, 1000), 1.0);
        assert!(forecast.check_behind(PullKind::Vector, 400 * MS, second).is_err());
        forecast.expect(PullKind::Vector, 0, 400 * MS);
        assert!(forecast.check_next(PullKind::Vector, 400 * MS, second).is_err());
        forecast.expect(PullKind::Vector, 400 * MS, 0);
        assert!(forecast.check_behind(PullKind::Sync, 400 * MS, second).is_ok());
        work(&mut forecast, at(start, 2000), 1.0);
        assert!(forecast.check_behind(PullKind::Vector, 400 * MS, second).is_ok());
    }

    #[test]
    fn the_rate_follows_the_disk_and_idle_time_does_not_count() {
        let start = Instant::now();
        let mut forecast = measured(start, 1.0);
        let later = at(start, 3_600_000);
        forecast.begin_queue(later);
        work(&mut forecast, later, 0.25);
        let rate = forecast.rate.unwrap();
        assert!((0.25..0.35).contains(&rate), "{rate}");
    }

    #[test]
    fn a_disk_that_was_slow_is_tried_and_trusted_again() {
        let start = Instant::now();
        let mut forecast = measured(start, 1e-6);
        let minute = Duration::from_secs(60);
        assert!(
            forecast.check_behind(PullKind::Vector, 1000 * MS, minute).is_ok(),
            "the pull is alone"
        );
        forecast.expect(PullKind::Vector, 0, 1000 * MS);
        assert!(forecast.check_next(PullKind::Vector, 1000 * MS, minute).is_ok());
        assert!(forecast.check_behind(PullKind::Vector, 1000 * MS, minute).is_err());
        // No pull waits any more: the observed rate is a lower bound.
        work(&mut forecast, at(start, 10_000), 0.5);
        assert!(forecast.check_behind(PullKind::Vector, 1000 * MS, minute).is_ok());
        work(&mut forecast, at(start, 20_000), 0.1);
        assert!(forecast.rate.unwrap() > 0.4);
    }
}
