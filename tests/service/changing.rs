//! Rows that are put, committed and compacted while clients compare every row. Pinned clients see
//! one version to its last bit and are never refused. Others see every commit that was
//! acknowledged.
//!
//! One writer commits each turn on its own, so that a version is known from the newest turn in it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig, Pin, PullKind, RowSource};
use lodestore_graph::NodeId;

use testing::Numbers;
use testing::process::Serving;
use testing::workload::{ROW_BYTES, known_graph, put_row};

/// Enough for every shard to lend its rows of a pull to a client of a Unix socket.
const N_NODES: u32 = 9000;
const N_PARTS: u16 = 3;

/// Tiers that hold some rows, and all.
const MEMORIES: [&str; 2] = ["150kB", "64MiB"];

fn time_of_a_case() -> Duration {
    Duration::from_secs(if crate::is_long() { 60 } else { 2 })
}

/// Returns the nodes of a turn: one, some of a range, or many over the graph.
fn nodes_of(turn: u32) -> impl Iterator<Item = NodeId> {
    let (n_rows, step) = [(1, 1), (400, 1), (1500, 7), (30, 211)][turn as usize % 4];
    (0..n_rows).map(move |i| NodeId((turn * 1237 + i * step) % N_NODES))
}

/// Committed and tried versions, and the events.
#[derive(Default)]
struct State {
    committed: AtomicU32,
    tried: AtomicU32,
    is_over: AtomicBool,
    n_compactions: AtomicU32,
    n_pinned: AtomicU32,
    n_newest: AtomicU32,
}

/// The others end with this thread, however that ends.
struct EndOnDrop<'a>(&'a State);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

fn connect(address: &str, pin: bool) -> Client {
    let deadline = Duration::from_secs(20);
    let config =
        ClientConfig { pin: pin.then_some(Pin::Newest), deadline, ..ClientConfig::default() };
    Client::connect(&[address], config).unwrap()
}

fn all_nodes() -> Vec<NodeId> {
    (0..N_NODES).map(NodeId).collect()
}

fn pull(client: &Client, ids: &[NodeId], kind: PullKind) -> Vec<u8> {
    let mut rows = vec![0xEE; ids.len() * ROW_BYTES];
    client.pull("feat", ids, &mut rows, kind).unwrap();
    rows
}

/// Returns the turn that a row is of.
fn turn_of(node: NodeId, row: &[u8]) -> u32 {
    let turn = u32::from_le_bytes(row[4..8].try_into().unwrap());
    assert!(row == put_row(node, turn), "node {node} is a mix: {row:?}");
    turn
}

/// Returns for each node the last turn up to `turn` that has put it.
fn turns_after(turn: u32) -> Vec<u32> {
    let mut turns = vec![0; N_NODES as usize];
    (1..=turn).for_each(|turn| nodes_of(turn).for_each(|node| turns[node.index()] = turn));
    turns
}

fn rows_after(turn: u32) -> Vec<u8> {
    let turns = turns_after(turn);
    (0..N_NODES).zip(turns).flat_map(|(node, turn)| put_row(NodeId(node), turn)).collect()
}

impl State {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Returns the commits, compactions, and pulls of pinned and of newest versions.
    fn counts(&self) -> [u32; 4] {
        let counts = [&self.committed, &self.n_compactions, &self.n_pinned, &self.n_newest];
        counts.map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns whether enough has happened for a comparison.
    fn is_enough(&self) -> bool {
        let [n_commits, others @ ..] = self.counts();
        n_commits >= 12 && others.iter().all(|&n| n > 1)
    }

    fn write(&self, client: &Client) {
        let _end = EndOnDrop(self);
        let mut turn = 0;
        while !self.is_over() {
            turn += 1;
            let ids: Vec<NodeId> = nodes_of(turn).collect();
            let rows: Vec<u8> = ids.iter().flat_map(|&id| put_row(id, turn)).collect();
            client.put_rows("feat", &ids, &rows).unwrap();
            self.tried.store(turn, Ordering::SeqCst);
            assert_eq!(client.commit().unwrap(), turn + 1);
            self.committed.store(turn, Ordering::SeqCst);
        }
    }

    fn compact(&self, client: &Client) {
        let _end = EndOnDrop(self);
        while !self.is_over() {
            let runs = client.compact().unwrap();
            client.wait_for_compactions(&runs, &mut |_, _| {}).unwrap();
            self.n_compactions.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(30));
        }
    }

