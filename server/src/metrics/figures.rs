//! All figures of a server at one moment: the body of `/status.json`, and the source of the
//! metrics.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use lodestore_graph::PartId;
use lodestore_schema::FailureCode;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::disk::DiskFigures;
use super::{Observed, Served};
use crate::following::FollowedPart;
use crate::limits::IN_FLIGHT_BYTES_PER_SHARD;
use crate::stats::{
    BreakReason, Counters, KindCounters, LatencyCounts, N_BUCKETS, RequestKind, bound_us,
};

/// A server: counters since its start, and current gauges. Sizes are bytes, times seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ServerFigures {
    /// Version and revision of the program.
    pub program: String,
    /// `opening`, `serving` or `draining`.
    pub phase: String,
    /// Whether the server accepts requests and every shard responds.
    pub ready: bool,
    /// Time since the start.
    pub uptime_seconds: f64,
    /// Time of the start, since 1970 UTC.
    pub started_unix_seconds: f64,
    /// Identity of the graph (uuid); empty before it is open.
    pub graph: String,
    /// Served partitions.
    pub parts: Vec<u16>,
    /// Rows sent by tensor name, over all shards.
    #[serde(default)]
    pub tensor_rows: BTreeMap<String, u64>,
    /// File system that holds the graph's folder; `None` if the kernel does not report it.
    #[serde(default)]
    pub disk: Option<DiskFigures>,
    /// By number of the shard.
    pub shards: Vec<ShardFigures>,
    /// By kind of request, over all shards.
    pub kinds: BTreeMap<String, KindFigures>,
    /// Failed requests by code, over all shards.
    pub failures: BTreeMap<String, u64>,
    /// Connections that broke, by reason, over all shards.
    pub connections_broken: BTreeMap<String, u64>,
    /// Connections closed on arrival, before a shard accepted them.
    #[serde(default)]
    pub connections_dropped: u64,
    /// Upper bounds of the latency buckets in seconds, exclusive. A bucket's lower bound is the one
    /// before.
    pub latency_bounds: Vec<f64>,
    /// Sampled delay until a shard notices an event, over all shards.
    #[serde(default)]
    pub shard_delay: LatencyFigures,
    /// Calls that wait for a thread of the store: `look`, `write`.
    pub store_calls_waiting: BTreeMap<String, u64>,
    /// Declared volatile tensors.
    #[serde(default)]
    pub volatile_tensors: u64,
    /// Maximum bytes of memory of these tensors.
    #[serde(default)]
    pub volatile_bytes: u64,
    /// Versions and compactions.
    pub updates: UpdateFigures,
    /// Memory, processor time and open files.
    pub process: ProcessFigures,
}

