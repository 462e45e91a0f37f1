//! What a shard tells of itself a few times a second, and what it complains of in the log.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lodestore_schema::{Failure, FailureCode};
use tracing::warn;

use super::Shard;
use crate::limits::{BEAT, IN_FLIGHT_BYTES_PER_SHARD};

/// Between two complaints in the log: a client that asks for a damaged row over and over must not
/// fill a disk.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(1);

/// Faults of the server that its log tells.
#[derive(Default)]
pub(super) struct Complaints {
    last: Cell<Option<Instant>>,
    untold: Cell<u64>,
}

impl Complaints {
    /// How many were not told since the last that was; `None` when this one is not to be told.
    fn tell(&self, now: Instant) -> Option<u64> {
        if self.last.get().is_some_and(|last| now.duration_since(last) < COMPLAINT_PAUSE) {
            self.untold.set(self.untold.get() + 1);
            return None;
        }
        self.last.set(Some(now));
        Some(self.untold.take())
    }
}

impl Shard {
    /// Tells what only this executor knows, over and over. Whoever asks for metrics reads what was
    /// told last, and the shard does not wait for them.
    pub(super) fn start_beat(self: &Rc<Self>) {
        let shard = Rc::downgrade(self);
        let beat = async move {
            while let Some(shard) = shard.upgrade() {
                shard.tell();
                drop(shard);
                glommio::timer::sleep(BEAT).await;
            }
        };
        glommio::spawn_local(beat).detach();
    }

    fn tell(&self) {
        let beat = &self.counters().beat;
        // Taken from the executor, so that it starts at 0 again.
        beat.add_busy(glommio::executor().executor_stats().total_runtime());
        let set = |figure: &AtomicU64, n| figure.store(n, Ordering::Relaxed);
        set(&beat.room_taken, IN_FLIGHT_BYTES_PER_SHARD.saturating_sub(self.room.available()));
        let (mut n_rows, mut n_bytes, mut evictions) = (0, 0, 0);
        for tensor in &self.tensors {
            let (rows, row_bytes, evicted) = tensor.residents();
            n_rows += rows;
            n_bytes += rows * row_bytes;
            evictions += evicted;
        }
        set(&beat.tier_rows, n_rows);
        set(&beat.tier_used_bytes, n_bytes);
        set(&beat.tier_evictions, evictions);
        self.plan.observed.beaten(self.counters());
    }

    /// Counts a failure that a client is told, and logs it if it is the server's own.
    pub(crate) fn refused(&self, refusal: &Failure) {
        self.counters().failed(refusal.code);
        if matches!(refusal.code, FailureCode::Damaged | FailureCode::Internal)
            && let Some(untold) = self.complaints.tell(Instant::now())
        {
            let (shard, code) = (self.id, refusal.code.name());
            warn!(shard, code, untold, reason = %refusal.message, "a request failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_faults_is_told_once_a_second_with_its_number() {
        let (complaints, start) = (Complaints::default(), Instant::now());
        let at = |ms| complaints.tell(start + Duration::from_millis(ms));
        assert_eq!(at(0), Some(0));
        assert_eq!([at(1), at(500), at(999)], [None; 3]);
        assert_eq!(at(1000), Some(3));
        assert_eq!(at(2500), Some(0));
    }
}