    /// Pulls one version again and again: all rows, and some; for `n_pulls`, or until the end.
    fn read_pinned(&self, client: &Client, seed: u64, n_pulls: u32) {
        let ids = all_nodes();
        let first = pull(client, &ids, PullKind::Sync);
        let newest =
            ids.iter().zip(first.chunks_exact(ROW_BYTES)).map(|(&id, row)| turn_of(id, row));
        let newest = newest.max().unwrap();
        assert!(
            first == rows_after(newest),
            "rows of several versions, the newest of turn {newest}"
        );
        let mut numbers = Numbers(seed);
        for _ in 0..n_pulls {
            assert!(pull(client, &ids, PullKind::Vector) == first, "turn {newest} has changed");
            let some: Vec<NodeId> = (0..100).map(|_| NodeId(numbers.below(N_NODES))).collect();
            let rows = pull(client, &some, PullKind::Sync);
            for (id, row) in some.iter().zip(rows.chunks_exact(ROW_BYTES)) {
                assert!(row == &first[id.index() * ROW_BYTES..][..ROW_BYTES], "node {id}");
            }
            self.n_pinned.fetch_add(1, Ordering::Relaxed);
            if self.is_over() {
                break;
            }
        }
    }

    /// Pulls the newest rows. None is older than a commit that was acknowledged before, or than the
    /// reader has seen. None is one that was not put.
    fn read_newest(&self, client: &Client, kind: PullKind) {
        let _end = EndOnDrop(self);
        let ids = all_nodes();
        let mut seen = vec![0; ids.len()];
        while !self.is_over() {
            let before = turns_after(self.committed.load(Ordering::SeqCst));
            let rows = pull(client, &ids, kind);
            let tried = self.tried.load(Ordering::SeqCst);
            for (&id, row) in ids.iter().zip(rows.chunks_exact(ROW_BYTES)) {
                let (turn, at) = (turn_of(id, row), id.index());
                assert!(
                    (before[at]..=tried).contains(&turn),
                    "node {id}: turn {turn}, {} was committed, {tried} tried",
                    before[at]
                );
                assert!(turn >= seen[at], "node {id}: turn {turn} after {}", seen[at]);
                seen[at] = turn;
            }
            self.n_newest.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn compare_under_commits(n_shards: u16, memory: &str, is_unix: bool) {
    let dir = tempfile::tempdir().unwrap();
    let graph = known_graph(dir.path(), N_NODES, N_PARTS);
    let socket = dir.path().join("rows.sock");
    let listen = match is_unix {
        true => format!("--unix {}", socket.display()),
        false => "--listen 127.0.0.1:0".to_owned(),
    };
    let more = format!("{listen} --writable --insecure --shards {n_shards} --memory {memory}");
    let server = Serving::start(&graph, &more);
    let address =
        if is_unix { format!("unix:{}", socket.display()) } else { server.address.clone() };
    let (state, address, begun) = (&State::default(), &address, Instant::now());
    thread::scope(|scope| {
        let _end = EndOnDrop(state);
        let oldest = connect(address, true);
        scope.spawn(|| state.write(&connect(address, false)));
        scope.spawn(|| state.compact(&connect(address, false)));
        scope.spawn(move || {
            let _end = EndOnDrop(state);
            // Its first pull comes long after other versions.
            while state.committed.load(Ordering::SeqCst) < 12 && !state.is_over() {
                thread::sleep(Duration::from_millis(10));
            }
            state.read_pinned(&oldest, 1, u32::MAX);
        });
        scope.spawn(|| {
            let _end = EndOnDrop(state);
            // A server keeps 64 versions at most.
            for n_pulls in [10; 40].into_iter().chain([u32::MAX]) {
                if !state.is_over() {
                    state.read_pinned(&connect(address, true), 2, n_pulls);
                }
            }
        });
        scope.spawn(|| state.read_newest(&connect(address, false), PullKind::Sync));
        scope.spawn(|| state.read_newest(&connect(address, false), PullKind::Vector));
        for _ in 0..20 {
            thread::sleep(time_of_a_case() / 20);
            if state.is_over() {
                break;
            }
        }
        // A busy machine commits seldom.
        while !state.is_over() && !state.is_enough() && begun.elapsed() < 10 * time_of_a_case() {
            thread::sleep(Duration::from_millis(10));
        }
    });
    let counts = state.counts();
    println!("{n_shards} shards, {memory}, {address}: {counts:?} commits, compactions, pulls");
    assert!(state.is_enough(), "{counts:?}");
    let last = state.committed.load(Ordering::Relaxed);
    assert!(pull(&connect(address, false), &all_nodes(), PullKind::Sync) == rows_after(last));
    server.stop();
}

#[test]
fn every_row_over_tcp_is_of_its_version_or_of_the_newest() {
    for memory in MEMORIES {
        (1..=2).for_each(|n_shards| compare_under_commits(n_shards, memory, false));
    }
}

#[test]
fn every_row_over_a_unix_socket_is_of_its_version_or_of_the_newest() {
    for memory in MEMORIES {
        (1..=2).for_each(|n_shards| compare_under_commits(n_shards, memory, true));
    }
}
