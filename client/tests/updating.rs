//! Puts, commits and compactions through servers. Every pull that begins after the commit of a put
//! was acknowledged sees its row, and no earlier pull does, whatever the layout.

mod concurrent;
mod cuts;
mod followers;
mod frames;
mod halfway;
mod stopping;
mod tensors;

use std::path::Path;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig, ClientError, RowSource};
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::request::PullKind;
use lodestore_server::{Server, ServerConfig, ServerError};
use lodestore_store::StoreError;
use lodestore_store::update::KeepRule;
use testing::features::{feature_graph, row_of, shuffled_ids};
use testing::wire::PlainConnection;

const WIDTH: u32 = 24;
const ROW_BYTES: usize = WIDTH as usize * 4;

fn config(graph: &Path, n_shards: u16) -> ServerConfig {
    ServerConfig {
        listen: Some(([127, 0, 0, 1], 0).into()),
        n_shards,
        writable: true,
        insecure: true,
        keep: KeepRule::NEWEST,
        ..ServerConfig::new(graph)
    }
}

fn start(config: &ServerConfig) -> (Server, String) {
    let server = Server::start(config).expect("the server starts");
    let address = server.address().expect("TCP was asked for").to_string();
    (server, address)
}

fn connect<A: AsRef<str>>(addresses: &[A]) -> Client {
    let config = ClientConfig { deadline: Duration::from_secs(20), ..ClientConfig::default() };
    Client::connect(addresses, config).expect("connected")
}

fn pull(client: &Client, ids: &[NodeId]) -> Result<Vec<u8>, ClientError> {
    let mut out = vec![0xEE; ids.len() * ROW_BYTES];
    client.sync_pull("feat", ids, &mut out)?;
    Ok(out)
}

/// Returns the row of `node` that was put as its `turn`th, from 1; every part of it encodes both.
fn put_row(node: NodeId, turn: u32) -> Vec<u8> {
    [node.0, turn].repeat(WIDTH as usize / 2).iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn put_rows(ids: &[NodeId], turn: u32) -> Vec<u8> {
    ids.iter().flat_map(|&id| put_row(id, turn)).collect()
}

/// Returns which turn's row this is, 0 for the imported one; panics for a row of another node or a
/// mix.
fn turn_of(node: NodeId, row: &[u8]) -> u32 {
    if row == row_of(node, WIDTH) {
        return 0;
    }
    let turn = u32::from_le_bytes(row[4..8].try_into().unwrap());
    assert!(row == put_row(node, turn), "node {node}: neither the old row nor a new one");
    turn
}

/// The expected row of each node: the turn of its last committed put.
struct Expected {
    turns: Vec<u32>,
}

impl Expected {
    fn new(n_nodes: u32) -> Self {
        Self { turns: vec![0; n_nodes as usize] }
    }

    fn put(&mut self, ids: &[NodeId], turn: u32) {
        ids.iter().for_each(|id| self.turns[id.index()] = turn);
    }

    fn check_rows(&self, ids: &[NodeId], rows: &[u8], when: &str) {
        assert_eq!(rows.len(), ids.len() * ROW_BYTES);
        for (row, &id) in rows.chunks_exact(ROW_BYTES).zip(ids) {
            assert_eq!(turn_of(id, row), self.turns[id.index()], "node {id} {when}");
        }
    }

    /// Checks rows through clients that know the shards and one that does not. It does so twice,
    /// since the first time fills the tiers.
    fn check(&self, addresses: &[&str], when: &str) {
        let ids = shuffled_ids(self.turns.len() as u32, self.turns.len());
        let client = connect(addresses);
        for _ in 0..2 {
            self.check_rows(&ids, &pull(&client, &ids).unwrap(), when);
        }
        for address in addresses {
            let mut plain = PlainConnection::open(address);
            let parts = plain.describe().parts;
            let here = |id: &NodeId| parts.contains(&client.book().part_of(*id).unwrap().0);
            let ids: Vec<NodeId> = ids.iter().copied().filter(here).collect();
            let rows = plain.pull(0, PullKind::Sync, &ids, ROW_BYTES);
            self.check_rows(&ids, &rows, when);
        }
    }
}

fn compact(client: &Client) {
    let runs = client.compact().unwrap();
    client.wait_for_compactions(&runs, &mut |_, _| {}).unwrap();
}

#[test]
fn what_was_put_is_what_is_pulled_whatever_the_layout() {
    const N_NODES: u32 = 3001;
    for (n_parts, n_shards, tier_bytes) in
        [(1, 1, 1 << 30), (1, 3, 0), (3, 1, 64 << 10), (3, 2, 1 << 30), (7, 3, 1 << 30)]
    {
        let dir = tempfile::tempdir().unwrap();
        let graph = feature_graph(dir.path(), N_NODES, WIDTH, n_parts);
        let config = ServerConfig { tier_bytes, ..config(&graph, n_shards) };
        let (server, address) = start(&config);
        let client = connect(&[&address]);
        let mut expected = Expected::new(N_NODES);
        expected.check(&[&address], "before any put");

        let some = shuffled_ids(N_NODES, 700);
        let stats = client.put_rows("feat", &some, &put_rows(&some, 1)).unwrap();
        assert_eq!((stats.rows, stats.bytes, stats.version), (700, 700 * ROW_BYTES as u64, 2));
        assert_eq!(stats.requests, u64::from(n_parts));
        expected.check(&[&address], "put, and not committed");

        // Single rows, one of them twice in a put: the last counts.
        let one = [NodeId(17), NodeId(N_NODES - 1), NodeId(17)];
        let rows = [put_row(one[0], 8), put_row(one[1], 2), put_row(one[2], 2)].concat();
        client.put_rows("feat", &one, &rows).unwrap();
        expected.check(&[&address], "put over a put, and not committed");

        assert_eq!(client.commit().unwrap(), 2);
        expected.put(&some, 1);
        expected.put(&one, 2);
        expected.check(&[&address], "after a commit");
        client.put_rows("feat", &some[..5], &put_rows(&some[..5], 3)).unwrap();
        compact(&client);
        expected.check(&[&address], "after a compaction that leaves pending rows");
        let (_, stats) = client.stats().unwrap().remove(0);
        assert_eq!((stats.updates.version, stats.updates.committed_rows), (2, 0));
        assert_eq!(stats.updates.pending_rows, 5);
        assert_eq!(client.commit().unwrap(), 3);
        expected.put(&some[..5], 3);
        expected.check(&[&address], "after another commit");
        compact(&client);
        expected.check(&[&address], "after another compaction");
        server.stop().unwrap();

        // Versions that were the newest are kept for a while; a server that starts keeps none.
        let (server, address) = start(&config);
        expected.check(&[&address], "after a restart");
        let files = segment_files(&graph, "feat");
        assert_eq!(files.len(), usize::from(n_parts), "old files go: {files:?}");
        server.stop().unwrap();
        let (server, address) = start(&ServerConfig { writable: false, ..config.clone() });
        expected.check(&[&address], "read only");
        server.stop().unwrap();
    }
}

fn segment_files(graph: &Path, tensor: &str) -> Vec<String> {
    let parts = graph.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let parts = parts.filter(|path| path.is_dir());
    let names = parts.flat_map(|part| {
        part.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap())
    });
    names.filter(|name| name.starts_with(tensor) && name.ends_with(".seg")).collect()
}

