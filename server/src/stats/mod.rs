//! Counters of one shard: written only by that shard, read by any thread.
//!
//! The shard adds with a plain load and store, without a locked instruction, and no two shards
//! write to one cache line. A reader gets each figure as of some moment, not all as of the same
//! moment.

mod latency;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lodestore_schema::request::PullKind;
use lodestore_schema::stats::ShardStats;
use lodestore_schema::{FailureCode, RequestBody};

pub(crate) use latency::{LatencyCounts, N_BUCKETS, bound_us};

/// Counters that one shard writes and any thread reads. Accesses are relaxed, because each figure
/// is independent. Aligned to two cache lines, because the processor prefetches the adjacent one.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) kinds: [KindCounters; RequestKind::ALL.len()],
    pub(crate) failures: [AtomicU64; FailureCode::ALL.len()],
    pub(crate) rows: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Rows sent by tensor.
    pub(crate) tensor_rows: TensorCounters,
    /// Bytes of rows sent through memory shared with clients.
    pub(crate) shared_bytes: AtomicU64,
    pub(crate) tier_hits: AtomicU64,
    pub(crate) tier_misses: AtomicU64,
    pub(crate) tier_bytes: AtomicU64,
    pub(crate) read_extents: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    /// Rows read in the extent of another row.
    pub(crate) joined_rows: AtomicU64,
    pub(crate) reads_in_flight: AtomicU64,
    pub(crate) forwarded_rows: AtomicU64,
    pub(crate) pushes: AtomicU64,
    pub(crate) pushed_rows: AtomicU64,
    pub(crate) delta_rows: AtomicU64,
    /// Volatile rows published, sent, and requested but missing.
    pub(crate) published_rows: AtomicU64,
    pub(crate) volatile_rows: AtomicU64,
    pub(crate) lacking_rows: AtomicU64,
    /// Bytes of rows to preload, and bytes that are done.
    pub(crate) preload_bytes: AtomicU64,
    pub(crate) preloaded_bytes: AtomicU64,
    pub(crate) connections: AtomicU32,
    pub(crate) connections_taken: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    /// Evicted during the handshake.
    pub(crate) connections_evicted: AtomicU64,
    /// Closed for a new connection while idle.
    pub(crate) connections_idle_closed: AtomicU64,
    pub(crate) connections_broken: [AtomicU64; BreakReason::ALL.len()],
    pub(crate) gauges: Gauges,
}

/// Counters of a [`Line`].
const N_IN_LINE: usize = 16;

/// Counters that share no line with those of another shard, see [`Counters`].
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line([AtomicU64; N_IN_LINE]);

/// A counter for each tensor.
#[derive(Debug, Default)]
pub(crate) struct TensorCounters(Box<[Line]>);

impl TensorCounters {
    /// Returns the counter of the tensor at `position`, below the number of tensors.
    pub(crate) fn at(&self, position: usize) -> &AtomicU64 {
        &self.0[position / N_IN_LINE].0[position % N_IN_LINE]
    }
}

/// Requests of one kind.
#[derive(Debug, Default)]
pub(crate) struct KindCounters {
    pub(crate) begun: AtomicU64,
    /// Answered, or cancelled with their connection.
    pub(crate) ended: AtomicU64,
    /// Latencies of answered requests, failures included.
    pub(crate) latency: LatencyCounts,
}

/// Gauges that a shard publishes several times a second, because no other thread can read them.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// Time of the last publication, in milliseconds after the server's start; 0 before the first.
    pub(crate) at_ms: AtomicU64,
    /// Time in which the shard was not idle.
    pub(crate) busy_ns: AtomicU64,
    /// Delay of each publication against its schedule: an event waits this long until the shard
    /// notices it.
    pub(crate) delay: LatencyCounts,
    /// Bytes that requests hold.
    pub(crate) room_taken: AtomicU64,
    /// Bytes of the buffers of reads in flight.
    pub(crate) read_room_taken: AtomicU64,
    /// Pulls that wait for the budget of disk reads.
    pub(crate) pulls_waiting: AtomicU64,
    /// Pulls that wait for volatile rows.
    pub(crate) volatile_pulls_waiting: AtomicU64,
    /// Bytes of shared memory that clients map.
    pub(crate) shared_taken: AtomicU64,
    pub(crate) tier_rows: AtomicU64,
    pub(crate) tier_used_bytes: AtomicU64,
    pub(crate) tier_evictions: AtomicU64,
}

