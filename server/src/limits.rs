//! Every bound of the server, in one place; the wire's own bounds are in `lodestore_schema`.

use std::time::Duration;

pub use lodestore_schema::limits::ROW_BYTES_MAX;
use lodestore_schema::limits::{
    CHUNK_BYTES, IDS_PER_PULL_MAX, PUSH_BODY_BYTES_MAX, ROWS_PER_PUSH_MAX, SHARED_BYTES_MAX,
};

/// Most shards of one server.
pub const SHARDS_MAX: u16 = 256;
/// Most admitted connections of one shard. One more takes the place of the one that is idle
/// longest, or is refused.
pub const CONNECTIONS_PER_SHARD_MAX: usize = 256;
/// A connection without a request for this long may be evicted for another.
pub const IDLE_MIN: Duration = Duration::from_secs(10);
/// Most connections of a shard that are not admitted yet (TLS, hello, token) or are being refused.
/// One more ends another, drawn at random from the busiest source. A source is an address (for
/// version 6 a network of 64 bits) or the Unix socket, so strangers cannot keep others out.
pub const ENTERING_PER_SHARD_MAX: usize = 256;
/// How long a connection that is refused is kept, so that its client receives why.
pub const REFUSAL_LINGER: Duration = Duration::from_secs(1);
/// Bytes of ids and rows that all requests of one shard may hold; past it they get `overloaded`.
pub const IN_FLIGHT_BYTES_PER_SHARD: u64 = 64 << 20;
/// Most rows of a chunk of a reply: short rows take as long as others to find.
pub const CHUNK_ROWS_MAX: usize = 8192;
/// Bytes of a shard's buffers for reads from disk: `READS_IN_FLIGHT` of 64 KiB. Longer or more
/// reads take their memory from the heap.
pub const IO_BYTES_PER_SHARD: usize = 4 << 20;
/// Bytes of memory that a shard locks: each of three rings its own and the buffers.
pub const LOCKED_BYTES_PER_SHARD: usize = (512 << 10) + 3 * IO_BYTES_PER_SHARD;
/// Bytes of buffers that a shard keeps for the requests to come.
pub const POOLED_BYTES_PER_SHARD: usize = 32 << 20;
/// Most of these buffers, however short: a request looks through them on the shard's thread.
pub const POOLED_BUFFERS_MAX: usize = CONNECTIONS_PER_SHARD_MAX;
/// Sets of a gather's lists (keys, misses, a plan) that a tensor's part of a shard keeps for the
/// next.
pub const IDLE_SCRATCH_MAX: usize = 32;
/// Chunks of rows in the memory that a connection over a Unix socket shares with its client. These
/// are enough for both sides to work, and few enough to stay in the processor's cache.
pub const SHARED_SLOTS: usize = 4;
/// Bytes of such memory of one shard, part of the server's budget of memory; a client past it gets
/// its rows by the socket.
pub const SHARED_BYTES_PER_SHARD: u64 = 32 << 20;
/// A request takes at most this fraction of that budget.
pub const SHARED_ONE_IN: u64 = 16;
/// Hint in an `overloaded` reply.
pub const RETRY_AFTER: Duration = Duration::from_millis(20);
/// Longest hint: what a client waits for may be over long before the forecast says so.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);
/// Disk reads that one gather keeps going concurrently: deep enough for an NVMe device.
pub const READS_IN_FLIGHT: usize = 64;
/// Disk reads of a shard in flight: enough for a disk of a network, few enough that one of them is
/// soon over. More wait, in the order in which their pulls arrived.
pub const READS_PER_SHARD: u64 = 256;
/// Bytes of buffers of these reads. A read takes its part before it starts and returns it with its
/// buffer; a longer read than all of it is made alone.
pub const READ_BYTES_PER_SHARD: u64 = 32 << 20;
/// Rows of gathers that have lists of what they read, of `READ_LIST_BYTES_PER_ROW`; others wait.
pub const PLANNED_ROWS_PER_SHARD: u64 = 128 << 10;
/// Bytes of lists for each row that is read: its place, its plan, its extent.
pub const READ_LIST_BYTES_PER_ROW: usize = 96;
/// The share of the room for requests and of the budgets of reads that is kept for SyncPulls, as a
/// divisor. VectorPulls, puts, copies and preloads share the rest.
pub const SYNC_RESERVE_ONE_IN: u64 = 8;
/// The room that all of these may hold together.
pub const BULK_BYTES_PER_SHARD: u64 =
    IN_FLIGHT_BYTES_PER_SHARD - IN_FLIGHT_BYTES_PER_SHARD / SYNC_RESERVE_ONE_IN;
