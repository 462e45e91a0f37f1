//! `lode stat`: the counters of a running server.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lodestore_client::Client;
use lodestore_client::remote::{ServerStats, ShardStats};
use serde::Serialize;

use crate::console::Console;
use crate::human;
use crate::security_args::SecurityArgs;
use crate::table::Table;

/// Show the counters of a running server, shard by shard.
#[derive(Args)]
#[command(after_help = "Example:\n  lode stat 127.0.0.1:7171")]
pub(crate) struct StatArgs {
    /// Address of the server: HOST:PORT or unix:PATH.
    address: String,
    /// Give up after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    deadline: u64,
    #[command(flatten)]
    security: SecurityArgs,
}

/// Output of `--json`: counters since the server started.
#[derive(Serialize)]
struct StatReport {
    address: String,
    shards: Vec<ShardReport>,
    /// The newest committed version.
    version: u32,
    writable: bool,
    /// Role of the server for its partitions: writer, follower or reader.
    role: String,
    /// Rows of deltas, and rows that are not committed.
    committed_rows: u64,
    pending_rows: u64,
    compactions_asked: u64,
    compactions_ended: u64,
    /// Progress of the running compaction: bytes written, and to write.
    compaction_bytes: u64,
    compaction_bytes_total: u64,
    /// Why the last has failed; empty if it has not.
    compaction_failure: String,
    /// The lowest published version of its partitions, 0 before the first; `null` where versions
    /// are not published in a bucket.
    published_version: Option<u32>,
    /// What a follower follows, and how far it is; `null` for other servers.
    following: Option<FollowingReport>,
    /// Volatile tensors that are declared, and bytes of memory that they may take.
    volatile_tensors: u32,
    volatile_bytes: u64,
}

#[derive(Serialize)]
struct FollowingReport {
    /// Addresses of writers, or the URL of a bucket, separated by commas.
    from: String,
    /// The most versions that a partition is behind, as last seen.
    versions_behind: u32,
    /// Time since a source was last seen, the longest of all partitions.
    look_age_seconds: f64,
    /// Why a partition cannot be fetched; empty if all can.
    fault: String,
}

#[derive(Serialize)]
struct ShardReport {
    shard: usize,
    #[serde(flatten, with = "ShardCounters")]
    stats: ShardStats,
}

/// The counters of [`ShardStats`] that are reported.
#[derive(Serialize)]
#[serde(remote = "ShardStats")]
struct ShardCounters {
    requests: u64,
    rows: u64,
    bytes: u64,
    tier_hits: u64,
    tier_misses: u64,
    tier_bytes: u64,
    read_extents: u64,
    read_bytes: u64,
    forwarded_rows: u64,
    failures: u64,
    connections: u32,
    pushes: u64,
    pushed_rows: u64,
    delta_rows: u64,
    /// Bytes of rows that were loaded ahead of pulls, and that are to be.
    preloaded_bytes: u64,
    preload_bytes: u64,
    /// Volatile rows that were published, that were sent, and that were asked for and not there.
    published_rows: u64,
    volatile_rows: u64,
    lacking_rows: u64,
}

impl StatArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let config = self.security.client_config(Duration::from_secs(self.deadline.max(1)))?;
        let client = Client::connect(std::slice::from_ref(&self.address), config)?;
        for (address, stats) in client.stats()? {
            let role = client.role_of(&address);
            let report = report(self.address.clone(), role, stats);
            console.report(&report, text)?;
        }
        Ok(())
    }
}

fn report(address: String, role: String, stats: ServerStats) -> StatReport {
    let ServerStats { shards, updates, volatile } = stats;
    StatReport {
        address,
        volatile_tensors: volatile.n_tensors,
        volatile_bytes: volatile.n_bytes,
        shards: (0..).zip(shards).map(|(shard, stats)| ShardReport { shard, stats }).collect(),
        version: updates.version,
        writable: updates.writable,
        role,
        committed_rows: updates.committed_rows,
        pending_rows: updates.pending_rows,
        compactions_asked: updates.runs_asked,
        compactions_ended: updates.runs_ended,
        compaction_bytes: updates.run_bytes,
        compaction_bytes_total: updates.run_bytes_total,
        compaction_failure: updates.run_failure,
        published_version: updates.published,
        following: updates.following.map(|following| FollowingReport {
            from: following.from,
            versions_behind: following.n_behind,
            look_age_seconds: following.look_age.as_secs_f64(),
            fault: following.fault,
        }),
    }
}

