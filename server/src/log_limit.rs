//! Rate limit of warnings about faults.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Minimum interval between two warnings. A client that keeps requesting a damaged row, or a lack
/// of descriptors, must not fill the disk.
const LOG_PAUSE: Duration = Duration::from_secs(1);

/// Faults that one thread has logged and suppressed.
#[derive(Default)]
pub(crate) struct LogLimiter {
    last: Cell<Option<Instant>>,
    untold: Cell<u64>,
}

impl LogLimiter {
    /// Returns the number of faults suppressed since the last logged one; `None` if this one is
    /// suppressed too.
    pub(crate) fn allow(&self, now: Instant) -> Option<u64> {
        if self.last.get().is_some_and(|last| now.duration_since(last) < LOG_PAUSE) {
            self.untold.set(self.untold.get() + 1);
            return None;
        }
        self.last.set(Some(now));
        Some(self.untold.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_faults_is_logged_once_a_second_with_the_suppressed_count() {
        let (log_limit, start) = (LogLimiter::default(), Instant::now());
        let at = |ms| log_limit.allow(start + Duration::from_millis(ms));
        assert_eq!(at(0), Some(0));
        assert_eq!([at(1), at(500), at(999)], [None; 3]);
        assert_eq!(at(1000), Some(3));
        assert_eq!(at(2500), Some(0));
    }
}
