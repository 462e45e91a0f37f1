//! How much must have come of what was tried.

use crate::faults::{Fault, Faults};

/// Fewest tries of a kind of which half must have come to their end.
const TRIES_MIN: u64 = 8;

impl Fault {
    /// Returns whether nothing keeps the fault from coming to its end.
    fn always_comes(self) -> bool {
        use Fault::{ComeWhileDown, FullDisk, Kill, Map, Pause, Restart};
        matches!(self, Kill | Pause | Restart | Map | FullDisk | ComeWhileDown)
    }

    /// Returns whether it needs bytes, or answers in shared memory, that may not come in its time.
    fn needs_luck(self) -> bool {
        matches!(self, Self::Cut | Self::KillClient)
    }
}

impl Faults {
    pub(crate) fn check(&self, has_disk: bool) {
        for (&fault, (&tried, &done)) in Fault::ALL.iter().zip(self.counts.iter().zip(&self.done)) {
            if fault == Fault::FullDisk && !has_disk {
                continue;
            }
            let least = match tried {
                _ if fault.always_comes() => tried,
                0..TRIES_MIN => 0,
                _ if fault.needs_luck() => 1,
                _ => tried.div_ceil(2),
            };
            assert!(done >= least, "{fault:?}: {done} of {tried} came to their end");
        }
    }
}