/// One shard.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ShardFigures {
    /// Requests received.
    pub requests: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Rows sent.
    pub rows: u64,
    /// Bytes of rows sent.
    pub bytes: u64,
    /// Bytes of rows sent through memory shared with clients of the same machine.
    pub shared_bytes: u64,
    /// Bytes of the rings shared with such clients; leased tiers are not counted.
    pub shared_memory_bytes: u64,
    /// Requests received and not answered yet.
    pub in_progress: u64,
    /// Open connections.
    pub connections: u64,
    /// Connections accepted since the start.
    pub connections_taken: u64,
    /// Connections refused because too many were open.
    pub connections_refused: u64,
    /// Connections evicted during the handshake, because too many were in it.
    pub connections_evicted: u64,
    /// Connections closed because they were idle when a new one needed their slot.
    pub connections_idle_closed: u64,
    /// Time in which the shard was not idle.
    pub busy_seconds: f64,
    /// Age of the shard's last published gauges.
    pub beat_age_seconds: f64,
    /// Bytes of ids and rows that requests hold.
    pub in_flight_bytes: u64,
    /// Maximum of `in_flight_bytes`.
    pub in_flight_bytes_limit: u64,
    /// Rows found in the host tier.
    pub tier_hits: u64,
    /// Lookups that missed the host tier.
    pub tier_misses: u64,
    /// Rows evicted.
    pub tier_evictions: u64,
    /// Rows in the host tier.
    pub tier_rows: u64,
    /// Bytes of rows in the host tier.
    pub tier_used_bytes: u64,
    /// Maximum bytes of the host tier.
    pub tier_bytes: u64,
    /// Extents read from disk.
    pub disk_reads: u64,
    /// Bytes read from disk, whole pages.
    pub disk_read_bytes: u64,
    /// Rows read in the extent of another row.
    pub joined_rows: u64,
    /// Disk reads in flight.
    pub disk_reads_in_flight: u64,
    /// Bytes of the buffers of reads in flight.
    pub disk_reads_in_flight_bytes: u64,
    /// Pulls that wait for the budget of disk reads.
    pub pulls_waiting_for_disk: u64,
    /// Rows fetched from another shard for a client that is not shard-aware.
    pub forwarded_rows: u64,
    /// Rows read from deltas.
    pub delta_rows: u64,
    /// Bytes of rows preloaded so far.
    #[serde(default)]
    pub preloaded_bytes: u64,
    /// Bytes of rows to preload in all.
    #[serde(default)]
    pub preload_bytes: u64,
    /// Volatile rows published.
    #[serde(default)]
    pub published_rows: u64,
    /// Volatile rows sent.
    #[serde(default)]
    pub volatile_rows: u64,
    /// Volatile rows that a pull requested and that lacked the stamp in time.
    #[serde(default)]
    pub lacking_rows: u64,
    /// Pulls that wait for volatile rows.
    #[serde(default)]
    pub volatile_pulls_waiting: u64,
    /// Pushes acknowledged.
    pub pushes: u64,
    /// Rows of acknowledged pushes.
    pub pushed_rows: u64,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KindFigures {
    /// Requests received.
    pub begun: u64,
    /// Requests received and not answered yet.
    pub in_progress: u64,
    /// Time from when the client sent the request, as far as known, to the last byte of the reply
    /// written to the socket.
    pub latency: LatencyFigures,
}

/// Latencies of requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyFigures {
    /// Requests by bucket, see [`ServerFigures::latency_bounds`].
    pub buckets: Vec<u64>,
    /// Sum of all latencies.
    pub sum_seconds: f64,
}

/// Versions and compactions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UpdateFigures {
    /// The newest committed version.
    pub version: u32,
    /// The oldest readable version.
    pub oldest_version: u32,
    /// Whether the server accepts updates.
    pub writable: bool,
    /// Whether the server follows a writer or a bucket.
    #[serde(default)]
    pub follower: bool,
    /// Rows of all deltas, each row counted once.
    pub committed_rows: u64,
    /// Rows put since the start and not committed.
    pub pending_rows: u64,
    /// Compactions requested, waiting ones included.
    pub compactions_asked: u64,
    /// Compactions finished.
    pub compactions_ended: u64,
    /// Bytes written by the running compaction.
    pub compaction_bytes: u64,
    /// Bytes that the running compaction will write.
    pub compaction_bytes_total: u64,
    /// Error of the last compaction; empty if it succeeded.
    pub compaction_failure: String,
    /// Partitions that are published in a bucket, by number.
    #[serde(default)]
    pub published: BTreeMap<String, PublishedFigures>,
    /// Followed partitions, by number.
    #[serde(default)]
    pub following: BTreeMap<String, FollowFigures>,
}

/// Progress of a followed partition.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FollowFigures {
    /// Source of its versions.
    pub source: String,
    /// Newest version at the source at the last poll; 0 before the first.
    pub newest: u32,
    /// Versions at the source that are not served here.
    pub behind: u32,
    /// Time since the last successful poll.
    pub look_age_seconds: f64,
    /// Why the partition cannot be fetched; empty if it can.
    pub fault: String,
}

/// Progress of publishing a partition.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct PublishedFigures {
    /// The newest published version; 0 before the first.
    pub version: u32,
    /// Versions committed and not published yet.
    pub waiting: u32,
}