/// Kinds of requests, as metrics distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    SyncPull,
    VectorPull,
    Push,
    Commit,
    Compact,
    Describe,
    Stat,
    Share,
    Copy,
    Follow,
    Declare,
    Claim,
    Publish,
    VolatilePull,
}

/// Why a connection ended, other than by its client between two requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakReason {
    /// The client violated the protocol.
    Wire,
    /// The client was too slow.
    Timeout,
    /// The TLS handshake failed.
    Tls,
    /// The client sent no token, or a wrong one.
    Unauthenticated,
    /// The client disconnected during a reply.
    Left,
    /// The socket failed, or was closed in the middle of a frame.
    Io,
    /// A request panicked.
    Panic,
}

/// A request in progress; dropping it without `answered` counts it as cancelled.
pub(crate) struct RunningRequest<'a> {
    counters: &'a KindCounters,
    begun: Instant,
}

/// Adds to a counter that only this thread writes.
pub(crate) fn count(counter: &AtomicU64, n: usize) {
    add(counter, n as u64);
}

fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl RequestKind {
    /// All kinds in the order of their numbers, with their labels in metrics.
    pub(crate) const ALL: [(Self, &'static str); 14] = [
        (Self::SyncPull, "sync_pull"),
        (Self::VectorPull, "vector_pull"),
        (Self::Push, "push"),
        (Self::Commit, "commit"),
        (Self::Compact, "compact"),
        (Self::Describe, "describe"),
        (Self::Stat, "stat"),
        (Self::Share, "share"),
        (Self::Copy, "copy"),
        (Self::Follow, "follow"),
        (Self::Declare, "declare"),
        (Self::Claim, "claim"),
        (Self::Publish, "publish"),
        (Self::VolatilePull, "volatile_pull"),
    ];

    pub(crate) fn of(body: &RequestBody) -> Self {
        match body {
            RequestBody::Pull { kind: PullKind::Sync, .. } => Self::SyncPull,
            RequestBody::Pull { kind: PullKind::Vector, .. } => Self::VectorPull,
            RequestBody::Push { .. } => Self::Push,
            RequestBody::Commit { .. } => Self::Commit,
            RequestBody::Compact => Self::Compact,
            RequestBody::Describe => Self::Describe,
            RequestBody::Share | RequestBody::Lend { .. } => Self::Share,
            RequestBody::Copy { .. } => Self::Copy,
            RequestBody::Follow { .. } => Self::Follow,
            RequestBody::Declare(_) | RequestBody::Volatile { .. } => Self::Declare,
            RequestBody::Claim { .. } => Self::Claim,
            RequestBody::Publish(_) => Self::Publish,
            RequestBody::PullVolatile(_) => Self::VolatilePull,
            // Tokens and acknowledgements are not counted as requests.
            RequestBody::Stat | RequestBody::Authenticate { .. } | RequestBody::Taken => Self::Stat,
        }
    }
}

impl BreakReason {
    /// All reasons in the order of their numbers, with their labels in metrics.
    pub(crate) const ALL: [(Self, &'static str); 7] = [
        (Self::Wire, "wire"),
        (Self::Timeout, "timeout"),
        (Self::Tls, "tls"),
        (Self::Unauthenticated, "unauthenticated"),
        (Self::Left, "left"),
        (Self::Io, "io"),
        (Self::Panic, "panic"),
    ];
}

impl Counters {
    /// Returns the counters of a shard that serves `n_tensors` tensors.
    pub(crate) fn new(n_tensors: usize) -> Self {
        let n_lines = n_tensors.div_ceil(N_IN_LINE);
        let tensor_rows = TensorCounters((0..n_lines).map(|_| Line::default()).collect());
        Self { tensor_rows, ..Self::default() }
    }

    /// Counts a request that was received, or sent, at `begun`.
    pub(crate) fn begin(&self, kind: RequestKind, begun: Instant) -> RunningRequest<'_> {
        let counters = &self.kinds[kind as usize];
        add(&counters.begun, 1);
        RunningRequest { counters, begun }
    }

    /// Counts a failed request.
    pub(crate) fn failed(&self, code: FailureCode) {
        add(&self.failures[code as usize], 1);
    }

    /// Counts a connection that ended for this reason.
    pub(crate) fn broken(&self, reason: BreakReason) {
        add(&self.connections_broken[reason as usize], 1);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.begun.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn all_failures(&self) -> u64 {
        self.failures.iter().map(|code| code.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn snapshot(&self) -> ShardStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShardStats {
            requests: self.requests(),
            rows: get(&self.rows),
            bytes: get(&self.bytes),
            tier_hits: get(&self.tier_hits),
            tier_misses: get(&self.tier_misses),
            tier_bytes: get(&self.tier_bytes),
            read_extents: get(&self.read_extents),
            read_bytes: get(&self.read_bytes),
            forwarded_rows: get(&self.forwarded_rows),
            failures: self.all_failures(),
            connections: self.connections.load(Ordering::Relaxed),
            pushes: get(&self.pushes),
            pushed_rows: get(&self.pushed_rows),
            delta_rows: get(&self.delta_rows),
            shared_bytes: get(&self.shared_bytes),
            preloaded_bytes: get(&self.preloaded_bytes),
            preload_bytes: get(&self.preload_bytes),
            published_rows: get(&self.published_rows),
            volatile_rows: get(&self.volatile_rows),
            lacking_rows: get(&self.lacking_rows),
        }
    }
}

impl KindCounters {
    /// Returns the number of requests that have begun and not ended.
    pub(crate) fn in_progress(&self) -> u64 {
        // Read in this order, because a request that ends in between must not count below zero.
        let ended = self.ended.load(Ordering::Relaxed);
        self.begun.load(Ordering::Relaxed).saturating_sub(ended)
    }
}

impl RunningRequest<'_> {
    /// Counts the request as answered.
    pub(crate) fn answered(self) {
        self.counters.latency.record(self.begun.elapsed());
    }
}

impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        add(&self.counters.ended, 1);
    }
}

