//! Publications and pulls of volatile rows of 1 KiB over TCP, over a Unix socket, and there through
//! shared memory. Beside them is a bulk pull of resident rows of the same length from the same
//! server.
//!
//! One shard, one client thread, 8192 rows at random to a call. Contestants take turns, so that a
//! busy machine slows all of them. It does not measure waits for stamps, several clients, or a
//! network.

use std::sync::Mutex;
use std::time::Duration;

use lodestore_benches::{
    Contestant, Rounds, check_parts, feature_graph, is_asked_for, is_smoke, row_of, shuffled_ids,
};
use lodestore_client::volatile::{StampWanted, VolatilePublisher, VolatileSource};
use lodestore_client::{Client, ClientConfig};
use lodestore_graph::NodeId;
use lodestore_server::{Server, ServerConfig};

const WIDTH: u32 = 256;
const ROW_BYTES: usize = WIDTH as usize * 4;

/// Cost and throughput of one way.
struct Work<'a> {
    client: &'a Client,
    publisher: Box<dyn VolatilePublisher + 'a>,
    ids: Vec<NodeId>,
    rows: Vec<u8>,
    out: Vec<u8>,
}

impl Work<'_> {
    fn resident(&mut self) {
        self.client.vector_pull("feat", &self.ids, &mut self.out).expect("rows");
    }

    fn pull(&mut self) {
        let wanted = StampWanted::now(1);
        let pulled = self.client.pull_volatile("h1", &self.ids, wanted, &mut self.out);
        assert!(pulled.expect("rows").is_whole(), "all rows are there");
    }

    fn publish(&mut self) {
        self.publisher.publish("h1", &self.ids, &self.rows, 1).expect("rows are published");
    }

    fn check(&mut self) {
        for (row, &id) in self.out.chunks_exact(ROW_BYTES).zip(&self.ids).step_by(97) {
            assert!(row == row_of(id, WIDTH), "row of node {id}");
        }
        self.out.fill(0);
    }
}

fn main() {
    check_parts(&["tcp", "unix", "unix, shared"]);
    let (n_nodes, n_rows) = if is_smoke() { (2_000, 500) } else { (100_000, 8_192) };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let graph = feature_graph(dir.path(), n_nodes, WIDTH, 1);
    let unix = dir.path().join("socket");
    let config = ServerConfig {
        listen: Some(([127, 0, 0, 1], 0).into()),
        n_shards: 1,
        unix: Some(unix.clone()),
        insecure: true,
        volatile: vec!["h1:256xf32".parse().expect("a tensor")],
        ..ServerConfig::new(graph)
    };
    let server = Server::start(&config).expect("the server starts");
    let tcp = server.address().expect("TCP was asked for").to_string();
    let unix = format!("unix:{}", unix.display());
    let ways = [("tcp", &tcp, true), ("unix", &unix, false), ("unix, shared", &unix, true)];
    for (way, address, shared_memory) in ways.into_iter().filter(|(way, ..)| is_asked_for(way)) {
        let config = ClientConfig { shared_memory, ..ClientConfig::default() };
        let client = Client::connect(&[address], config).expect("connected");
        measure(way, &client, (n_nodes, n_rows));
    }
    server.stop().expect("a clean stop");
}

fn measure(way: &str, client: &Client, (n_nodes, n_rows): (u32, usize)) {
    let mut publisher = client.publisher();
    // The publisher of the way before has just left.
    while publisher.claim("h1", &[0..n_nodes]).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let ids = shuffled_ids(n_nodes, n_rows);
    let rows = ids.iter().flat_map(|&id| row_of(id, WIDTH)).collect();
    let work = Work { client, publisher, ids, rows, out: vec![0; n_rows * ROW_BYTES] };
    let work = Mutex::new(work);
    let with = |run: &dyn Fn(&mut Work<'_>)| run(&mut work.lock().expect("no panic"));
    let contestants: [Contestant<'_>; 3] = [
        ("resident pull", Box::new(|_| with(&|work| work.resident()))),
        ("publish", Box::new(|_| with(&|work| work.publish()))),
        ("pull", Box::new(|_| with(&|work| work.pull()))),
    ];
    for (_, run) in &contestants {
        run(0);
    }
    with(&|work| work.check());
    let figures = Rounds::from_args(101, 1).run(&contestants);
    with(&|work| work.check());
    for ((name, _), figures) in contestants.iter().zip(figures) {
        let figures = figures.text((n_rows * ROW_BYTES) as f64 / 1e9, "GB");
        println!("volatile, {way}, {name}: {figures}");
    }
}
