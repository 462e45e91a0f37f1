//! A graph that is open for writing, a client that puts, and the children of their process.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use lodestore_client::{Client, ClientConfig, PullKind, RowSource};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::{EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, StoreError, View};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::reading::EndsOnDrop;
use testing::fork::fork;
use testing::graph::Source;
use testing::process::Serving;

const N_NODES: u32 = 600;
const ROW_BYTES: usize = 13 * 4;

fn open(dir: &Path) -> Result<GraphHandle, StoreError> {
    let graph = Graph::open(dir).unwrap();
    GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default())
}

/// Puts a row of bytes `turn` for one node.
fn put(live: &GraphHandle, node: u32, turn: u8) {
    live.put_rows("feat", &[NodeId(node)], &[turn; ROW_BYTES]).unwrap();
}

/// Returns a row of the latest.
fn row(store: &EmbeddedStore, node: u32) -> Result<[u8; ROW_BYTES], StoreError> {
    let mut out = [0xEE; ROW_BYTES];
    store.gather("feat", &[NodeId(node)], &mut out).map(|()| out)
}

fn is_forked<T>(refused: Result<T, StoreError>) {
    let error = refused.map(drop).unwrap_err();
    assert!(matches!(error, StoreError::Forked { .. }), "{error}");
    assert!(error.to_string().contains("forked"), "{error}");
}

pub(crate) fn forks_while_it_writes() {
    let source = Source::random(N_NODES, 900);
    let dirs = ["busy", "idle", "read"].map(|name| source.import(name, 2, "range"));
    let read = EmbeddedStore::open(&dirs[2], None).unwrap();
    let row_of_import = row(&read, 3).unwrap();
    // One that threads write to, and one that the forking thread has to itself.
    let busy = Arc::new(open(&dirs[0]).unwrap());
    let store = EmbeddedStore::from_handle(Arc::clone(&busy), View::Latest).unwrap();
    let mut idle = Some(open(&dirs[1]).unwrap());
    let is_over = AtomicBool::new(false);
    let n_forks = 10u8;
    thread::scope(|scope| {
        let _end = EndsOnDrop(&is_over);
        let (said, heard) = mpsc::channel();
        for thread in 0..2u32 {
            let (busy, is_over, said) = (&busy, &is_over, said.clone());
            scope.spawn(move || {
                for turn in 0u32.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    put(busy, 2 * (turn % 100) + thread, turn as u8);
                    if thread == 0 && turn % 4 == 3 {
                        busy.commit_version().unwrap();
                    }
                    // The forking thread may have stopped receiving.
                    let _ = said.send(());
                }
            });
        }
        for number in 0..n_forks {
            (0..4).for_each(|_| heard.recv_timeout(Duration::from_secs(20)).unwrap());
            put(idle.as_ref().unwrap(), u32::from(number), number + 1);
            idle.as_ref().unwrap().commit_version().unwrap();
            let child = fork(|| {
                let live = idle.take().unwrap();
                for live in [&*busy, &live] {
                    is_forked(live.put_rows("feat", &[NodeId(9)], &[0xEE; ROW_BYTES]));
                    is_forked(live.commit_version());
                    is_forked(live.commit_through(1000));
                    is_forked(live.compact(
                        None,
                        None,
                        lodestore_store::update::Folding::All,
                        &mut |_, _| unreachable!("none runs"),
                    ));
                    assert!(!live.takes_writes());
                }
                is_forked(row(&store, 3));
                // Neither flushes nor closes what the parent has.
                drop(live);
                // Threads of its parent may hold locks of RocksDB.
                is_forked(EmbeddedStore::open(&dirs[1], None));
                is_forked(EmbeddedStore::open(&dirs[2], None));
                // One that was open before is read.
                assert_eq!(row(&read, 3).unwrap(), row_of_import);
                is_taken(&dirs[0]);
                // A child of the child is no better off.
                fork(|| is_forked(EmbeddedStore::open(&dirs[2], None))).ends_well();
            });
            put(idle.as_ref().unwrap(), 300 + u32::from(number), number + 1);
            child.ends_well();
            let folder = File::open(idle.as_ref().unwrap().graph().part_dir(PartId(0))).unwrap();
            let lock = flock(&folder, FlockOperation::NonBlockingLockExclusive);
            assert_eq!(lock, Err(Errno::WOULDBLOCK), "a child gave up its parent's lock");
            put(idle.as_ref().unwrap(), 500 + u32::from(number), number + 1);
        }
    });
    put(&busy, 599, 77);
    busy.commit_version().unwrap();
    assert_eq!(row(&store, 599).unwrap(), [77; ROW_BYTES]);
    idle.as_ref().unwrap().commit_version().unwrap();
    drop((idle, store, busy));
    // Every put of the parent is there, in a graph that opens for writing again.
    let live = Arc::new(open(&dirs[1]).unwrap());
    let store = EmbeddedStore::from_handle(live, View::Latest).unwrap();
    for number in 0..n_forks {
        for first in [0, 300, 500] {
            let found = row(&store, first + u32::from(number)).unwrap();
            assert_eq!(found, [number + 1; ROW_BYTES], "{first} {number}");
        }
    }
    assert_eq!(row(&EmbeddedStore::open(&dirs[0], None).unwrap(), 599).unwrap(), [77; ROW_BYTES]);
}

/// Asserts that a graph that the parent writes to cannot be opened for writing in a child.
fn is_taken(dir: &Path) {
    let refused = open(dir).map(drop).unwrap_err();
    assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
}

pub(crate) fn closes_while_a_child_lives() {
    let source = Source::random(N_NODES, 900);
    let dir = source.import("graph", 2, "range");
    let live = open(&dir).unwrap();
    put(&live, 1, 5);
    let child = fork(|| thread::sleep(Duration::from_secs(60)));
    drop(live);
    // Nothing is open for writing any more: a child may read, but not write without RocksDB's
    // threads.
    fork(|| {
        let store = EmbeddedStore::open(&dir, None).unwrap();
        row(&store, 1).unwrap();
        is_forked(open(&dir));
    })
    .ends_well();
    let live = open(&dir).unwrap();
    put(&live, 2, 6);
    drop((live, child));
}

/// Checks children of one thread that put one after the other, each with what it has of the
/// parent's memory.
pub(crate) fn puts_in_children() {
    let source = Source::random(N_NODES, 900);
    let graph = source.import("graph", 1, "range");
    let server = Serving::start(&graph, "--shards 1 --writable --insecure --listen 127.0.0.1:0");
    let config = ClientConfig { deadline: Duration::from_secs(15), ..ClientConfig::default() };
    let client = Client::connect(&[&server.address], config).unwrap();
    let put = |node: u32| client.put_rows("feat", &[NodeId(node)], &[node as u8; ROW_BYTES]);
    put(1).unwrap();
    let nodes = 1..6;
    for node in nodes.clone().skip(1) {
        fork(|| assert_eq!(put(node).unwrap().rows, 1)).ends_well();
    }
    client.commit().unwrap();
    for node in nodes {
        let mut row = [0xEE; ROW_BYTES];
        client.pull("feat", &[NodeId(node)], &mut row, PullKind::Sync).unwrap();
        assert_eq!(row, [node as u8; ROW_BYTES], "the put of node {node} is lost");
    }
    drop(client);
    server.stop();
}
