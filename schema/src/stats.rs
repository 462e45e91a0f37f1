//! Report of a server: counters of its shards, and the state of its updates.

use std::time::Duration;

use crate::error::Decoded;
use crate::limits::FOLLOW_TEXT_BYTES_MAX;
use crate::lodestore_capnp::{shard_stats, stats, updates};

/// Counters of a server since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// By shard.
    pub shards: Vec<ShardStats>,
    /// Versions, changed rows, compactions.
    pub updates: UpdateStats,
    /// Tensors in memory alone.
    pub volatile: VolatileStats,
}

/// Volatile tensors of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolatileStats {
    /// Tensors that are declared.
    pub n_tensors: u32,
    /// Bytes of memory that they may take.
    pub n_bytes: u64,
}

/// Counters of one shard since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    /// Requests answered, failures included.
    pub requests: u64,
    /// Rows sent.
    pub rows: u64,
    /// Bytes of rows sent.
    pub bytes: u64,
    /// Rows found in the host tier.
    pub tier_hits: u64,
    /// Rows looked up there in vain.
    pub tier_misses: u64,
    /// Bytes that the host tier may hold.
    pub tier_bytes: u64,
    /// Extents read from disk.
    pub read_extents: u64,
    /// Bytes read from disk, whole pages.
    pub read_bytes: u64,
    /// Rows fetched from another shard.
    pub forwarded_rows: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Connections open now.
    pub connections: u32,
    /// Pushes acknowledged.
    pub pushes: u64,
    /// Rows of these.
    pub pushed_rows: u64,
    /// Rows read from deltas.
    pub delta_rows: u64,
    /// Part of the bytes of rows that went through memory shared with the client.
    pub shared_bytes: u64,
    /// Bytes of rows that were loaded into the tier ahead of pulls.
    pub preloaded_bytes: u64,
    /// Bytes of rows that are to be.
    pub preload_bytes: u64,
    /// Rows of volatile tensors that were published.
    pub published_rows: u64,
    /// Rows of these that were pulled.
    pub volatile_rows: u64,
    /// Rows of these that were asked for, and not there in time.
    pub lacking_rows: u64,
}

/// Where the updates of a server stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateStats {
    /// The newest committed version.
    pub version: u32,
    /// Whether pushes, commits and compactions are taken.
    pub writable: bool,
    /// Rows over segments that a compaction would fold in.
    pub committed_rows: u64,
    /// Rows put for the version that comes after.
    pub pending_rows: u64,
    /// Compactions since the server started, those that wait to run included.
    pub runs_asked: u64,
    /// Those that are over.
    pub runs_ended: u64,
    /// Bytes written by the compaction that runs.
    pub run_bytes: u64,
    /// Bytes that it will write.
    pub run_bytes_total: u64,
    /// Why the compaction that ended last has failed; empty if it has not.
    pub run_failure: String,
    /// The lowest published version of its partitions, 0 before the first; `None` where none is
    /// ever published.
    pub published: Option<u32>,
    /// How far a follower is; `None` where it follows nothing.
    pub following: Option<FollowStats>,
}

/// Where the versions of a follower come from, and how far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowStats {
    /// Addresses of writers, or the URL of a bucket, separated by commas.
    pub from: String,
    /// The most versions that a partition lags behind its source, as last seen.
    pub n_behind: u32,
    /// Time since a source was last seen, the longest of all partitions.
    pub look_age: Duration,
    /// Why a partition cannot be fetched; empty if all can.
    pub fault: String,
}

impl ServerStats {
    pub(crate) fn write(&self, mut to: stats::Builder<'_>) {
        let n = u32::try_from(self.shards.len()).unwrap_or(u32::MAX);
        let mut list = to.reborrow().init_shards(n);
        for (i, shard) in (0..n).zip(&self.shards) {
            shard.write(list.reborrow().get(i));
        }
        to.set_volatile_tensors(self.volatile.n_tensors);
        to.set_volatile_bytes(self.volatile.n_bytes);
        self.updates.write(to.init_updates());
    }

    pub(crate) fn read(from: stats::Reader<'_>) -> Decoded<Self> {
        let shards = from.get_shards()?;
        // Elements may take no bytes at all on the wire; here they do.
        if shards.len() > u16::MAX.into() {
            return Err(format!("figures of {} shards", shards.len()).into());
        }
        let shards = shards.iter().map(ShardStats::read).collect();
        let volatile = VolatileStats {
            n_tensors: from.get_volatile_tensors(),
            n_bytes: from.get_volatile_bytes(),
        };
        let updates = UpdateStats::read(from.get_updates()?)?;
        Ok(Self { shards, updates, volatile })
    }
}

