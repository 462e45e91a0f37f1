//! Every limit of the server, in one place; the limits of the wire are in `lodestore_schema`.

use std::time::Duration;

pub use lodestore_schema::limits::ROW_BYTES_MAX;
use lodestore_schema::limits::{
    CHUNK_BYTES, IDS_PER_PULL_MAX, PUSH_BODY_BYTES_MAX, ROWS_PER_PUSH_MAX, SHARED_BYTES_MAX,
};

/// Maximum shards of one server.
pub const SHARDS_MAX: u16 = 256;
/// Maximum admitted connections of one shard. A further connection evicts the longest-idle one, or
/// is refused.
pub const CONNECTIONS_PER_SHARD_MAX: usize = 256;
/// A connection without a request for this long may be evicted.
pub const IDLE_MIN: Duration = Duration::from_secs(10);
/// Maximum connections of a shard that are not admitted yet (TLS, hello, token) or are being
/// refused. A further connection evicts one, drawn at random from the source with the most
/// connections. A source is an address (a /64 network for IPv6) or the Unix socket, so that one
/// source cannot lock out the others.
pub const ENTERING_PER_SHARD_MAX: usize = 256;
/// How long a refused connection stays open, so that its client receives the reason.
pub const REFUSAL_LINGER: Duration = Duration::from_secs(1);
/// Bytes of ids and rows of all requests of one shard; beyond that requests fail as `overloaded`.
pub const IN_FLIGHT_BYTES_PER_SHARD: u64 = 64 << 20;
/// Maximum rows of a reply chunk: a short row costs as much to look up as a long one.
pub const CHUNK_ROWS_MAX: usize = 8192;
/// Bytes of a shard's buffers for disk reads: `READS_IN_FLIGHT` of 64 KiB. Longer or further reads
/// allocate from the heap.
pub const IO_BYTES_PER_SHARD: usize = 4 << 20;
/// Bytes of memory that a shard locks: three rings with their buffers.
pub const LOCKED_BYTES_PER_SHARD: usize = (512 << 10) + 3 * IO_BYTES_PER_SHARD;
/// Bytes of buffers that a shard keeps for later requests.
pub const POOLED_BYTES_PER_SHARD: usize = 32 << 20;
/// Maximum number of these buffers: each request scans the list on the shard's thread.
pub const POOLED_BUFFERS_MAX: usize = CONNECTIONS_PER_SHARD_MAX;
/// Sets of a gather's lists (keys, misses, a plan) that a shard keeps per tensor for the next
/// gather.
pub const IDLE_SCRATCH_MAX: usize = 32;
/// Chunks of rows in the memory that a connection over a Unix socket shares with its client: enough
/// to keep both sides busy, few enough to stay in the processor's cache.
pub const SHARED_SLOTS: usize = 4;
/// Bytes of this shared memory per shard, part of the server's memory budget. A client beyond it
/// receives its rows over the socket.
pub const SHARED_BYTES_PER_SHARD: u64 = 32 << 20;
/// Maximum fraction of that budget for one request.
pub const SHARED_ONE_IN: u64 = 16;
/// Retry hint in an `overloaded` reply.
pub const RETRY_AFTER: Duration = Duration::from_millis(20);
/// Longest retry hint: the load may end long before the forecast says so.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// Concurrent disk reads of one gather: deep enough for an NVMe device.
pub const READS_IN_FLIGHT: usize = 64;
/// Concurrent disk reads of a shard: enough for a network disk, few enough that one of them soon
/// completes. Further reads wait, in the order in which their pulls arrived.
pub const READS_PER_SHARD: u64 = 256;
/// Bytes of buffers of these reads. A read acquires its bytes before it starts and releases them
/// with its buffer. A read that is longer than the whole budget runs alone.
pub const READ_BYTES_PER_SHARD: u64 = 32 << 20;
/// Rows of gathers that hold read lists, of `READ_LIST_BYTES_PER_ROW`; further gathers wait.
pub const PLANNED_ROWS_PER_SHARD: u64 = 128 << 10;
/// Bytes of read lists per row: its place, its plan, its extent.
pub const READ_LIST_BYTES_PER_ROW: usize = 96;
/// Divisor for the share of request memory and read budgets that is reserved for SyncPulls.
/// VectorPulls, puts, copies and preloads share the rest.
pub const SYNC_RESERVE_ONE_IN: u64 = 8;
/// Request memory of VectorPulls, puts, copies and preloads together.
pub const BULK_BYTES_PER_SHARD: u64 =
    IN_FLIGHT_BYTES_PER_SHARD - IN_FLIGHT_BYTES_PER_SHARD / SYNC_RESERVE_ONE_IN;
