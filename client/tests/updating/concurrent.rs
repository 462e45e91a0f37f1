//! Many concurrent clients. A pull that starts after the acknowledgement of a commit sees no older
//! row, no reader goes back in time, and no row is torn.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use super::*;

const N_NODES: u32 = 4000;
const N_WRITERS: u32 = 4;

/// The turn of each node; every node has one writer.
struct Acknowledged {
    /// Last acknowledged put.
    put: Vec<AtomicU32>,
    /// Last put acknowledged before the start of an acknowledged commit.
    committed: Vec<AtomicU32>,
}

impl Acknowledged {
    fn new() -> Self {
        let zeros = || (0..N_NODES).map(|_| AtomicU32::new(0)).collect();
        Self { put: zeros(), committed: zeros() }
    }

    fn of(&self, id: NodeId) -> u32 {
        self.committed[id.index()].load(Ordering::SeqCst)
    }

    /// Commits all acknowledged puts.
    fn commit(&self, client: &Client) {
        let put: Vec<u32> = self.put.iter().map(|turn| turn.load(Ordering::SeqCst)).collect();
        client.commit().unwrap();
        for (committed, turn) in self.committed.iter().zip(put) {
            committed.store(turn, Ordering::SeqCst);
        }
    }
}

fn seconds() -> f64 {
    if std::env::var_os("LODE_LONG").is_some() { 30.0 } else { 0.7 }
}

/// Puts rows of the writer's own nodes, a new turn each time, with varying numbers of rows.
fn write(client: &Client, writer: u32, acknowledged: &Acknowledged, end: &AtomicBool) -> u32 {
    let of_mine = |ids: Vec<NodeId>| -> Vec<NodeId> {
        ids.into_iter().filter(|id| id.0 % N_WRITERS == writer).collect()
    };
    let mut turn: u32 = 0;
    while !end.load(Ordering::Relaxed) {
        turn += 1;
        let n_rows = [1, 40, 1600][turn as usize % 3];
        let first = turn.wrapping_mul(7919) % N_NODES;
        let ids = (0..n_rows).map(|i| NodeId((first + i * 5) % N_NODES)).collect();
        let ids = of_mine(ids);
        client.put_rows("feat", &ids, &put_rows(&ids, turn)).unwrap();
        ids.iter().for_each(|id| acknowledged.put[id.index()].store(turn, Ordering::SeqCst));
    }
    turn
}

/// Pulls with `pull` and compares the rows with the commits acknowledged before.
fn read(
    mut pull: impl FnMut(&[NodeId]) -> Vec<u8>,
    reader: u32,
    acknowledged: &Acknowledged,
    end: &AtomicBool,
) -> u32 {
    let mut seen = vec![0; N_NODES as usize];
    let mut pulls = 0;
    while !end.load(Ordering::Relaxed) {
        pulls += 1;
        let first = (reader * 1237 + pulls * 31) % N_NODES;
        let n_rows = [1, 60, 900][pulls as usize % 3];
        let ids: Vec<NodeId> = (0..n_rows).map(|i| NodeId((first + i * 3) % N_NODES)).collect();
        let before: Vec<u32> = ids.iter().map(|&id| acknowledged.of(id)).collect();
        let rows = pull(&ids);
        for ((row, &id), before) in rows.chunks_exact(ROW_BYTES).zip(&ids).zip(before) {
            let turn = turn_of(id, row);
            assert!(turn >= before, "node {id}: turn {before} was committed, pulled {turn}");
            let seen = &mut seen[id.index()];
            assert!(turn >= *seen, "node {id}: turn {seen} was pulled before, now {turn}");
            *seen = turn;
        }
    }
    pulls
}

fn run(n_parts: u16, n_shards: u16, tier_bytes: u64, compacts: bool) {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, n_parts);
    let config = ServerConfig { tier_bytes, ..config(&graph, n_shards) };
    let (server, address) = start(&config);
    let acknowledged = Acknowledged::new();
    let end = AtomicBool::new(false);
    let (acknowledged, end, address) = (&acknowledged, &end, &address);
    let counts = thread::scope(|scope| {
        let writers: Vec<_> = (0..N_WRITERS)
            .map(|i| scope.spawn(move || write(&connect(&[address]), i, acknowledged, end)))
            .collect();
        let readers: Vec<_> = (0..4)
            .map(|i| {
                scope.spawn(move || {
                    if i % 2 == 0 {
                        let client = connect(&[address]);
                        return read(|ids| pull(&client, ids).unwrap(), i, acknowledged, end);
                    }
                    let mut plain = PlainConnection::open(address);
                    let pull = |ids: &[NodeId]| plain.pull(0, PullKind::Sync, ids, ROW_BYTES);
                    read(pull, i, acknowledged, end)
                })
            })
            .collect();
        let commits = scope.spawn(move || {
            let client = connect(&[address]);
            let mut commits = 0;
            while !end.load(Ordering::Relaxed) {
                acknowledged.commit(&client);
                if compacts {
                    compact(&client);
                }
                commits += 1;
            }
            commits
        });
        thread::sleep(Duration::from_secs_f64(seconds()));
        end.store(true, Ordering::Relaxed);
        let sum = |all: Vec<thread::ScopedJoinHandle<'_, u32>>| {
            all.into_iter().map(|one| one.join().unwrap()).sum::<u32>()
        };
        (sum(writers), sum(readers), commits.join().unwrap())
    });
    println!("{n_parts} parts, {n_shards} shards: {counts:?} puts, pulls, commits");
    assert!(counts.0 > 4 && counts.1 > 4 && counts.2 > 1, "{counts:?}");
    acknowledged.commit(&connect(&[address]));
    let mut expected = Expected::new(N_NODES);
    for (turn, acknowledged) in expected.turns.iter_mut().zip(&acknowledged.committed) {
        *turn = acknowledged.load(Ordering::SeqCst);
    }
    expected.check(&[address], "at the end");
    server.stop().unwrap();
    let (server, address) = start(&config);
    expected.check(&[&address], "after a restart");
    server.stop().unwrap();
}

#[test]
fn no_pull_sees_a_row_from_before_an_acknowledged_commit() {
    run(2, 3, 1 << 30, false);
}

#[test]
fn no_pull_sees_an_old_row_during_compactions() {
    run(2, 2, 1 << 30, true);
}

#[test]
fn no_pull_sees_an_old_row_with_a_small_tier_or_none() {
    run(1, 2, 100 << 10, true);
    run(3, 1, 0, true);
}