/// Kernel figures of the process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProcessFigures {
    /// Resident memory.
    pub resident_bytes: u64,
    /// Peak resident memory.
    pub peak_resident_bytes: u64,
    /// Processor time, user and system.
    pub cpu_seconds: f64,
    /// Number of threads.
    pub threads: u64,
    /// Open files and sockets.
    pub open_fds: u64,
    /// Limit on open files and sockets.
    pub max_fds: u64,
}

impl ServerFigures {
    /// Reads counters and /proc without waiting for a shard.
    pub(crate) fn read(observed: &Observed) -> Self {
        let phase = observed.phase();
        let mut figures = Self {
            program: observed.program.clone(),
            phase: phase.name().to_owned(),
            ready: phase == super::Phase::Serving && observed.silent_shard().is_none(),
            uptime_seconds: observed.uptime().as_secs_f64(),
            started_unix_seconds: observed.started_unix.as_secs_f64(),
            latency_bounds: (0..N_BUCKETS).map(|b| bound_us(b) as f64 / 1e6).collect(),
            connections_dropped: get(&observed.dropped),
            disk: observed.disk.figures(),
            process: ProcessFigures::read(),
            ..Self::default()
        };
        if let Some(served) = observed.served() {
            figures.read_served(observed, served);
        }
        figures
    }

    fn read_served(&mut self, observed: &Observed, served: &Served) {
        self.graph = served.partitions.live.graph().uuid().to_string();
        self.parts = served.partitions.parts().iter().map(|part| part.0).collect();
        for (at, tensor) in served.partitions.live.graph().meta().tensors.iter().enumerate() {
            let n_rows = served.counters.iter().map(|shard| get(shard.tensor_rows.at(at))).sum();
            self.tensor_rows.insert(tensor.name.clone(), n_rows);
        }
        let age = |counters| observed.beat_age(counters).as_secs_f64();
        let counters = || served.counters.iter();
        self.shards = counters().map(|shard| ShardFigures::read(shard, age(shard))).collect();
        for (kind, name) in RequestKind::ALL {
            let of_kind = || counters().map(|shard| &shard.kinds[kind as usize]);
            let figures = KindFigures {
                begun: of_kind().map(|kind| get(&kind.begun)).sum(),
                in_progress: of_kind().map(KindCounters::in_progress).sum(),
                latency: LatencyFigures::sum(of_kind().map(|kind| &kind.latency)),
            };
            self.kinds.insert(name.to_owned(), figures);
        }
        self.shard_delay = LatencyFigures::sum(counters().map(|shard| &shard.gauges.delay));
        for (code, name) in FailureCode::ALL {
            let n = counters().map(|shard| get(&shard.failures[code as usize])).sum();
            self.failures.insert(name.to_owned(), n);
        }
        for (reason, name) in BreakReason::ALL {
            let n = counters().map(|shard| get(&shard.connections_broken[reason as usize])).sum();
            self.connections_broken.insert(name.to_owned(), n);
        }
        let pools = [("look", &served.threads.looks), ("write", &served.threads.writes)];
        let waiting = pools.map(|(name, pool)| (name.to_owned(), pool.n_waiting()));
        self.store_calls_waiting = waiting.into();
        let volatile = served.volatile.stats();
        (self.volatile_tensors, self.volatile_bytes) =
            (volatile.n_tensors.into(), volatile.n_bytes);
        self.updates = UpdateFigures::read(served);
    }
}

