//! How often a partition may be sealed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::SEAL_MAX;

/// Seals within [`WINDOW`]: as many as a move takes that must begin anew.
const SEALS_MAX: usize = 3;
/// Time in which no more than [`SEALS_MAX`] seals begin, so that puts have half of it at least.
const WINDOW: Duration = SEAL_MAX.saturating_mul(2 * SEALS_MAX as u32);

/// When the last seals began.
#[derive(Debug, Default)]
pub(super) struct Seals(VecDeque<Instant>);

impl Seals {
    /// Notes a seal that begins now; `false`, and nothing noted, where that is one too many.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        self.0.retain(|&begun| now.saturating_duration_since(begun) < WINDOW);
        let may_begin = self.0.len() < SEALS_MAX;
        if may_begin {
            self.0.push_back(now);
        }
        may_begin
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
}