impl ShardStats {
    fn write(&self, mut to: shard_stats::Builder<'_>) {
        to.set_requests(self.requests);
        to.set_rows(self.rows);
        to.set_bytes(self.bytes);
        to.set_tier_hits(self.tier_hits);
        to.set_tier_misses(self.tier_misses);
        to.set_tier_bytes(self.tier_bytes);
        to.set_read_extents(self.read_extents);
        to.set_read_bytes(self.read_bytes);
        to.set_forwarded_rows(self.forwarded_rows);
        to.set_failures(self.failures);
        to.set_connections(self.connections);
        to.set_pushes(self.pushes);
        to.set_pushed_rows(self.pushed_rows);
        to.set_delta_rows(self.delta_rows);
        to.set_shared_bytes(self.shared_bytes);
        to.set_preloaded_bytes(self.preloaded_bytes);
        to.set_preload_bytes(self.preload_bytes);
        to.set_published_rows(self.published_rows);
        to.set_volatile_rows(self.volatile_rows);
        to.set_lacking_rows(self.lacking_rows);
    }

    fn read(from: shard_stats::Reader<'_>) -> Self {
        Self {
            requests: from.get_requests(),
            rows: from.get_rows(),
            bytes: from.get_bytes(),
            tier_hits: from.get_tier_hits(),
            tier_misses: from.get_tier_misses(),
            tier_bytes: from.get_tier_bytes(),
            read_extents: from.get_read_extents(),
            read_bytes: from.get_read_bytes(),
            forwarded_rows: from.get_forwarded_rows(),
            failures: from.get_failures(),
            connections: from.get_connections(),
            pushes: from.get_pushes(),
            pushed_rows: from.get_pushed_rows(),
            delta_rows: from.get_delta_rows(),
            shared_bytes: from.get_shared_bytes(),
            preloaded_bytes: from.get_preloaded_bytes(),
            preload_bytes: from.get_preload_bytes(),
            published_rows: from.get_published_rows(),
            volatile_rows: from.get_volatile_rows(),
            lacking_rows: from.get_lacking_rows(),
        }
    }
}

impl UpdateStats {
    fn write(&self, mut to: updates::Builder<'_>) {
        to.set_version(self.version);
        to.set_writable(self.writable);
        to.set_committed_rows(self.committed_rows);
        to.set_pending_rows(self.pending_rows);
        to.set_runs_asked(self.runs_asked);
        to.set_runs_ended(self.runs_ended);
        to.set_run_bytes(self.run_bytes);
        to.set_run_bytes_total(self.run_bytes_total);
        to.set_run_failure(&self.run_failure);
        to.set_publishes(self.published.is_some());
        to.set_published(self.published.unwrap_or(0));
        if let Some(following) = &self.following {
            to.set_follows(cut(&following.from));
            to.set_versions_behind(following.n_behind);
            let age_ms = u64::try_from(following.look_age.as_millis());
            to.set_look_age_ms(age_ms.unwrap_or(u64::MAX));
            to.set_follow_fault(cut(&following.fault));
        }
    }

    fn read(from: updates::Reader<'_>) -> Decoded<Self> {
        let following = FollowStats {
            from: cut(from.get_follows()?.to_str()?).to_owned(),
            n_behind: from.get_versions_behind(),
            look_age: Duration::from_millis(from.get_look_age_ms()),
            fault: cut(from.get_follow_fault()?.to_str()?).to_owned(),
        };
        Ok(Self {
            version: from.get_version(),
            writable: from.get_writable(),
            committed_rows: from.get_committed_rows(),
            pending_rows: from.get_pending_rows(),
            runs_asked: from.get_runs_asked(),
            runs_ended: from.get_runs_ended(),
            run_bytes: from.get_run_bytes(),
            run_bytes_total: from.get_run_bytes_total(),
            run_failure: from.get_run_failure()?.to_string()?,
            published: from.get_publishes().then(|| from.get_published()),
            following: (!following.from.is_empty()).then_some(following),
        })
    }
}

/// Returns the beginning of a text that a message has room for.
fn cut(text: &str) -> &str {
    let end = text.floor_char_boundary(FOLLOW_TEXT_BYTES_MAX);
    &text[..end]
}
