//! Gauges that a shard publishes several times a second.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lodestore_schema::{Failure, FailureCode};
use tracing::warn;

use super::Shard;
use crate::limits::{HEARTBEAT_INTERVAL, IN_FLIGHT_BYTES_PER_SHARD};

impl Shard {
    /// Publishes the gauges of this executor periodically. A request for metrics reads the last
    /// published gauges without involving the shard.
    pub(super) fn start_heartbeat(self: &Rc<Self>) {
        let shard = Rc::downgrade(self);
        self.spawn_guarded("publisher of metrics", async move {
            let mut delay = Duration::ZERO;
            while let Some(shard) = shard.upgrade() {
                shard.publish();
                shard.counters().gauges.delay.record(delay);
                drop(shard);
                let start = Instant::now();
                glommio::timer::sleep(HEARTBEAT_INTERVAL).await;
                delay = start.elapsed().saturating_sub(HEARTBEAT_INTERVAL);
            }
        });
    }

    fn publish(&self) {
        let gauges = &self.counters().gauges;
        // Reading the executor's total resets it.
        gauges.add_busy(glommio::executor().executor_stats().total_runtime());
        let set = |figure: &AtomicU64, n| figure.store(n, Ordering::Relaxed);
        set(&gauges.room_taken, IN_FLIGHT_BYTES_PER_SHARD.saturating_sub(self.room.available()));
        set(&gauges.read_room_taken, self.reads.bytes_in_flight());
        set(&gauges.volatile_pulls_waiting, self.waiting.n_pulls() as u64);
        set(&gauges.pulls_waiting, self.reads.n_waiting() as u64);
        set(
            &gauges.shared_taken,
            self.plan.shared_bytes.saturating_sub(self.shared_room.available()),
        );
        let (mut n_rows, mut n_bytes, mut evictions) = (0, 0, 0);
        for tensor in &self.tensors {
            let (rows, row_bytes, evicted) = tensor.residents();
            n_rows += rows;
            n_bytes += rows * row_bytes;
            evictions += evicted;
        }
        set(&gauges.tier_rows, n_rows);
        set(&gauges.tier_used_bytes, n_bytes);
        set(&gauges.tier_evictions, evictions);
        self.plan.observed.heartbeat(self.counters());
    }

    /// Counts a failure that a client receives. Logs it if the server is at fault.
    pub(crate) fn refused(&self, refusal: &Failure) {
        self.counters().failed(refusal.code);
        if matches!(refusal.code, FailureCode::Damaged | FailureCode::Internal)
            && let Some(untold) = self.log_limit.allow(Instant::now())
        {
            let (shard, code) = (self.id, refusal.code.name());
            warn!(shard, code, untold, reason = %refusal.message, "request failed");
        }
    }
}