/// Concurrent preload tasks of a shard.
pub const PRELOAD_WORKERS: usize = 2;
/// Maximum bytes of rows of one preloaded piece.
pub const PRELOAD_BYTES: usize = 1 << 20;
/// Maximum rows of such a piece: a short row costs as much to insert as a long one.
pub const PRELOAD_ROWS: usize = 32_768;
/// While pulls read from disk, a preload pauses after each piece for this multiple of the piece's
/// time.
pub const PRELOAD_PAUSES: u32 = 3;
/// Longest such pause.
pub const PRELOAD_PAUSE_MAX: Duration = Duration::from_millis(100);
/// Scheduler shares of preloading, where bulk pulls have 100.
pub const PRELOAD_SHARES: usize = 20;
/// Pulls of volatile rows that may wait for stamps at a shard; a further one is refused.
pub const WAITING_PULLS_PER_SHARD_MAX: usize = 64;
/// Bytes of the ids of all waiting pulls.
pub const WAITING_BYTES_PER_SHARD: usize = 4 << 20;
/// Shortest pause between two checks for the rows that a pull waits for.
pub const WAIT_PAUSE_MIN: Duration = Duration::from_micros(50);
/// Longest pause between two checks for the rows that a pull waits for.
pub const WAIT_PAUSE_MAX: Duration = Duration::from_millis(2);
/// Messages that may queue between two shards, and events that may queue for one.
pub const MAILBOX_LEN: usize = 1024;

/// Threads for puts and commits that wait for the disk; concurrent ones share one sync.
pub const WRITE_THREADS: usize = 16;
/// Threads that pin versions and read folders.
pub const LOOK_THREADS: usize = 4;
/// Calls that may queue for either kind of thread; a further one fails as `overloaded`.
pub const CALLS_WAITING_MAX: usize = 256;
/// Bytes that a put holds per row besides the row: keys, places, list entries.
pub const PUT_BYTES_PER_ROW: usize = 192;
/// Copies of a put's rows in memory until it is durable: the received bytes, changes of the
/// catalog, and RocksDB's batch.
pub const PUT_COPIES: usize = 3;

/// Bytes of rows and ids of all unfinished puts of several pieces.
pub const STAGED_BYTES_MAX: u64 = 1 << 30;
/// Most unfinished puts of several pieces.
pub const STAGED_PUTS_MAX: usize = 1024;
/// A put that received no piece for this long may be evicted.
pub const STAGED_YIELD: Duration = Duration::from_secs(10);
/// A put that received no piece for this long is dropped.
pub const STAGED_IDLE_MAX: Duration = Duration::from_secs(60);
/// Finished puts that are remembered, for clients that did not receive the reply.
pub const FINISHED_PUTS_MAX: usize = 1 << 16;

/// How long a partition's release waits for the last reads.
pub const LAST_READS_MAX: Duration = Duration::from_secs(3);

/// Interval at which files of expired versions are removed.
pub const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Number of quick sweeps after a compaction: gathers may still read the replaced files.
pub const QUICK_SWEEPS: usize = 50;
/// Pause between two quick sweeps.
pub const SWEEP_PAUSE: Duration = Duration::from_millis(20);

