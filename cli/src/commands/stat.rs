//! `lode stat`: the counters of a running server.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lodestore_client::{Client, ClientConfig};
use serde::Serialize;

use crate::console::Console;
use crate::human;
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
}

/// What `--json` prints: counters since the server started.
#[derive(Serialize)]
struct StatReport {
    address: String,
    shards: Vec<ShardReport>,
}

#[derive(Serialize)]
struct ShardReport {
    shard: usize,
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
}

impl StatArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let deadline = Duration::from_secs(self.deadline.max(1));
        let config = ClientConfig { deadline, ..ClientConfig::default() };
        let client = Client::connect(std::slice::from_ref(&self.address), config)?;
        let shards = client.stats()?.into_iter().flat_map(|(_, shards)| shards).enumerate();
        let shards = shards.map(|(shard, stats)| ShardReport {
            shard,
            requests: stats.requests,
            rows: stats.rows,
            bytes: stats.bytes,
            tier_hits: stats.tier_hits,
            tier_misses: stats.tier_misses,
            tier_bytes: stats.tier_bytes,
            read_extents: stats.read_extents,
            read_bytes: stats.read_bytes,
            forwarded_rows: stats.forwarded_rows,
            failures: stats.failures,
            connections: stats.connections,
        });
        console.report(&StatReport { address: self.address, shards: shards.collect() }, text)
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
        "connections",
    ]);
    for s in &report.shards {
        let lookups = (s.tier_hits + s.tier_misses).max(1);
        table.row([
            s.shard.to_string(),
            human::count(s.requests),
            human::count(s.failures),
            human::count(s.rows),
            human::bytes(s.bytes),
            human::percent(s.tier_hits as f64 / lookups as f64),
            human::bytes(s.tier_bytes),
            human::count(s.read_extents),
            human::bytes(s.read_bytes),
            human::count(s.forwarded_rows),
            s.connections.to_string(),
        ]);
    }
    format!("{}, since it started\n\n{table}", report.address)
}
