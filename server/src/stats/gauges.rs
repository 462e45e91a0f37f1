//! Gauges that one shard publishes periodically.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::add;
use super::latency::LatencyCounts;

/// Gauges that a shard publishes a few times a second, since it alone can know them.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// When it last did, in milliseconds after the start of the server; 0 before the first time.
    pub(crate) at_ms: AtomicU64,
    /// Time in which it was not idle.
    pub(crate) busy_ns: AtomicU64,
    /// Delay of the last publication against its schedule: an event waits this long until the shard
    /// sees it.
    pub(crate) delay: LatencyCounts,
    /// Bytes that its requests hold.
    pub(crate) room_taken: AtomicU64,
    /// Bytes of buffers that reads from disk hold.
    pub(crate) read_room_taken: AtomicU64,
    /// Pulls that wait for such reads.
    pub(crate) pulls_waiting: AtomicU64,
    /// Pulls that wait for volatile rows.
    pub(crate) volatile_pulls_waiting: AtomicU64,
    /// Bytes that clients map.
    pub(crate) shared_taken: AtomicU64,
    pub(crate) tier_rows: AtomicU64,
    pub(crate) tier_used_bytes: AtomicU64,
    pub(crate) tier_evictions: AtomicU64,
}

impl Gauges {
    /// Adds the busy time of the shard since the last publication.
    pub(crate) fn add_busy(&self, busy: Duration) {
        add(&self.busy_ns, u64::try_from(busy.as_nanos()).unwrap_or(0));
    }
}
