//! Counters of one shard, read by `stat` requests from any shard.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lodestore_schema::ShardStats;

/// Written by one shard, read by all: relaxed, since each is a figure of its own.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) tier_hits: AtomicU64,
    pub(crate) tier_misses: AtomicU64,
    pub(crate) tier_bytes: AtomicU64,
    pub(crate) read_extents: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) forwarded_rows: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) pushes: AtomicU64,
    pub(crate) pushed_rows: AtomicU64,
    pub(crate) overlay_rows: AtomicU64,
    pub(crate) connections: AtomicU32,
}

/// Adds to a counter that one thread writes.
pub(crate) fn count(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn snapshot(&self) -> ShardStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShardStats {
            requests: get(&self.requests),
            rows: get(&self.rows),
            bytes: get(&self.bytes),
            tier_hits: get(&self.tier_hits),
            tier_misses: get(&self.tier_misses),
            tier_bytes: get(&self.tier_bytes),
            read_extents: get(&self.read_extents),
            read_bytes: get(&self.read_bytes),
            forwarded_rows: get(&self.forwarded_rows),
            failures: get(&self.failures),
            connections: self.connections.load(Ordering::Relaxed),
            pushes: get(&self.pushes),
            pushed_rows: get(&self.pushed_rows),
            overlay_rows: get(&self.overlay_rows),
        }
    }
}
