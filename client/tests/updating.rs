//! Puts, commits and compactions through servers, for several layouts. A put row is visible to
//! every pull that begins after the acknowledgement of its commit, and to no pull before the
//! commit.

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
    let address = server.address().expect("the configuration has a TCP address").to_string();
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

/// Returns the row of `node` for a turn, from 1. Every 8 bytes encode both.
fn put_row(node: NodeId, turn: u32) -> Vec<u8> {
    [node.0, turn].repeat(WIDTH as usize / 2).iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn put_rows(ids: &[NodeId], turn: u32) -> Vec<u8> {
    ids.iter().flat_map(|&id| put_row(id, turn)).collect()
}

/// Returns the turn of a row, 0 for the imported row. Panics for a torn row, or the row of another
/// node.
fn turn_of(node: NodeId, row: &[u8]) -> u32 {
    if row == row_of(node, WIDTH) {
        return 0;
    }
    let turn = u32::from_le_bytes(row[4..8].try_into().unwrap());
    assert!(
        row == put_row(node, turn),
        "node {node}: neither its imported row nor one of its put rows"
    );
    turn
}

/// The expected row of each node, as the turn of its last committed put.
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

    /// Checks all rows through a client that knows the shards, twice because the first pull fills
    /// the tiers. Then checks them through a connection to each server that ignores the shards.
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
fn committed_puts_are_pulled_for_any_layout() {
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
        expected.check(&[&address], "put, but not committed");

        // Single rows. A put has one of them twice; the last copy wins.
        let one = [NodeId(17), NodeId(N_NODES - 1), NodeId(17)];
        let rows = [put_row(one[0], 8), put_row(one[1], 2), put_row(one[2], 2)].concat();
        client.put_rows("feat", &one, &rows).unwrap();
        expected.check(&[&address], "put twice, but not committed");

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

        // A running server keeps earlier versions for a while; a starting server removes them.
        let (server, address) = start(&config);
        expected.check(&[&address], "after a restart");
        let files = segment_files(&graph, "feat");
        assert_eq!(files.len(), usize::from(n_parts), "old files are removed: {files:?}");
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
fn a_read_only_server_serves_committed_rows_and_keeps_pending_ones() {
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
    expected.check(&[&address], "with pending rows");
    let client = connect(&[&address]);
    let error = client.put_rows("feat", &[NodeId(1)], &put_row(NodeId(1), 9)).unwrap_err();
    assert!(matches!(error, ClientError::NoWriter { .. }), "{error}");
    assert!(error.to_string().contains("start a writable server"), "{error}");
    assert!(matches!(client.commit(), Err(ClientError::NoWriter { .. })));
    assert!(matches!(client.compact(), Err(ClientError::NoWriter { .. })));
    server.stop().unwrap();

    let (server, address) = start(&config(&graph, 2));
    expected.check(&[&address], "still pending");
    assert_eq!(connect(&[&address]).commit().unwrap(), 4);
    expected.put(&shuffled_ids(1000, 300), 3);
    expected.check(&[&address], "put on one server, committed by the next");
    server.stop().unwrap();
}

#[test]
fn unix_sockets_accept_puts_and_long_puts_are_sent_in_pieces() {
    const N_NODES: u32 = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, 2);
    let path = dir.path().join("lode.sock");
    let config = ServerConfig { listen: None, unix: Some(path.clone()), ..config(&graph, 2) };
    let server = Server::start(&config).unwrap();
    let client = connect(&[format!("unix:{}", path.display())]);
    let ids = shuffled_ids(N_NODES, N_NODES as usize);
    let stats = client.put_rows("feat", &ids, &put_rows(&ids, 1)).unwrap();
    assert_eq!(stats.requests, 4, "two pieces of at most 4 MiB per partition");
    client.commit().unwrap();
    let rows = pull(&client, &ids).unwrap();
    for (row, &id) in rows.chunks_exact(ROW_BYTES).zip(&ids) {
        assert_eq!(turn_of(id, row), 1);
    }
    server.stop().unwrap();
}

#[test]
fn puts_and_commits_span_two_servers_of_one_graph() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 2000, WIDTH, 3);
    let parts = |parts: &[u16], n_shards| ServerConfig {
        parts: parts.iter().copied().map(PartId).collect(),
        ..config(&graph, n_shards)
    };
    let (first, first_address) = start(&parts(&[0, 2], 2));
    let (second, second_address) = start(&parts(&[1], 1));
    // The first server is ahead by one version.
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
    // A client of the first server cannot put rows of the second.
    let error = connect(&[&first_address]).put_rows("feat", &ids, &put_rows(&ids, 2)).unwrap_err();
    assert!(matches!(error, ClientError::NoReplica { part: PartId(1) }), "{error}");
    client.commit().unwrap();
    expected.check(&addresses, "after a put that failed");
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
    Expected::new(100).check(&[&address], "with a writer on the same folder");
    reader.stop().unwrap();
    server.stop().unwrap();
    // The server releases its lock when it stops.
    start(&config(&graph, 1)).0.stop().unwrap();
}

#[test]
fn a_commit_starts_a_compaction_once_deltas_have_many_rows() {
    const N_NODES: u32 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, 1);
    let (server, address) = start(&config(&graph, 2));
    let client = connect(&[&address]);
    let mut expected = Expected::new(N_NODES);
    let few = shuffled_ids(N_NODES, 1000);
    client.put_rows("feat", &few, &put_rows(&few, 1)).unwrap();
    client.commit().unwrap();
    assert_eq!(client.stats().unwrap()[0].1.updates.runs_asked, 0, "deltas may keep 1 row in 20");
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
fn an_empty_put_does_nothing_and_an_invalid_put_fails_before_anything_is_sent() {
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
    // A commit without pending rows still makes a new version.
    assert_eq!((client.commit().unwrap(), client.commit().unwrap()), (2, 3));
    Expected::new(100).check(&[&address], "nothing was committed");
    compact(&client);
    server.stop().unwrap();
}
