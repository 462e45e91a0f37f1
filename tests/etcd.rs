//! Servers that register in a real etcd, and clients that follow them there.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "etcd/engine.rs"]
mod engine;
#[path = "etcd/faults.rs"]
mod faults;
#[path = "etcd/following.rs"]
mod following;
#[path = "etcd/secured.rs"]
mod secured;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine::Engine;
use lodestore_client::{Client, ClientConfig};
use tempfile::TempDir;
use testing::process::Serving;
use testing::workload::{Workload, known_graph};

const N_NODES: u32 = 600;

/// Returns an etcd and the folder of a graph in three partitions; `None`, and a word, where there
/// is none.
fn begin() -> Option<(Engine, TempDir, PathBuf)> {
    let Some(engine) = Engine::start() else {
        println!("SKIPPED: etcd is not installed (Debian: etcd-server; `./x etcd` installs it)");
        return None;
    };
    let dir = tempfile::tempdir().unwrap();
    let graph = known_graph(dir.path(), N_NODES, 3);
    Some((engine, dir, graph))
}

/// Returns a server that registers.
fn serve(engine: &Engine, graph: &Path, more: &str) -> Serving {
    let map = engine.map();
    Serving::start(graph, &format!("--shards 1 --listen 127.0.0.1:0 --register {map} {more}"))
}

fn client(engine: &Engine, deadline: Duration) -> Result<Client, lodestore_client::ClientError> {
    let config = ClientConfig { deadline, ..ClientConfig::default() };
    Client::connect(&[engine.map()], config)
}

/// Waits until it is so.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within 20 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that every row is as it was imported.
fn check(client: &Client) {
    Workload::new(N_NODES).check_all(client);
}