impl ShardFigures {
    fn read(from: &Counters, beat_age_seconds: f64) -> Self {
        Self {
            requests: from.requests(),
            failures: from.all_failures(),
            rows: get(&from.rows),
            bytes: get(&from.bytes),
            shared_bytes: get(&from.shared_bytes),
            shared_memory_bytes: get(&from.gauges.shared_taken),
            in_progress: from.kinds.iter().map(KindCounters::in_progress).sum(),
            connections: from.connections.load(Ordering::Relaxed).into(),
            connections_taken: get(&from.connections_taken),
            connections_refused: get(&from.connections_refused),
            connections_evicted: get(&from.connections_evicted),
            connections_idle_closed: get(&from.connections_idle_closed),
            busy_seconds: get(&from.gauges.busy_ns) as f64 / 1e9,
            beat_age_seconds,
            in_flight_bytes: get(&from.gauges.room_taken),
            in_flight_bytes_limit: IN_FLIGHT_BYTES_PER_SHARD,
            tier_hits: get(&from.tier_hits),
            tier_misses: get(&from.tier_misses),
            tier_evictions: get(&from.gauges.tier_evictions),
            tier_rows: get(&from.gauges.tier_rows),
            tier_used_bytes: get(&from.gauges.tier_used_bytes),
            tier_bytes: get(&from.tier_bytes),
            disk_reads: get(&from.read_extents),
            disk_read_bytes: get(&from.read_bytes),
            joined_rows: get(&from.joined_rows),
            disk_reads_in_flight: get(&from.reads_in_flight),
            disk_reads_in_flight_bytes: get(&from.gauges.read_room_taken),
            pulls_waiting_for_disk: get(&from.gauges.pulls_waiting),
            forwarded_rows: get(&from.forwarded_rows),
            delta_rows: get(&from.delta_rows),
            preloaded_bytes: get(&from.preloaded_bytes),
            preload_bytes: get(&from.preload_bytes),
            published_rows: get(&from.published_rows),
            volatile_rows: get(&from.volatile_rows),
            lacking_rows: get(&from.lacking_rows),
            volatile_pulls_waiting: get(&from.gauges.volatile_pulls_waiting),
            pushes: get(&from.pushes),
            pushed_rows: get(&from.pushed_rows),
        }
    }
}

impl UpdateFigures {
    fn read(served: &Served) -> Self {
        let mut stats = served.partitions.updates();
        served.runs.tell(&mut stats);
        Self {
            version: stats.version,
            oldest_version: served.partitions.live.oldest_version(),
            writable: stats.writable,
            follower: served.partitions.follows.is_some(),
            committed_rows: stats.committed_rows,
            pending_rows: stats.pending_rows,
            compactions_asked: stats.runs_asked,
            compactions_ended: stats.runs_ended,
            compaction_bytes: stats.run_bytes,
            compaction_bytes_total: stats.run_bytes_total,
            compaction_failure: stats.run_failure,
            published: published(served),
            following: following(served),
        }
    }
}

fn following(served: &Served) -> BTreeMap<String, FollowFigures> {
    let figures = |part: FollowedPart| {
        let figures = FollowFigures {
            newest: part.newest,
            behind: part.n_behind(),
            look_age_seconds: part.look_age.as_secs_f64(),
            fault: part.fault.map(|fault| fault.reason).unwrap_or_default(),
            source: part.source,
        };
        (part.part.to_string(), figures)
    };
    served.partitions.followed().into_iter().map(figures).collect()
}

fn published(served: &Served) -> BTreeMap<String, PublishedFigures> {
    let published = served.partitions.published_versions().unwrap_or_default();
    let figures = |(part, version): (PartId, u32)| {
        let committed = served.partitions.live.part_version(part).unwrap_or(version);
        let waiting = committed.saturating_sub(version);
        (part.to_string(), PublishedFigures { version, waiting })
    };
    published.into_iter().map(figures).collect()
}

