//! One direction of a link: bytes leave one after the other at the link's rate, and arrive its
//! delay later. Time comes from the caller, so that there is nothing here to wait for.

use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

/// Bytes that arrived late at a free link are made good up to this. A thread that is woken a little
/// late would lower the rate otherwise.
const LATENESS: Duration = Duration::from_micros(200);

/// Rate and delay of a link, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct LinkSpec {
    /// Bits per second, above 0.
    pub(crate) rate_bits: f64,
    /// Time that the last bit of a chunk travels.
    #[serde(rename = "delay_seconds", serialize_with = "as_seconds")]
    pub(crate) delay: Duration,
}

fn as_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// One direction, shared by all connections over it.
#[derive(Debug)]
pub(crate) struct Link {
    spec: LinkSpec,
    /// When the last byte so far has left.
    free_at: Option<Instant>,
    n_bytes: u64,
}

impl Link {
    pub(crate) fn new(spec: LinkSpec) -> Self {
        Self { spec, free_at: None, n_bytes: 0 }
    }

    /// Sends `n_bytes` that are there at `now`; returns when the last one arrives. Calls come in
    /// the order of `now`.
    pub(crate) fn send(&mut self, now: Instant, n_bytes: usize) -> Instant {
        let earliest = now.checked_sub(LATENESS).unwrap_or(now);
        let start = self.free_at.map_or(now, |free_at| free_at.max(earliest));
        let taken = Duration::from_secs_f64(n_bytes as f64 * 8.0 / self.spec.rate_bits);
        let left_at = start + taken;
        self.free_at = Some(left_at);
        self.n_bytes += n_bytes as u64;
        left_at.max(now) + self.spec.delay
    }

    /// Returns the bytes on their way when the link is never free.
    pub(crate) fn travelling_bytes(&self) -> f64 {
        self.spec.rate_bits / 8.0 * self.spec.delay.as_secs_f64()
    }

    /// Returns the bytes that were sent.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }
}

/// Reads bits per second, such as `10Gbit`, `1.5Gbit`, `800Mbit` or `64kbit`.
pub(crate) fn parse_rate(text: &str) -> Result<f64, String> {
    let units = [("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];
    let rate = with_unit(text, &units).filter(|&rate| rate >= 1.0);
    rate.ok_or_else(|| "expected bits per second from 1, such as 10Gbit or 800Mbit".to_owned())
}

/// Reads a time of at most a minute, such as `100us`, `1.5ms` or `0s`.
pub(crate) fn parse_delay(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let seconds = with_unit(text, &units).filter(|&seconds| seconds <= 60.0);
    let seconds = seconds.ok_or("expected a time up to 60s, such as 100us or 2ms");
    Ok(Duration::from_secs_f64(seconds?))
}

/// Returns a number from 0 with one of `units`, of which none that ends like another is after it.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, factor) =
        units.iter().find_map(|&(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let number: f64 = number.trim_end().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MBIT_1: LinkSpec = LinkSpec { rate_bits: 1e6, delay: Duration::from_millis(3) };

    #[test]
    fn chunks_queue_for_the_link_and_travel_beside_each_other() {
        let (mut link, now) = (Link::new(MBIT_1), Instant::now());
        let after = |ms: u64| now + Duration::from_millis(ms);
        // 125 bytes are a millisecond.
        assert_eq!(link.send(now, 125), after(1 + 3));
        assert_eq!(link.send(now, 250), after(3 + 3));
        assert_eq!(link.send(after(2), 125), after(4 + 3));
        // Free since 4 ms: bytes that arrive at 10 leave immediately, but for the lateness that is
        // made good.
        assert_eq!(link.send(after(10), 125), after(11 + 3) - LATENESS);
        assert_eq!((link.n_bytes(), link.travelling_bytes()), (625, 375.0));
    }

    proptest! {
        #[test]
        fn no_more_passes_than_the_rate_and_nothing_comes_early(
            sends in prop::collection::vec((0u64..5000, 1usize..20_000), 1..60),
        ) {
            let (mut link, first) = (Link::new(MBIT_1), Instant::now());
            let (mut now, mut last, mut n_bytes) = (first, first, 0);
            for (gap_us, n) in sends {
                now += Duration::from_micros(gap_us);
                let arrival = link.send(now, n);
                n_bytes += n;
                prop_assert!(arrival >= now + MBIT_1.delay && arrival >= last, "in order");
                let least = Duration::from_secs_f64(n_bytes as f64 * 8e-6);
                prop_assert!(arrival + LATENESS * 60 >= first + least);
                last = arrival;
            }
        }
    }

    #[test]
    fn units_are_read() {
        assert_eq!(parse_rate("10Gbit"), Ok(1e10));
        assert_eq!(parse_rate("1.5 Mbit"), Ok(1.5e6));
        assert_eq!(parse_rate("9bit"), Ok(9.0));
        assert_eq!(parse_delay("100us"), Ok(Duration::from_micros(100)));
        assert_eq!(parse_delay("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "Gbit", "-1Gbit", "nanGbit", "infGbit", "0bit", "10", "10GB"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
        for text in ["", "5", "-1ms", "61s", "1h", "nans"] {
            assert!(parse_delay(text).is_err(), "{text}");
        }
    }
}