/// Pieces that a shard loads ahead concurrently, and most bytes of the rows of one.
pub const PRELOAD_WORKERS: usize = 2;
/// See [`PRELOAD_WORKERS`].
pub const PRELOAD_BYTES: usize = 1 << 20;
/// Most rows of such a piece: short rows take as long as others to keep.
pub const PRELOAD_ROWS: usize = 32_768;
/// While pulls read from disk, a piece is followed by a pause of this many times its own time.
pub const PRELOAD_PAUSES: u32 = 3;
/// Longest such pause.
pub const PRELOAD_PAUSE_MAX: Duration = Duration::from_millis(100);
/// The part of a busy core that loading takes, where bulk pulls have 100.
pub const PRELOAD_SHARES: usize = 20;
/// Pulls of volatile rows that may wait for stamps at a shard; one more is refused.
pub const WAITING_PULLS_PER_SHARD_MAX: usize = 64;
/// Bytes of the ids of all of these.
pub const WAITING_BYTES_PER_SHARD: usize = 4 << 20;
/// Shortest and longest pause between two looks for rows that a pull waits for.
pub const WAIT_PAUSE_MIN: Duration = Duration::from_micros(50);
/// See [`WAIT_PAUSE_MIN`].
pub const WAIT_PAUSE_MAX: Duration = Duration::from_millis(2);
/// Letters that may wait between two shards, and events that may wait for one.
pub const MAILBOX_LEN: usize = 1024;

/// Threads on which puts and commits wait for the disk: as many as these share one sync.
pub const WRITE_THREADS: usize = 16;
/// Threads that pin versions and look at folders.
pub const LOOK_THREADS: usize = 4;
/// Calls that may wait for the threads of either kind; one more is answered `overloaded`.
pub const CALLS_WAITING_MAX: usize = 256;
/// Bytes that a put holds for each row beside the row itself: keys, places, entries of lists.
pub const PUT_BYTES_PER_ROW: usize = 192;
/// Copies of a put's rows in memory until it is durable: the received bytes, changes of the
/// catalog, and RocksDB's batch.
pub const PUT_COPIES: usize = 3;

/// Bytes of rows and ids of all unfinished puts of several pieces.
pub const STAGED_BYTES_MAX: u64 = 1 << 30;
/// Most unfinished puts of several pieces.
pub const STAGED_PUTS_MAX: usize = 1024;
/// A put of which no piece has come for this long may be evicted for another.
pub const STAGED_YIELD: Duration = Duration::from_secs(10);
/// A put of which no piece has come for this long is dropped.
pub const STAGED_IDLE_MAX: Duration = Duration::from_secs(60);
/// Puts that have ended and are remembered, for clients that have not had the answer.
pub const FINISHED_PUTS_MAX: usize = 1 << 16;

/// How long reads of a partition that is given up are waited for.
pub const LAST_READS_MAX: Duration = Duration::from_secs(3);

/// How often files are removed that versions kept for readers have held.
pub const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// How often files are looked at soon after a compaction: gathers may still read from them.
pub const QUICK_SWEEPS: usize = 50;
/// Pause between two such looks.
pub const SWEEP_PAUSE: Duration = Duration::from_millis(20);

/// All shards of a server must have begun, and found each other, within this time.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer that is silent for this long is probed, and after three probes given up.
pub const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long a shard's tasks may run, a chunk of rows aside, before it polls its rings. A request
/// that arrives for a SyncPull ends the turn.
pub const TURN: Duration = Duration::from_micros(500);
/// A new connection must be admitted within this time: TLS, hello and token together.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Each part of a frame (prefix, head, body) must come whole within this time once it is awaited.
pub const FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that does not take a reply's chunk within this time is cut off.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Least rate at which a client takes a reply, beyond `WRITE_TIMEOUT` once; slower, it is cut off.
pub const REPLY_BYTES_PER_SECOND_MIN: usize = 256 << 10;
/// Longest that the rows of a request may take, whatever deadline it asks for.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests in flight get this long to finish at a stop.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Host tier of a server unless set: rows of one gigabyte.
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
/// A shard that has not published for this long is reported as hanging.
pub const HEARTBEAT_OVERDUE: Duration = Duration::from_secs(5);

/// Connections to the metrics port; one more ends the one that is open longest.
pub const HTTP_CONNECTIONS_MAX: usize = 32;
/// Most bytes of an HTTP request: its line and its headers.
pub const HTTP_HEAD_BYTES_MAX: usize = 8 << 10;
/// Most headers of an HTTP request.
pub const HTTP_HEADERS_MAX: usize = 64;
/// An HTTP request must have come, and its answer be taken, within this time.
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

/// Returns the connections that each of `n_shards` shards admits, where the process may have
/// `max_files` files open: half of them are for connections, the rest for files of rows.
pub(crate) fn connections_per_shard(max_files: u64, n_shards: usize) -> usize {
    let of_shard = max_files / 2 / n_shards.max(1) as u64;
    usize::try_from(of_shard).unwrap_or(usize::MAX).clamp(1, CONNECTIONS_PER_SHARD_MAX)
}

#[cfg(test)]
mod tests {
    use lodestore_schema::limits::{LENT_FOR, REQUEST_BODY_BYTES_MAX, REQUEST_HEAD_BYTES_MAX};

    use super::*;

    #[test]
    fn the_table_for_operators_states_what_holds() {
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
