//! The budget of hedges: second requests for slow replies.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::health::Health;

/// No reply counts as slow before this time: threads may be woken that late.
const SLOW_MIN: Duration = Duration::from_millis(1);
/// Most tokens in the bucket, for a moment when a server stalls.
const SAVED_MAX: i64 = 10;
/// Units of one token.
const UNIT: i64 = 1 << 20;

/// A token bucket: each pull request earns a share of a token, and each hedge spends one.
#[derive(Debug)]
pub(crate) struct Hedges {
    share: i64,
    saved: AtomicI64,
}

impl Hedges {
    /// Allows at most `share` hedges per request, beyond the first few.
    pub(crate) fn new(share: f64) -> Self {
        let share = (share.clamp(0.0, 1.0) * UNIT as f64) as i64;
        let saved = if share > 0 { SAVED_MAX * UNIT } else { 0 };
        Self { share, saved: saved.into() }
    }

    /// Earns a share of a token for a request that was sent.
    pub(super) fn earn(&self) {
        let more = |saved: i64| Some((saved + self.share).min(SAVED_MAX * UNIT));
        // The update has a next value for every value.
        let _ = self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Spends the token of a hedge, if there is one.
    pub(super) fn spend(&self) -> bool {
        let less = |saved: i64| (saved >= UNIT).then_some(saved - UNIT);
        self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Returns how long a server may be silent before a hedge is sent; `None` for never.
    pub(super) fn hedge_delay(&self, health: &Health) -> Option<Duration> {
        let slow = health.slow()?.max(SLOW_MIN);
        (self.share > 0).then_some(slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_requests_are_a_share_of_all_and_a_few_more() {
        for (share, most) in [(0.05, 60), (0.0, 0), (1.0, 1010), (7.0, 1010), (-1.0, 0)] {
            let hedges = Hedges::new(share);
            let mut n_spent = 0;
            for _ in 0..1000 {
                hedges.earn();
                while hedges.spend() {
                    n_spent += 1;
                }
            }
            assert!((most - 2..=most).contains(&n_spent), "{n_spent} at {share}");
        }
    }
}