/// All shards must start and find each other within this time.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer that is silent for this long is probed, and is dropped after three probes.
pub const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long a shard's tasks may run, besides one chunk of rows, before it polls its rings. A
/// SyncPull that arrives ends the turn.
pub const TURN: Duration = Duration::from_micros(500);
/// A new connection must be admitted (TLS, hello, token) within this time.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Each part of a frame (prefix, head, body) must arrive within this time once the shard waits for
/// it.
pub const FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that does not read a reply chunk within this time is disconnected.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum rate at which a client reads a reply, after `WRITE_TIMEOUT` once; a slower client is
/// disconnected.
pub const REPLY_BYTES_PER_SECOND_MIN: usize = 256 << 10;
/// Maximum deadline of a request, whatever its client asks for.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for requests in flight to finish when the server stops.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Default size of the host tiers, in bytes.
pub const TIER_BYTES_DEFAULT: u64 = 1 << 30;

const _: () = assert!(
    BULK_BYTES_PER_SHARD >= (16 * IDS_PER_PULL_MAX + CHUNK_BYTES + 2 * ROW_BYTES_MAX) as u64,
    "the largest request must fit an idle shard"
);
const _: () = assert!(
    BULK_BYTES_PER_SHARD
        >= (PUT_COPIES * PUSH_BODY_BYTES_MAX + PUT_BYTES_PER_ROW * ROWS_PER_PUSH_MAX) as u64,
    "the largest push must fit an idle shard"
);

/// Interval at which a shard publishes its gauges.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);
/// A shard that published no gauges for this long is reported as hanging.
pub const HEARTBEAT_OVERDUE: Duration = Duration::from_secs(5);

/// Connections to the metrics port; a further one closes the oldest.
pub const HTTP_CONNECTIONS_MAX: usize = 32;
/// Maximum bytes of an HTTP request: request line and headers.
pub const HTTP_HEAD_BYTES_MAX: usize = 8 << 10;
/// Maximum headers of an HTTP request.
pub const HTTP_HEADERS_MAX: usize = 64;
/// An HTTP request must arrive, and its response be read, within this time.
pub const HTTP_TIMEOUT: Duration = Duration::from_secs(5);

const _: () = assert!(IO_BYTES_PER_SHARD == READS_IN_FLIGHT * (64 << 10));
const _: () = assert!(
    READS_PER_SHARD - READS_PER_SHARD / SYNC_RESERVE_ONE_IN >= 2 * READS_IN_FLIGHT as u64,
    "while one gather waits for its last reads the next has begun"
);
const _: () = assert!(
    PLANNED_ROWS_PER_SHARD >= 8 * CHUNK_ROWS_MAX as u64,
    "several gathers of the longest chunk are planned"
);
const _: () = assert!(SHARED_SLOTS * CHUNK_BYTES <= SHARED_BYTES_MAX);

/// Returns the connection limit of each of `n_shards` shards, where the process may open
/// `max_files` files: half of them for connections, the rest for files of rows.
pub(crate) fn connections_per_shard(max_files: u64, n_shards: usize) -> usize {
    let of_shard = max_files / 2 / n_shards.max(1) as u64;
    usize::try_from(of_shard).unwrap_or(usize::MAX).clamp(1, CONNECTIONS_PER_SHARD_MAX)
}

#[cfg(test)]
mod tests {
    use lodestore_schema::limits::{LENT_FOR, REQUEST_BODY_BYTES_MAX, REQUEST_HEAD_BYTES_MAX};

    use super::*;

