//! A process that puts, commits, compacts and gathers as fast as it can, and reports completed
//! work.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use lodestore_graph::{NodeId, PartitionBook};
use lodestore_store::{EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, View};

use testing::Numbers;

pub(crate) const N_NODES: u32 = 3000;
pub(crate) const N_PARTS: u16 = 3;
pub(crate) const N_WRITERS: u32 = 3;
pub(crate) const WIDTH: u32 = 26;
pub(crate) const ROW_BYTES: usize = WIDTH as usize * 4;

/// Commits to one compaction.
const COMMITS_PER_COMPACTION: u32 = 4;

/// Returns the nodes of a writer's turn: its own, each once.
pub(crate) fn nodes_of(writer: u32, turn: u32) -> impl Iterator<Item = NodeId> {
    let n_rows = [1, 30, 400][turn as usize % 3];
    (0..n_rows).map(move |i| NodeId((turn * 131 + i) * N_WRITERS % N_NODES + writer))
}

/// Returns the row of `node` that was put at a turn.
pub(crate) fn put_row(node: NodeId, turn: u32) -> Vec<u8> {
    [node.0, turn].repeat(WIDTH as usize / 2).iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Works until it is killed; each writer starts with its turn of `first_turns`.
///
/// Lines on stdout: `ready`, `put WRITER TURN` when a put has returned, `begin` ahead of a commit,
/// and `commit VERSION` when it has returned.
pub(crate) fn work(graph: &Path, first_turns: &[u32]) {
    let graph = Graph::open(graph).unwrap();
    let options = OpenOptions::default();
    let live = &Arc::new(GraphHandle::open(graph, None, OpenMode::Write, &options).unwrap());
    // The test's name is before it, without an end of line.
    tell("\nready");
    thread::scope(|scope| {
        for (writer, &first) in (0..).zip(first_turns) {
            scope.spawn(move || write(live, writer, first));
        }
        scope.spawn(|| commit(live));
        scope.spawn(|| gather(live));
    });
}

fn write(live: &GraphHandle, writer: u32, first: u32) {
    for turn in first.. {
        let ids: Vec<NodeId> = nodes_of(writer, turn).collect();
        let rows: Vec<u8> = ids.iter().flat_map(|&id| put_row(id, turn)).collect();
        live.put_rows("feat", &ids, &rows).unwrap();
        tell(&format!("put {writer} {turn}"));
    }
}

fn commit(live: &GraphHandle) {
    for n in 1.. {
        tell("begin");
        let version = live.commit_version().unwrap();
        tell(&format!("commit {version}"));
        if n % COMMITS_PER_COMPACTION == 0 {
            live.compact(None, None, lodestore_store::update::Folding::All, &mut |_, _| {
                ControlFlow::Continue(())
            })
            .unwrap();
        }
    }
}

/// Gathers until the process ends. Rows never get older, and each is whole.
fn gather(live: &Arc<GraphHandle>) {
    let store = EmbeddedStore::from_handle(Arc::clone(live), View::Latest).unwrap();
    let (mut numbers, mut newest) = (Numbers(5), vec![0; N_NODES as usize]);
    loop {
        let ids: Vec<NodeId> = (0..200).map(|_| NodeId(numbers.below(N_NODES))).collect();
        for (id, turn) in ids.iter().zip(turns(&store, &ids)) {
            assert!(turn >= newest[id.index()], "node {id}: {turn} after {newest:?}");
            newest[id.index()] = turn;
        }
    }
}

/// Returns the turn of each node's row, 0 for the import's.
///
/// # Panics
/// When a row is not whole, or another node's.
pub(crate) fn turns(store: &EmbeddedStore, ids: &[NodeId]) -> Vec<u32> {
    let mut rows = vec![0; ids.len() * ROW_BYTES];
    store.gather("feat", ids, &mut rows).unwrap();
    let turn = |(&id, row): (&NodeId, &[u8])| {
        let turn = u32::from_le_bytes(row[4..8].try_into().unwrap());
        if row == put_row(id, turn) {
            return turn;
        }
        assert!(row == testing::features::row_of(id, WIDTH), "node {id} is a mix: {row:02x?}");
        0
    };
    ids.iter().zip(rows.chunks_exact(ROW_BYTES)).map(turn).collect()
}

/// Returns the partition of each node.
pub(crate) fn parts(book: &PartitionBook) -> Vec<usize> {
    let part = |node| book.locate(NodeId(node)).unwrap().0.index();
    (0..N_NODES).map(part).collect()
}

/// Prints one line in one write, past the capture of tests: the process may end after any.
fn tell(line: &str) {
    let mut stdout = io::stdout().lock();
    stdout.write_all(format!("{line}\n").as_bytes()).and_then(|()| stdout.flush()).unwrap();
}