fn text(report: &StatReport) -> String {
    let mut table = Table::new([
        "shard",
        "requests",
        "failed",
        "rows",
        "sent",
        "tier hits",
        "tier size",
        "reads",
        "read",
        "forwarded",
        "of deltas",
        "pushed",
        "connections",
    ]);
    for &ShardReport { shard, stats: s } in &report.shards {
        let lookups = (s.tier_hits + s.tier_misses).max(1);
        table.row([
            shard.to_string(),
            human::count(s.requests),
            human::count(s.failures),
            human::count(s.rows),
            human::bytes(s.bytes),
            human::percent(s.tier_hits as f64 / lookups as f64),
            human::bytes(s.tier_bytes),
            human::count(s.read_extents),
            human::bytes(s.read_bytes),
            human::count(s.forwarded_rows),
            human::count(s.delta_rows),
            human::count(s.pushed_rows),
            s.connections.to_string(),
        ]);
    }
    let (updates, preload, volatile) = (updates(report), preload(report), volatile(report));
    format!("{}, since it started\n\n{table}\n\n{updates}{preload}{volatile}", report.address)
}

/// Returns the line about rows that are loaded ahead of pulls, where there are some.
fn preload(report: &StatReport) -> String {
    let sum = |bytes: fn(&ShardStats) -> u64| {
        report.shards.iter().map(|it| bytes(&it.stats)).sum::<u64>()
    };
    let (done, all) = (sum(|shard| shard.preloaded_bytes), sum(|shard| shard.preload_bytes));
    match all {
        0 => String::new(),
        _ if done >= all => format!("\npreloaded: {}", human::bytes(all)),
        _ => format!("\npreloading: {} of {}", human::bytes(done), human::bytes(all)),
    }
}

/// Returns the line about volatile tensors, where there are some.
fn volatile(report: &StatReport) -> String {
    let sum =
        |rows: fn(&ShardStats) -> u64| report.shards.iter().map(|it| rows(&it.stats)).sum::<u64>();
    match report.volatile_tensors {
        0 => String::new(),
        n_tensors => format!(
            "\n{} in {}; rows published: {}, pulled: {}, lacking: {}",
            human::counted(n_tensors.into(), "volatile tensor"),
            human::bytes(report.volatile_bytes),
            human::count(sum(|shard| shard.published_rows)),
            human::count(sum(|shard| shard.volatile_rows)),
            human::count(sum(|shard| shard.lacking_rows)),
        ),
    }
}

/// Returns the line about what is followed, and that about why it cannot be fetched.
fn follows(following: &FollowingReport) -> String {
    let behind = match following.versions_behind {
        0 => "up to date".to_owned(),
        behind => format!("{} behind", human::counted(behind.into(), "version")),
    };
    let seen = human::seconds(following.look_age_seconds);
    let mut text = format!("\nfollows {}: {behind}, seen {seen} ago", following.from);
    if !following.fault.is_empty() {
        text += &format!("\nno version can be fetched: {}", following.fault);
    }
    text
}

/// Returns the line about versions, and that about a compaction that runs or has failed.
fn updates(report: &StatReport) -> String {
    let takes = if report.writable { "takes updates" } else { "takes no updates" };
    let mut text = format!(
        "version {}, {}, {takes}; rows of deltas: {}; not committed: {}",
        report.version,
        report.role,
        human::count(report.committed_rows),
        human::count(report.pending_rows)
    );
    match report.published_version {
        None => {}
        Some(version) if version >= report.version => text += "; published",
        Some(0) => text += "\nnothing is published yet",
        Some(version) => {
            let waiting = u64::from(report.version.saturating_sub(version));
            let versions = human::counted(waiting, "version");
            text += &format!("\npublished: version {version}; {versions} not published yet");
        }
    }
    if let Some(following) = &report.following {
        text += &follows(following);
    }
    if report.compactions_asked > report.compactions_ended {
        let (done, all) = (report.compaction_bytes, report.compaction_bytes_total);
        text += &format!("\ncompacting: {} of {}", human::bytes(done), human::bytes(all));
    } else if !report.compaction_failure.is_empty() {
        text += &format!("\nthe last compaction has failed: {}", report.compaction_failure);
    }
    text
}