impl LatencyFigures {
    /// Returns the sum of the counts of several shards.
    fn sum<'a>(all: impl Iterator<Item = &'a LatencyCounts>) -> Self {
        let (mut buckets, mut sum_ns) = (vec![0; N_BUCKETS], 0u64);
        for counts in all {
            buckets.iter_mut().zip(counts.buckets()).for_each(|(sum, n)| *sum += n);
            sum_ns = sum_ns.wrapping_add(counts.sum_ns());
        }
        Self { buckets, sum_seconds: sum_ns as f64 / 1e9 }
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the difference to `before`, or all counts if `before` is of another run of the
    /// server.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let pairs = self.buckets.iter().zip(&before.buckets);
        let buckets: Option<Vec<u64>> = pairs.map(|(now, then)| now.checked_sub(*then)).collect();
        match buckets {
            Some(buckets) if before.buckets.len() == self.buckets.len() => {
                Self { buckets, sum_seconds: self.sum_seconds - before.sum_seconds }
            }
            _ => self.clone(),
        }
    }

    /// Returns an upper bound of the quantile, at most a quarter above it; `None` without requests.
    #[must_use]
    pub fn quantile(&self, quantile: f64, bounds: &[f64]) -> Option<f64> {
        let mut left = (self.count() as f64 * quantile).ceil().max(1.0) as u64;
        self.buckets.iter().zip(bounds).find_map(|(&n, &bound)| {
            let is_here = n >= left;
            left = left.saturating_sub(n);
            is_here.then_some(bound)
        })
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Ticks per second in /proc/self/stat, the same on every supported architecture.
const USER_HZ: f64 = 100.0;

impl ProcessFigures {
    /// Reads the figures of this process; 0 for one that cannot be read.
    pub(super) fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // Excludes the descriptor of this listing.
        let open_fds = fs::read_dir("/proc/self/fd").map_or(0, |dir| dir.count() as u64 - 1);
        Self {
            resident_bytes: kib(&status, "VmRSS:") << 10,
            peak_resident_bytes: kib(&status, "VmHWM:") << 10,
            cpu_seconds: cpu_ticks(&stat) / USER_HZ,
            threads: kib(&status, "Threads:"),
            open_fds,
            max_fds: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        }
    }
}

/// Returns the number after a key of /proc/self/status, in the unit of its line.
fn kib(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Returns user plus system time, fields 14 and 15. Field 2 is a name that may contain any
/// character.
fn cpu_ticks(stat: &str) -> f64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn shards_add_up() {
        let (a, b) = (LatencyCounts::default(), LatencyCounts::default());
        a.record(Duration::from_micros(100));
        b.record(Duration::from_micros(100));
        b.record(Duration::from_secs(3600));
        let sum = LatencyFigures::sum([&a, &b].into_iter());
        assert_eq!(sum.count(), 3);
        let bucket = (0..N_BUCKETS).find(|&bucket| bound_us(bucket) > 100).unwrap();
        assert_eq!((sum.buckets[bucket], sum.sum_seconds), (2, 3600.0002));
    }

    #[test]
    fn quantiles_are_the_bounds_of_their_buckets() {
        let bounds = [1.0, 2.0, 4.0];
        let latency = LatencyFigures { buckets: vec![50, 49, 1], sum_seconds: 0.0 };
        let at = |quantile| latency.quantile(quantile, &bounds);
        assert_eq!(
            [0.0, 0.5, 0.51, 0.99, 0.991, 1.0].map(at),
            [1.0, 1.0, 2.0, 2.0, 4.0, 4.0].map(Some)
        );
        assert_eq!(LatencyFigures::default().quantile(0.5, &bounds), None);
    }

    #[test]
    fn a_difference_never_goes_below_zero() {
        let of = |buckets: &[u64]| LatencyFigures { buckets: buckets.to_vec(), sum_seconds: 0.0 };
        assert_eq!(of(&[5, 7]).since(&of(&[2, 7])), of(&[3, 0]));
        assert_eq!(of(&[1, 7]).since(&of(&[2, 7])), of(&[1, 7]), "the server was restarted");
        assert_eq!(of(&[1, 7]).since(&of(&[])), of(&[1, 7]));
    }

    #[test]
    fn this_process_has_memory_threads_and_files() {
        let found = ProcessFigures::read();
        assert!(found.resident_bytes > 1 << 20 && found.peak_resident_bytes > 1 << 20);
        assert!(found.threads >= 1 && found.open_fds >= 3 && found.max_fds >= found.open_fds);
    }

    #[test]
    fn times_are_read_past_any_name() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        assert_eq!(cpu_ticks(stat), 300.0);
        assert_eq!(cpu_ticks("nonsense"), 0.0);
    }
}
