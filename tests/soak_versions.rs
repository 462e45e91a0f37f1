//! A writer with two followers while two clients put the same rows and servers are killed. After
//! every commit all servers have the same rows, and each row is of a put that may be the last.
//!
//! `LODE_SOAK_MINUTES` says for how long, `LODE_SOAK_SEED` with which faults; a long run has
//! partitions of 100,000 rows. Rows are of 400 B, stored as they are and in zstd groups; tiers hold
//! few of them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "soak_versions/history.rs"]
mod history;
#[path = "soak_versions/servers.rs"]
mod servers;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use history::{History, N_CLIENTS, TENSORS};
use lodestore_client::{Client, ClientConfig, ClientError, Pin};
use lodestore_graph::NodeId;
use servers::{N_SERVERS, Servers, WRITER};
use testing::Numbers;

const ROW_BYTES: usize = 400;
/// Longest time for a call that faults interrupt, with its repetitions.
const CALL_MAX: Duration = Duration::from_secs(60);
/// Commits between two pins.
const COMMITS_OF_PIN: u32 = 10;

/// Ends the other threads, however this one ends.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn number(name: &str) -> Option<f64> {
    let text = std::env::var_os(name)?.into_string().unwrap();
    Some(text.parse().unwrap_or_else(|error| panic!("{name} is {text:?}, no number: {error}")))
}

fn connect(addresses: &[String], pin: bool) -> Result<Client, ClientError> {
    let deadline = Duration::from_secs(10);
    Client::connect(
        addresses,
        ClientConfig { deadline, pin: pin.then_some(Pin::Newest), ..ClientConfig::default() },
    )
}

/// Repeats a call until it succeeds.
fn repeat<T>(what: &str, mut call: impl FnMut() -> Result<T, ClientError>) -> T {
    let end = Instant::now() + CALL_MAX;
    loop {
        match call() {
            Ok(value) => return value,
            Err(error) => assert!(Instant::now() < end, "{what}: {error}"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Returns all rows of a tensor.
fn rows_of(client: &Client, tensor: &str, n_nodes: u32) -> Result<Vec<u8>, ClientError> {
    let ids: Vec<NodeId> = (0..n_nodes).map(NodeId).collect();
    let mut rows = vec![0; ids.len() * ROW_BYTES];
    client.vector_pull(tensor, &ids, &mut rows)?;
    Ok(rows)
}

/// Returns all rows of all tensors at a server.
fn all_rows(client: &Client, n_nodes: u32) -> Vec<Vec<u8>> {
    let rows = |tensor| repeat("pull all rows", || rows_of(client, tensor, n_nodes));
    TENSORS.map(rows).into()
}

#[test]
fn all_servers_have_the_same_rows_after_each_commit_whatever_is_killed() {
    let minutes = number("LODE_SOAK_MINUTES").unwrap_or(0.1);
    let seed = number("LODE_SOAK_SEED").unwrap_or(2026.0) as u64;
    let n_nodes = if minutes < 1.0 { 3_000 } else { 200_000 };
    let servers = Mutex::new(Servers::start(n_nodes));
    let addresses = servers.lock().unwrap().addresses();
    let (history, is_over) = (History::new(n_nodes), AtomicBool::new(false));
    let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let mut n_commits = 0;
    thread::scope(|scope| {
        let _end = EndOnDrop(&is_over);
        for client in 0..N_CLIENTS {
            let (history, addresses, is_over) = (&history, &addresses, &is_over);
            scope.spawn(move || put_until(history, addresses, client, is_over));
        }
        let (servers, is_over) = (&servers, &is_over);
        scope.spawn(move || faults(servers, Numbers(seed), is_over));
        // Made once and kept: it must not go back in time over any of the faults.
        let committer = repeat("connect", || connect(&addresses, false));
        let mut pinned = None;
        while Instant::now() < end || n_commits < 2 * COMMITS_OF_PIN {
            let before = history.acknowledged();
            let version = repeat("commit", || committer.commit());
            repeat("wait", || committer.wait_for_followers(version, N_SERVERS - 1));
            // No server is killed while they are compared.
            let running = servers.lock().unwrap();
            let rows = addresses.each_ref().map(|address| {
                let client = repeat("connect", || connect(std::slice::from_ref(address), false));
                client.read_from(version);
                all_rows(&client, n_nodes)
            });
            assert!(rows.iter().all(|other| *other == rows[WRITER]), "version {version}");
            history.check(&rows[WRITER], &before);
            if n_commits % COMMITS_OF_PIN == 0 {
                pinned = Some((repeat("pin", || connect(&addresses[2..], true)), rows));
            }
            let (client, expected) = pinned.as_ref().unwrap();
            assert!(all_rows(client, n_nodes) == expected[WRITER], "pinned, at {version}");
            drop(running);
            n_commits += 1;
        }
    });
    println!(
        "{n_commits} commits, {} puts; {}",
        history.n_puts(),
        servers.lock().unwrap().faults()
    );
    servers.into_inner().unwrap().stop();
}

/// Puts turn after turn, each until it is acknowledged.
fn put_until(history: &History, addresses: &[String], client: u32, is_over: &AtomicBool) {
    let connected = repeat("connect", || connect(addresses, false));
    for turn in 1.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let put = history.begin(client, turn);
        repeat("put", || connected.put_rows(put.tensor(), &put.ids(), &put.rows()).map(drop));
        history.acknowledge(&put);
    }
}

fn faults(servers: &Mutex<Servers>, mut numbers: Numbers, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(u64::from(numbers.below(400))));
        servers.lock().unwrap().fault(&mut numbers);
    }
}
