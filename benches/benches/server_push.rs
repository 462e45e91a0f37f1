//! Durable puts through a server, beside the same puts in this process and the disk's own syncs.
//!
//! Rows of 400 B, 1, 100 and 10 000 to a push, from one connection and from 16 concurrently. Each
//! push is on disk when it is acknowledged. It does not measure commits, compactions, pulls
//! meanwhile, or a network.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use lodestore_benches::{feature_graph, shuffled_ids};
use lodestore_client::{Client, ClientConfig};
use lodestore_graph::NodeId;
use lodestore_server::{Server, ServerConfig};
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions};

const N_NODES: u32 = 200_000;
const WIDTH: u32 = 100;
const ROW_BYTES: usize = WIDTH as usize * 4;
const PUSH_ROWS: [usize; 3] = [1, 100, 10_000];
const AT_ONCE: [usize; 2] = [1, 16];

fn server_push(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, 1);
    let mut group = c.benchmark_group("server_push");
    group.sample_size(10);
    group.measurement_time(Duration::from_secs(3));
    through_a_server(&mut group, &graph);
    in_this_process(&mut group, &graph);
    syncs(&mut group, dir.path());
    group.finish();
}

fn through_a_server(group: &mut BenchmarkGroup<'_, WallTime>, graph: &Path) {
    let config = ServerConfig {
        listen: Some(([127, 0, 0, 1], 0).into()),
        writable: true,
        insecure: true,
        ..ServerConfig::new(graph)
    };
    let server = Server::start(&config).expect("the server starts");
    let address = server.address().expect("TCP was asked for").to_string();
    // One client each, so that each has a connection of its own.
    let connect = || Client::connect(&[&address], ClientConfig::default()).expect("connected");
    let clients: Vec<Client> = (0..16).map(|_| connect()).collect();
    each(group, "server", |client, ids, rows| {
        clients[client].put_rows("feat", ids, rows).expect("rows are put");
    });
    let (ids, rows) = batch(PUSH_ROWS[2], 3);
    clients[0].put_rows("feat", &ids, &rows).expect("rows are put");
    clients[0].commit().expect("a commit");
    let mut found = vec![0; rows.len()];
    clients[1].sync_pull("feat", &ids, &mut found).expect("rows come");
    assert!(found == rows, "what was put and committed is what is pulled");
    drop(clients);
    server.stop().expect("a clean stop");
}

fn in_this_process(group: &mut BenchmarkGroup<'_, WallTime>, graph: &Path) {
    let graph = Graph::open(graph).expect("a graph");
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default());
    let live = live.expect("no other writer exists");
    each(group, "embedded", |_, ids, rows| {
        live.put_rows("feat", ids, rows).expect("rows are put");
    });
}

/// Measures puts of every number of rows from every number of threads. An iteration is one put of
/// each thread.
fn each(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    put: impl Fn(usize, &[NodeId], &[u8]) + Sync,
) {
    for at_once in AT_ONCE {
        for n_rows in PUSH_ROWS {
            let batches: Vec<_> = (0..at_once).map(|thread| batch(n_rows, thread)).collect();
            group.throughput(Throughput::Elements((n_rows * at_once) as u64));
            let id = BenchmarkId::new(format!("{name}_{at_once}"), n_rows);
            group.bench_function(id, |b| {
                b.iter_custom(|n_iterations| {
                    let start = Instant::now();
                    thread::scope(|scope| {
                        for (thread, (ids, rows)) in batches.iter().enumerate() {
                            let put = &put;
                            scope.spawn(move || {
                                (0..n_iterations).for_each(|_| put(thread, ids, rows));
                            });
                        }
                    });
                    start.elapsed()
                });
            });
        }
    }
}

/// Measures the physical limit of a put: its bytes at the end of a file, and a sync.
fn syncs(group: &mut BenchmarkGroup<'_, WallTime>, dir: &Path) {
    for n_rows in PUSH_ROWS {
        let bytes = vec![7; n_rows * ROW_BYTES];
        let mut file = File::create(dir.join("syncs")).expect("a file");
        group.throughput(Throughput::Elements(n_rows as u64));
        group.bench_function(BenchmarkId::new("sync", n_rows), |b| {
            b.iter(|| {
                file.write_all(&bytes).expect("room on the disk");
                file.sync_data().expect("a sync");
            });
        });
    }
}

/// Returns the rows of a thread, and whose they are.
fn batch(n_rows: usize, thread: usize) -> (Vec<NodeId>, Vec<u8>) {
    let ids = shuffled_ids(N_NODES, n_rows + thread).split_off(thread);
    let rows = ids.iter().flat_map(|id| (id.0 + thread as u32).to_le_bytes());
    let rows = rows.flat_map(|byte| [byte; ROW_BYTES / 4]).collect();
    (ids, rows)
}

criterion_group!(benches, server_push);
criterion_main!(benches);
