//! Work that is shared between threads, where no new ones are to be had: it is done by the thread
//! that asked for it.

use std::path::Path;
use std::sync::Arc;

use lodestore_graph::NodeId;
use lodestore_graph::edges::{EdgeStream, MemoryEdges, ReadAhead};
use lodestore_graph::sampler::{Deal, Fanout};
use lodestore_graph::schedule::{ScheduleInput, ScheduleSpec, write_schedule};
use lodestore_graph::topology::Topology;
use lodestore_store::file_system::Disk;
use lodestore_store::repair::{RepairMode, repair_on};
use lodestore_store::verify::verify_on;
use lodestore_store::{EmbeddedStore, Graph, View};

use testing::child::{child, refuse};
use testing::sample::{N_NODES, all_rows, import, update};

const N_THREADS: usize = 4;

#[test]
fn without_new_threads_puts_and_commits_reach_all_partitions() {
    let dir = tempfile::tempdir().unwrap();
    child("no threads to put", dir.path());
    let graph = Graph::open(&dir.path().join("graph")).unwrap();
    let versions = graph.book().parts().map(|part| graph.catalog(part)?.current_version());
    assert_eq!(versions.collect::<Result<Vec<_>, _>>().unwrap(), [4, 4]);
    let store = EmbeddedStore::from_graph(graph, None).unwrap();
    check_put(&store);
}

#[test]
fn without_new_threads_everything_is_verified_and_looked_at_by_repair() {
    child("no threads to verify", tempfile::tempdir().unwrap().path());
}

#[test]
fn without_new_threads_edges_are_read_and_schedules_written() {
    child("no threads to schedule", tempfile::tempdir().unwrap().path());
}

/// Runs the child processes of these tests; returns `false` in other processes.
pub(crate) fn act(scenario: &str, dir: &Path) -> bool {
    match scenario {
        "no threads to put" => puts(dir),
        "no threads to verify" => looks(dir),
        "no threads to schedule" => schedules(dir),
        _ => return false,
    }
    true
}

/// Makes the system refuse new threads, as past a limit of tasks.
fn refuse_threads() {
    refuse(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
    std::thread::Builder::new().spawn(|| {}).unwrap_err();
}

fn puts(dir: &Path) {
    let live = Arc::new(update(import(&dir.join("graph"))));
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    refuse_threads();
    live.put_rows("feat", &ids, &vec![77; ids.len() * 99]).unwrap();
    assert_eq!(live.commit_version().unwrap(), 4);
    let store = EmbeddedStore::from_handle(live, View::At(4)).unwrap();
    check_put(&store);
    // As a kill leaves it: RocksDB closes with threads of its own.
    std::mem::forget(store);
}

fn check_put(store: &EmbeddedStore) {
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut out = vec![0; ids.len() * 99];
    store.gather("feat", &ids, &mut out).unwrap();
    assert!(out.iter().all(|&byte| byte == 77));
}

fn looks(dir: &Path) {
    let path = dir.join("graph");
    let rows = all_rows(import(&path)).unwrap();
    // RocksDB aborts where it gets none of the threads that an open one shares with all others.
    let held = EmbeddedStore::open(&path, None).unwrap();
    refuse_threads();
    let report = verify_on(Arc::new(Disk), &path, N_THREADS, &mut |_, _| {}).unwrap();
    assert!(report.ok && report.pages > 0, "{report:?}");
    let report =
        repair_on(Arc::new(Disk), &path, RepairMode::DryRun, N_THREADS, &mut |_, _| {}).unwrap();
    assert!(report.ok && report.done.is_empty(), "{report:?}");
    assert!(all_rows(Graph::open(&path).unwrap()).unwrap() == rows);
    drop(held);
}

fn schedules(dir: &Path) {
    let graph = import(&dir.join("graph"));
    let book = graph.book();
    let paths: Vec<_> = book.parts().map(|part| graph.topology_path(part)).collect();
    let topology = Topology::open(&paths, book, *graph.uuid().as_bytes()).unwrap();
    let spec = ScheduleSpec {
        graph_uuid: *graph.uuid().as_bytes(),
        seed: 5,
        fanouts: vec!["3".parse::<Fanout>().unwrap(), Fanout::All],
        batch_size: 50,
        epochs: 2,
        workers: 2,
        deal: Deal::Owned,
    };
    let roots: Vec<NodeId> = (0..N_NODES).step_by(2).map(NodeId).collect();
    let write = |name: &str| {
        let path = dir.join(name);
        write_schedule(
            &ScheduleInput { topology: &topology, book, train_roots: &roots },
            &spec,
            &path,
            N_THREADS,
            &mut |_, _| {},
        )
        .unwrap();
        std::fs::read(path).unwrap()
    };
    let by_threads = write("threads");
    let edges: Vec<[u32; 2]> = (0..300_000u32).map(|i| [i, i / 3]).collect();
    let ahead = ReadAhead::new(MemoryEdges::new(edges.clone()).unwrap());
    refuse_threads();
    assert!(write("alone") == by_threads);
    let mut read = Vec::new();
    let mut each = |chunk: &[[u32; 2]]| {
        read.extend_from_slice(chunk);
        Ok(())
    };
    ahead.for_each_chunk(&mut each).unwrap();
    assert!(read == edges);
}