impl Gauges {
    /// Adds the busy time of the shard since the last publication.
    pub(crate) fn add_busy(&self, busy: Duration) {
        add(&self.busy_ns, u64::try_from(busy.as_nanos()).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_codes_and_reasons_are_indexed_by_their_numbers() {
        assert!(RequestKind::ALL.iter().enumerate().all(|(at, kind)| kind.0 as usize == at));
        assert!(FailureCode::ALL.iter().enumerate().all(|(at, code)| code.0 as usize == at));
        assert!(BreakReason::ALL.iter().enumerate().all(|(at, why)| why.0 as usize == at));
    }

    #[test]
    fn a_cancelled_request_ends_without_a_latency() {
        let counters = Counters::new(1);
        let begin = || counters.begin(RequestKind::Push, Instant::now());
        let (given_up, answered) = (begin(), begin());
        let push = &counters.kinds[RequestKind::Push as usize];
        assert_eq!(push.in_progress(), 2);
        drop(given_up);
        answered.answered();
        assert_eq!(push.in_progress(), 0);
        assert_eq!(push.latency.buckets().sum::<u64>(), 1);
    }

    #[test]
    fn shards_share_no_cache_line() {
        assert_eq!(align_of::<Counters>(), 128);
        assert_eq!(size_of::<Counters>() % 128, 0);
    }
}
