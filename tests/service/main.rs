//! The service among strangers, under too much load, and when servers die; moves of partitions, puts,
//! and a server as an operator sees it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod capacities;
mod changing;
mod deadlines;
mod door_fuzz;
mod failover;
mod fuzz;
mod operations;
mod overload;
mod pinned;
mod ports;
mod preload;
mod priority;
mod reads;
mod renewal;
mod server_updates;
mod strangers;
mod tls;
mod token;
mod transfer;
mod versions;
mod volatile;

use std::time::{Duration, Instant};

use lodestore_client::Client;
use lodestore_graph::NodeId;

use testing::graph::Source;
use testing::http::get;
use testing::process::Serving;

/// Returns whether tests may take long.
fn is_long() -> bool {
    std::env::var_os("LODE_LONG").is_some()
}

/// Returns the resident memory of a process, in bytes.
fn rss_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Returns the sum of a metric over its labels.
fn metric(server: &Serving, name: &str) -> f64 {
    let text = get(&server.metrics, "/metrics").body;
    let lines = text.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ') || rest.starts_with('{'))
    });
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Returns the number of connections that have ended for this reason.
fn broken(server: &Serving, reason: &str) -> f64 {
    let text = get(&server.metrics, "/metrics").body;
    let label = format!("reason=\"{reason}\"");
    let mut lines = text.lines().filter(|line| {
        line.starts_with("lodestore_connections_broken_total{") && line.contains(&label)
    });
    let line = lines.next().expect("every reason has a line");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until something is so.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Rows of a tensor as they were before the import, by internal id.
struct Truth<'a> {
    source: &'a Source,
    external: Vec<u32>,
}

impl<'a> Truth<'a> {
    fn new(source: &'a Source, client: &Client) -> Self {
        let all: Vec<NodeId> = (0..source.n_nodes).map(NodeId).collect();
        let mut external = vec![0i64; all.len()];
        client.sync_pull("external_id", &all, bytemuck::cast_slice_mut(&mut external)).unwrap();
        Self { source, external: external.iter().map(|&id| id as u32).collect() }
    }

    fn rows(&self, tensor: &str, ids: &[NodeId]) -> Vec<u8> {
        let external: Vec<u32> = ids.iter().map(|id| self.external[id.index()]).collect();
        self.source.rows(tensor, &external)
    }
}
