//! How often a partition may be sealed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::SEAL_MAX;

/// Seals of full length within [`WINDOW`]: as many as a move takes that must begin again.
const SEALS_MAX: u32 = 3;
/// Time of which a partition is sealed for half at most.
const WINDOW: Duration = SEAL_MAX.saturating_mul(2 * SEALS_MAX);
/// Shortest time that a seal counts for, however soon it ends.
const COUNTED_MIN: Duration = Duration::from_secs(1);

/// When the last seals began and ended, or would end by themselves.
#[derive(Debug, Default)]
pub(super) struct Seals(VecDeque<(Instant, Instant)>);

impl Seals {
    /// Notes a seal that begins now, where the one before ends. Returns `false`, and notes nothing,
    /// where puts might have less than half of the time then.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        self.end(now);
        self.0.retain(|&(_, end)| now.saturating_duration_since(end) < WINDOW);
        let lasted = |&(begun, end): &(Instant, Instant)| (end - begun).max(COUNTED_MIN);
        let may_begin = self.0.iter().map(lasted).sum::<Duration>() <= SEAL_MAX * (SEALS_MAX - 1);
        if may_begin {
            self.0.push_back((now, now + SEAL_MAX));
        }
        may_begin
    }

    /// Ends the last one now, if it has not yet.
    pub(super) fn end(&mut self, now: Instant) {
        if let Some((begun, end)) = self.0.back_mut() {
            *end = now.clamp(*begun, *end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_after_the_other_leaves_puts_half_of_the_time() {
        let (start, mut seals) = (Instant::now(), Seals::default());
        let mut until = start;
        let mut sealed_ms = 0;
        for ms in 0..10 * WINDOW.as_millis() as u64 {
            let now = start + Duration::from_millis(ms);
            if now >= until && seals.begin(now) {
                until = now + SEAL_MAX;
            }
            sealed_ms += u64::from(now < until);
        }
        let all = 10 * WINDOW.as_millis() as u64;
        assert!(sealed_ms > 0 && sealed_ms <= all / 2, "{sealed_ms} of {all} ms");
    }

    #[test]
    fn seals_that_end_soon_count_for_what_they_lasted_and_not_for_nothing() {
        let (start, mut seals) = (Instant::now(), Seals::default());
        let mut n_seals = 0;
        while seals.begin(start) {
            seals.end(start);
            n_seals += 1;
            assert!(n_seals < 100, "as often as requested");
        }
        assert!(n_seals > 10, "{n_seals}");
        let mut seals = Seals::default();
        assert!((0..3).all(|_| seals.begin(start + SEAL_MAX)) && seals.0.len() == 3);
        assert!(seals.begin(start + SEAL_MAX), "each has ended the one before it");
    }
}