#[test]
fn what_was_committed_before_is_served_by_a_server_that_takes_no_puts_and_the_rest_waits() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 1000, WIDTH, 2);
    let (server, address) = start(&config(&graph, 2));
    let client = connect(&[&address]);
    let mut expected = Expected::new(1000);
    for turn in 1..4 {
        let ids = shuffled_ids(1000, 100 * turn as usize);
        client.put_rows("feat", &ids, &put_rows(&ids, turn)).unwrap();
        if turn < 3 {
            client.commit().unwrap();
            expected.put(&ids, turn);
        }
    }
    server.stop().unwrap();
    let (server, address) = start(&ServerConfig { writable: false, ..config(&graph, 2) });
    expected.check(&[&address], "committed, and pending rows beside");
    let client = connect(&[&address]);
    let error = client.put_rows("feat", &[NodeId(1)], &put_row(NodeId(1), 9)).unwrap_err();
    assert!(matches!(error, ClientError::NoWriter { .. }), "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    assert!(matches!(client.commit(), Err(ClientError::NoWriter { .. })));
    assert!(matches!(client.compact(), Err(ClientError::NoWriter { .. })));
    server.stop().unwrap();

    let (server, address) = start(&config(&graph, 2));
    expected.check(&[&address], "still pending");
    assert_eq!(connect(&[&address]).commit().unwrap(), 4);
    expected.put(&shuffled_ids(1000, 300), 3);
    expected.check(&[&address], "committed by another server than took the put");
    server.stop().unwrap();
}

#[test]
fn unix_sockets_take_puts_and_long_puts_travel_in_pieces() {
    const N_NODES: u32 = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, 2);
    let path = dir.path().join("lode.sock");
    let config = ServerConfig { listen: None, unix: Some(path.clone()), ..config(&graph, 2) };
    let server = Server::start(&config).unwrap();
    let client = connect(&[format!("unix:{}", path.display())]);
    let ids = shuffled_ids(N_NODES, N_NODES as usize);
    let stats = client.put_rows("feat", &ids, &put_rows(&ids, 1)).unwrap();
    assert_eq!(stats.requests, 4, "two pieces of at most 4 MiB for each partition");
    client.commit().unwrap();
    let rows = pull(&client, &ids).unwrap();
    for (row, &id) in rows.chunks_exact(ROW_BYTES).zip(&ids) {
        assert_eq!(turn_of(id, row), 1);
    }
    server.stop().unwrap();
}

