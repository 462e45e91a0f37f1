//! Servers that are killed while clients put, commit and compact. After each restart every row of
//! an acknowledged commit is there, whole. After the next commit so is every row of an acknowledged
//! put.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use lodestore_client::{Client, ClientConfig, ClientError};
use lodestore_graph::NodeId;

use testing::Numbers;
use testing::features::{feature_graph, row_of};
use testing::process::Serving;

const N_NODES: u32 = 3000;
const N_WRITERS: u32 = 4;
const WIDTH: u32 = 26;
const ROW_BYTES: usize = WIDTH as usize * 4;

/// Returns the row of `node` that was put as its `turn`th.
fn put_row(node: NodeId, turn: u32) -> Vec<u8> {
    [node.0, turn].repeat(WIDTH as usize / 2).iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Acknowledged puts, and later ones that were tried.
struct Told {
    /// By node: the last turn whose put was acknowledged.
    put: Vec<AtomicU32>,
    /// By node: the last turn that was put before a commit which was acknowledged.
    committed: Vec<AtomicU32>,
    /// By writer: the turn that it tried last.
    tried: Vec<AtomicU32>,
    version: AtomicU32,
}

impl Told {
    fn new() -> Self {
        let zeros = |n: u32| (0..n).map(|_| AtomicU32::new(0)).collect();
        let (put, committed, tried) = (zeros(N_NODES), zeros(N_NODES), zeros(N_WRITERS));
        Self { put, committed, tried, version: AtomicU32::new(1) }
    }

    /// Commits, and notes what that must have made visible.
    fn commit(&self, client: &Client) -> Result<(), ClientError> {
        let put: Vec<u32> = self.put.iter().map(|turn| turn.load(Ordering::Relaxed)).collect();
        self.version.store(client.commit()?, Ordering::Relaxed);
        for (committed, turn) in self.committed.iter().zip(put) {
            committed.fetch_max(turn, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Checks that every row is whole, and of its last turn that was committed or a later one that
    /// was tried; returns the turns.
    fn check_rows(&self, client: &Client) -> Vec<u32> {
        let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
        let mut rows = vec![0; ids.len() * ROW_BYTES];
        client.sync_pull("feat", &ids, &mut rows).unwrap();
        let turn_of = |(row, &id): (&[u8], &NodeId)| {
            let committed = self.committed[id.index()].load(Ordering::Relaxed);
            let tried = self.tried[(id.0 % N_WRITERS) as usize].load(Ordering::Relaxed);
            if row == row_of(id, WIDTH) {
                assert_eq!(committed, 0, "node {id} is as it was imported");
                return 0;
            }
            let turn = u32::from_le_bytes(row[4..8].try_into().unwrap());
            assert!(row == put_row(id, turn), "node {id} is a mix");
            assert!(
                (committed..=tried).contains(&turn),
                "node {id}: {committed} <= {turn} <= {tried}"
            );
            turn
        };
        rows.chunks_exact(ROW_BYTES).zip(&ids).map(turn_of).collect()
    }
}

fn client(address: &str) -> Option<Client> {
    let once =
        ClientConfig { deadline: Duration::from_secs(20), attempts: 1, ..ClientConfig::default() };
    Client::connect(&[address], once).ok()
}

/// Puts until the server is gone.
fn write(address: &str, writer: u32, told: &Told) {
    let Some(client) = client(address) else { return };
    let tried = &told.tried[writer as usize];
    loop {
        let turn = tried.load(Ordering::Relaxed) + 1;
        tried.store(turn, Ordering::Relaxed);
        let n_rows = [1, 30, 400][turn as usize % 3];
        let nodes = (0..n_rows).map(|i| (turn * 131 + i) * N_WRITERS + writer);
        // A writer's own: the number of nodes is a multiple of that of writers.
        let ids: Vec<NodeId> = nodes.map(|node| NodeId(node % N_NODES)).collect();
        let rows: Vec<u8> = ids.iter().flat_map(|&id| put_row(id, turn)).collect();
        match client.put_rows("feat", &ids, &rows) {
            Ok(_) => {
                ids.iter().for_each(|id| told.put[id.index()].store(turn, Ordering::Relaxed));
            }
            Err(error) => return assert_gone(&error),
        }
    }
}

/// Commits and compacts until the server is gone.
fn commit(address: &str, told: &Told) {
    let Some(client) = client(address) else { return };
    loop {
        if let Err(error) = told.commit(&client) {
            return assert_gone(&error);
        }
        let compacted =
            client.compact().and_then(|runs| client.wait_for_compactions(&runs, &mut |_, _| {}));
        if let Err(error) = compacted {
            return assert_gone(&error);
        }
    }
}

fn assert_gone(error: &ClientError) {
    let gone = matches!(
        error,
        ClientError::Unavailable { .. } | ClientError::Connect { .. } | ClientError::Away { .. }
    );
    assert!(gone, "a killed server breaks connections and nothing else: {error}");
}

/// Puts, commits and compacts through a server until it is killed.
fn load_and_kill(graph: &Path, after: Duration, told: &Told) {
    let server = Serving::start(graph, "--writable --insecure --listen 127.0.0.1:0 --shards 2");
    let address = &server.address.clone();
    thread::scope(|scope| {
        for writer in 0..N_WRITERS {
            scope.spawn(move || write(address, writer, told));
        }
        scope.spawn(move || commit(address, told));
        thread::sleep(after);
        server.kill();
    });
}

/// Checks that every row is its last committed one or a later one that was tried. After a commit
/// every row that was acknowledged is there.
fn check(graph: &Path, told: &Told) -> u32 {
    let server = Serving::start(graph, "--writable --insecure --listen 127.0.0.1:0 --shards 2");
    let client = client(&server.address).unwrap();
    told.check_rows(&client);
    let (_, stats) = client.stats().unwrap().remove(0);
    let version = told.version.load(Ordering::Relaxed);
    assert!(stats.updates.version >= version, "version {version} was acknowledged: {stats:?}");
    told.commit(&client).unwrap();
    let turns = told.check_rows(&client);
    server.stop();
    for (turn, at) in turns.iter().zip(0..) {
        told.put[at].store(*turn, Ordering::Relaxed);
        told.committed[at].store(*turn, Ordering::Relaxed);
    }
    turns.into_iter().max().unwrap_or(0)
}

#[test]
fn nothing_acknowledged_is_lost_when_a_server_is_killed() {
    let n_kills = if std::env::var_os("LODE_LONG").is_some() { 100 } else { 5 };
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, 3);
    let told = Told::new();
    let mut numbers = Numbers(17);
    let mut newest = 0;
    for _ in 0..n_kills {
        load_and_kill(&graph, Duration::from_millis(60 + u64::from(numbers.below(200))), &told);
        newest = check(&graph, &told);
    }
    assert!(newest > 0, "something was put");
    println!("{n_kills} kills: turn {newest}, version {}", told.version.load(Ordering::Relaxed));
}