    #[test]
    fn the_table_for_operators_has_the_values_of_the_code() {
        let table = include_str!("../../docs/limits.md");
        let seconds = |time: Duration| format!("{} s", time.as_secs());
        let size = |n: usize| match n {
            n if n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
            n if n.is_multiple_of(1 << 10) && n > 1 << 10 => format!("{} KiB", n >> 10),
            n => format!("{n} B"),
        };
        for (name, value) in [
            ("CONNECTIONS_PER_SHARD_MAX", CONNECTIONS_PER_SHARD_MAX.to_string()),
            ("ENTERING_PER_SHARD_MAX", ENTERING_PER_SHARD_MAX.to_string()),
            ("IDLE_MIN", seconds(IDLE_MIN)),
            ("HELLO_TIMEOUT", seconds(HELLO_TIMEOUT)),
            ("REQUEST_HEAD_BYTES_MAX", size(REQUEST_HEAD_BYTES_MAX)),
            ("REQUEST_BODY_BYTES_MAX", size(REQUEST_BODY_BYTES_MAX)),
            ("IDS_PER_PULL_MAX", IDS_PER_PULL_MAX.to_string()),
            ("ROWS_PER_PUSH_MAX", ROWS_PER_PUSH_MAX.to_string()),
            ("ROW_BYTES_MAX", size(ROW_BYTES_MAX)),
            ("FRAME_TIMEOUT", seconds(FRAME_TIMEOUT)),
            ("IN_FLIGHT_BYTES_PER_SHARD", size(IN_FLIGHT_BYTES_PER_SHARD as usize)),
            ("BULK_BYTES_PER_SHARD", size(BULK_BYTES_PER_SHARD as usize)),
            ("IO_BYTES_PER_SHARD", size(IO_BYTES_PER_SHARD)),
            ("READS_PER_SHARD", READS_PER_SHARD.to_string()),
            ("READ_BYTES_PER_SHARD", size(READ_BYTES_PER_SHARD as usize)),
            ("PLANNED_ROWS_PER_SHARD", PLANNED_ROWS_PER_SHARD.to_string()),
            ("RETRY_AFTER_MAX", seconds(RETRY_AFTER_MAX)),
            ("POOLED_BYTES_PER_SHARD", size(POOLED_BYTES_PER_SHARD)),
            ("POOLED_BUFFERS_MAX", POOLED_BUFFERS_MAX.to_string()),
            ("SHARED_SLOTS", SHARED_SLOTS.to_string()),
            ("SHARED_BYTES_PER_SHARD", size(SHARED_BYTES_PER_SHARD as usize)),
            ("LENT_FOR", seconds(LENT_FOR)),
            ("WAITING_PULLS_PER_SHARD_MAX", WAITING_PULLS_PER_SHARD_MAX.to_string()),
            ("WAITING_BYTES_PER_SHARD", size(WAITING_BYTES_PER_SHARD)),
            ("MAILBOX_LEN", MAILBOX_LEN.to_string()),
            ("CALLS_WAITING_MAX", CALLS_WAITING_MAX.to_string()),
            ("STAGED_BYTES_MAX", format!("{} GiB", STAGED_BYTES_MAX >> 30)),
            ("STAGED_PUTS_MAX", STAGED_PUTS_MAX.to_string()),
            ("STAGED_YIELD", seconds(STAGED_YIELD)),
            ("STAGED_IDLE_MAX", seconds(STAGED_IDLE_MAX)),
            ("REQUEST_TIMEOUT", seconds(REQUEST_TIMEOUT)),
            ("WRITE_TIMEOUT", seconds(WRITE_TIMEOUT)),
            ("REPLY_BYTES_PER_SECOND_MIN", size(REPLY_BYTES_PER_SECOND_MIN)),
            ("DRAIN_TIMEOUT", seconds(DRAIN_TIMEOUT)),
            ("HTTP_CONNECTIONS_MAX", HTTP_CONNECTIONS_MAX.to_string()),
            ("HTTP_HEAD_BYTES_MAX", size(HTTP_HEAD_BYTES_MAX)),
            ("HTTP_TIMEOUT", seconds(HTTP_TIMEOUT)),
        ] {
            let row = format!("| `{name}` | {value} |");
            assert!(table.contains(&row), "docs/limits.md has no {row}");
        }
    }
}