#[test]
fn two_servers_of_one_graph_are_written_and_committed_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 2000, WIDTH, 3);
    let parts = |parts: &[u16], n_shards| ServerConfig {
        parts: parts.iter().copied().map(PartId).collect(),
        ..config(&graph, n_shards)
    };
    let (first, first_address) = start(&parts(&[0, 2], 2));
    let (second, second_address) = start(&parts(&[1], 1));
    // The first is ahead by a version.
    assert_eq!(connect(&[&first_address]).commit().unwrap(), 2);
    let addresses = [first_address.as_str(), second_address.as_str()];
    let client = connect(&addresses);
    let mut expected = Expected::new(2000);
    let ids = shuffled_ids(2000, 900);
    client.put_rows("feat", &ids, &put_rows(&ids, 1)).unwrap();
    expected.check(&addresses, "put on both");
    assert_eq!(client.commit().unwrap(), 3);
    expected.put(&ids, 1);
    expected.check(&addresses, "committed on both");
    for (address, stats) in client.stats().unwrap() {
        assert_eq!((stats.updates.version, stats.updates.pending_rows), (3, 0), "{address}");
    }
    compact(&client);
    expected.check(&addresses, "compacted on both");
    // Nodes of the second alone cannot be put through the first.
    let error = connect(&[&first_address]).put_rows("feat", &ids, &put_rows(&ids, 2)).unwrap_err();
    assert!(matches!(error, ClientError::NoReplica { part: PartId(1) }), "{error}");
    client.commit().unwrap();
    expected.check(&addresses, "and nothing of that was put");
    first.stop().unwrap();
    second.stop().unwrap();
}

#[test]
fn one_server_writes_a_partition_and_others_may_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 100, WIDTH, 2);
    let (server, _) = start(&config(&graph, 1));
    let error = Server::start(&config(&graph, 1)).err().unwrap();
    assert!(matches!(error, ServerError::Store(StoreError::Locked { .. })), "{error}");
    let (reader, address) = start(&ServerConfig { writable: false, ..config(&graph, 1) });
    Expected::new(100).check(&[&address], "beside a writer");
    reader.stop().unwrap();
    server.stop().unwrap();
    // The lock goes with the server.
    start(&config(&graph, 1)).0.stop().unwrap();
}

#[test]
fn a_commit_compacts_by_itself_where_deltas_have_many_rows() {
    const N_NODES: u32 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, 1);
    let (server, address) = start(&config(&graph, 2));
    let client = connect(&[&address]);
    let mut expected = Expected::new(N_NODES);
    let few = shuffled_ids(N_NODES, 1000);
    client.put_rows("feat", &few, &put_rows(&few, 1)).unwrap();
    client.commit().unwrap();
    assert_eq!(client.stats().unwrap()[0].1.updates.runs_asked, 0, "1 row in 20 may stay");
    let many = shuffled_ids(N_NODES, 8000);
    client.put_rows("feat", &many, &put_rows(&many, 2)).unwrap();
    expected.put(&many, 2);
    client.commit().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let updates = client.stats().unwrap().remove(0).1.updates;
        assert_eq!(updates.runs_asked, 1);
        if updates.runs_ended == 1 {
            assert_eq!((updates.run_failure.as_str(), updates.committed_rows), ("", 0));
            break;
        }
        assert!(Instant::now() < end, "{updates:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    expected.check(&[&address], "compacted");
    server.stop().unwrap();
}

#[test]
fn a_put_of_nothing_is_nothing_and_faults_are_reported_before_anything_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 100, WIDTH, 2);
    let (server, address) = start(&config(&graph, 2));
    let client = connect(&[&address]);
    assert_eq!(client.put_rows("feat", &[], &[]).unwrap().requests, 0);
    let row = put_row(NodeId(3), 1);
    let error = client.put_rows("feet", &[NodeId(3)], &row).unwrap_err();
    assert!(matches!(error, ClientError::UnknownTensor { .. }), "{error}");
    for rows in [&row[..1], &[], &[&row[..], &row[..]].concat()] {
        let error = client.put_rows("feat", &[NodeId(3)], rows).unwrap_err();
        assert!(matches!(error, ClientError::BufferSize { .. }), "{error}");
    }
    let ids = [NodeId(3), NodeId(100)];
    let error = client.put_rows("feat", &ids, &put_rows(&ids, 1)).unwrap_err();
    assert!(matches!(error, ClientError::UnknownNode { node: NodeId(100), .. }), "{error}");
    Expected::new(100).check(&[&address], "nothing was put");
    assert_eq!(client.stats().unwrap()[0].1.updates.pending_rows, 0);
    // A commit of nothing is a version all the same, and keeps counting.
    assert_eq!((client.commit().unwrap(), client.commit().unwrap()), (2, 3));
    Expected::new(100).check(&[&address], "nothing was committed");
    compact(&client);
    server.stop().unwrap();
}
