//! Timeouts of a connection, and the queueing time of its requests.

use std::io;
use std::time::{Duration, Instant};

use lodestore_schema::{Failure, FailureCode};

use crate::error::failure;
use crate::limits::{REPLY_BYTES_PER_SECOND_MIN, WRITE_TIMEOUT};

/// Maximum drift between two clocks, in ppm; computers stay well below it.
const DRIFT_PPM: i64 = 500;

/// Queueing time of one connection's requests, measured with two clocks that share only their rate.
///
/// A client stamps requests with the time since it connected. The least difference to our clock so
/// far belongs to a request that did not wait; any excess is queueing time. The least may rise
/// again as fast as clocks drift.
pub(crate) struct QueueDelay {
    opened: Instant,
    /// Least difference in microseconds, and when it was updated.
    least: Option<(i64, Instant)>,
}

impl QueueDelay {
    pub(crate) fn new(opened: Instant) -> Self {
        Self { opened, least: None }
    }

    /// Returns how long a request that was sent at `sent` has waited at `now`; zero if `sent` is
    /// zero.
    pub(crate) fn waited(&mut self, sent: Duration, now: Instant) -> Duration {
        if sent.is_zero() {
            return Duration::ZERO;
        }
        let gap = micros(now.saturating_duration_since(self.opened)) - micros(sent);
        let least = self.least.map_or(gap, |(least, at)| {
            let drift = micros(now.saturating_duration_since(at)) / (1_000_000 / DRIFT_PPM);
            gap.min(least.saturating_add(drift))
        });
        self.least = Some((least, now));
        Duration::from_micros(u64::try_from(gap - least).unwrap_or(0))
    }
}

/// Returns microseconds, capped at a quarter of the range of i64, so that differences of forged
/// times do not overflow.
fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

/// Limit on slow readers of a reply: each chunk within `WRITE_TIMEOUT`, and the whole reply at a
/// minimum rate after a grace of `WRITE_TIMEOUT`.
#[derive(Default)]
pub(crate) struct SlowReaderLimit {
    n_bytes: usize,
    waited: Duration,
}

impl SlowReaderLimit {
    /// Returns the timeout of the next chunk.
    pub(crate) fn allowance(&self) -> Duration {
        let earned = self.n_bytes as f64 / REPLY_BYTES_PER_SECOND_MIN as f64;
        let allowed = WRITE_TIMEOUT + Duration::from_secs_f64(earned);
        allowed.saturating_sub(self.waited).min(WRITE_TIMEOUT)
    }

    /// Counts a chunk that the client has read.
    pub(crate) fn taken(&mut self, n_bytes: usize, waited: Duration) {
        self.n_bytes += n_bytes;
        self.waited += waited;
    }
}

/// Fails an exchange with the client that takes longer than `limit` in all, so that a trickling
/// client does not hold a shard's memory longer.
pub(crate) async fn io_timeout<T>(
    limit: Duration,
    exchange: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    with_timeout(limit, exchange, || io::ErrorKind::TimedOut.into()).await
}

/// Runs `work` until it completes or `deadline` passes.
pub(crate) async fn with_deadline<T>(
    deadline: Instant,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let expired =
        || failure(FailureCode::Deadline, "the deadline passed before the reply was ready");
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(expired());
    }
    with_timeout(left, work, expired).await
}

/// Runs `work` for at most `limit`. Work that completes at its first poll needs no timer.
pub(crate) async fn with_timeout<T, E>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
    late: impl FnOnce() -> E,
) -> Result<T, E> {
    let mut work = std::pin::pin!(work);
    if let Some(done) = futures_lite::future::poll_once(work.as_mut()).await {
        return done;
    }
    let timer = async {
        glommio::timer::sleep(limit).await;
        Err(late())
    };
    futures_lite::FutureExt::or(work, timer).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn queueing_time_is_measured_without_a_common_clock() {
        let start = Instant::now();
        let mut lag = QueueDelay::new(start);
        // The client's clock started 40 s before ours did.
        let mut waited = |sent: u64, read: u64| lag.waited(MS(40_000 + sent), start + MS(read));
        assert_eq!(waited(10, 15), MS(0), "the first request counts as not queued");
        assert_eq!(waited(20, 23), MS(0), "a faster request sets a new minimum");
        // Minus what the clocks may have drifted.
        let about = MS(899)..=MS(900);
        assert!(about.contains(&waited(30, 933)));
        assert!(about.contains(&waited(31, 934)), "the minimum is kept while requests wait");
    }

    #[test]
    fn clocks_that_drift_make_no_request_late() {
        let start = Instant::now();
        let mut lag = QueueDelay::new(start);
        for second in 1..100_000u64 {
            // Our clock is faster by 200 ppm.
            let (sent, read) =
                (MS(second * 1000), start + Duration::from_micros(second * 1_000_200));
            assert!(lag.waited(sent, read) < MS(1), "after {second} s");
        }
    }

    #[test]
    fn a_client_with_no_time_or_a_forged_one_is_served() {
        let start = Instant::now();
        let mut lag = QueueDelay::new(start);
        assert_eq!(lag.waited(MS(0), start + MS(5000)), MS(0));
        assert_eq!(lag.waited(Duration::MAX, start + MS(5000)), MS(0));
        // Only requests of the forging client are late.
        assert!(lag.waited(MS(1), start + MS(5000)) > Duration::from_secs(1 << 30));
    }

    #[test]
    fn a_reply_has_a_minimum_rate_and_a_timeout_per_chunk() {
        let mut pace = SlowReaderLimit::default();
        assert_eq!(pace.allowance(), WRITE_TIMEOUT);
        // Exactly the minimum rate is allowed for ever.
        for _ in 0..1000 {
            pace.taken(REPLY_BYTES_PER_SECOND_MIN, Duration::from_secs(1));
            assert_eq!(pace.allowance(), WRITE_TIMEOUT);
        }
        // At half the rate the grace is used up after twice its time.
        let mut n_seconds = 0;
        while !pace.allowance().is_zero() {
            pace.taken(REPLY_BYTES_PER_SECOND_MIN / 2, Duration::from_secs(1));
            n_seconds += 1;
        }
        assert_eq!(n_seconds, 2 * WRITE_TIMEOUT.as_secs());
    }
}
