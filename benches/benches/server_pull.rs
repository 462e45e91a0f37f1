//! Server pull of resident rows over loopback, beside the plain exchange of the same bytes. Over a
//! Unix socket, with shared memory and without, beside plain copies of the same bytes in memory.
//!
//! One shard, one client thread, rows of 400 B in the host tier. It does not measure disk reads,
//! several clients, or a network.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lodestore_benches::{PlainPeer, feature_graph, row_of, shuffled_ids};
use lodestore_client::{Client, ClientConfig};
use lodestore_server::{Server, ServerConfig};

const N_NODES: u32 = 200_000;
const WIDTH: u32 = 100;
const ROW_BYTES: usize = WIDTH as usize * 4;
const REQUEST_ROWS: [usize; 4] = [1, 100, 1_000, 15_000];

fn server_pull(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, 1);
    let config = ServerConfig {
        listen: Some(([127, 0, 0, 1], 0).into()),
        n_shards: 1,
        unix: Some(dir.path().join("socket")),
        ..ServerConfig::new(graph)
    };
    let server = Server::start(&config).expect("the server starts");
    let tcp = server.address().expect("TCP was asked for").to_string();
    let unix = format!("unix:{}", dir.path().join("socket").display());
    let mut group = c.benchmark_group("server_pull");
    for n_rows in REQUEST_ROWS {
        let ids = shuffled_ids(N_NODES, n_rows);
        group.throughput(Throughput::Elements(n_rows as u64));
        let kinds = [("tcp", &tcp, true), ("unix", &unix, false), ("unix_shared", &unix, true)];
        for (kind, address, shared_memory) in kinds {
            let config = ClientConfig { shared_memory, ..ClientConfig::default() };
            let client = Client::connect(&[address], config).expect("connected");
            let mut out = vec![0; n_rows * ROW_BYTES];
            let mut pull = || client.sync_pull("feat", &ids, &mut out).map(|stats| stats.rows);
            // Once to make the rows resident.
            assert_eq!(pull().expect("rows"), n_rows as u64);
            group.bench_function(BenchmarkId::new(kind, n_rows), |b| {
                b.iter(|| pull().expect("rows"));
            });
            for (row, id) in out.chunks_exact(ROW_BYTES).zip(&ids) {
                assert!(row == row_of(*id, WIDTH), "row of node {id}");
            }
        }
        let (rows, mut out) = (vec![1u8; n_rows * ROW_BYTES], vec![0; n_rows * ROW_BYTES]);
        group.bench_function(BenchmarkId::new("memory_copy", n_rows), |b| {
            b.iter(|| std::hint::black_box(&mut out[..]).copy_from_slice(&rows));
        });
        let mut plain = PlainPeer::start(n_rows * 4 + 48, n_rows * ROW_BYTES + 48);
        group.bench_function(BenchmarkId::new("plain_loopback", n_rows), |b| {
            b.iter(|| plain.exchange()[0]);
        });
    }
    group.finish();
    server.stop().expect("a clean stop");
}

criterion_group!(benches, server_pull);
criterion_main!(benches);
