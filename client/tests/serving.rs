//! A client and servers in one process. Pulls return the imported rows for any number of partitions
//! and shards, any socket and any kind of request. Errors are reported.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use lodestore_cache::{PolicyKind, PolicySpec};
use lodestore_client::{Client, ClientConfig, ClientError, RowSource};
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::hello::hello;
use lodestore_schema::limits::{IDS_PER_PULL_MAX, PREFIX_BYTES};
use lodestore_schema::request::PullKind;
use lodestore_schema::{FailureCode, Prefix, Reply, Request, RequestBody, WireVersions};
use lodestore_server::{Server, ServerConfig, ServerError};
use testing::features::{feature_graph, row_of, shuffled_ids};

const WIDTH: u32 = 24;
const ROW_BYTES: usize = WIDTH as usize * 4;

fn config(graph: &Path, n_shards: u16) -> ServerConfig {
    ServerConfig { listen: Some(([127, 0, 0, 1], 0).into()), n_shards, ..ServerConfig::new(graph) }
}

fn start(config: &ServerConfig) -> (Server, String) {
    let server = Server::start(config).expect("the server starts");
    let address = server.address().expect("the configuration has a TCP address").to_string();
    (server, address)
}

fn connect<A: AsRef<str>>(addresses: &[A]) -> Client {
    let config = ClientConfig { deadline: Duration::from_secs(10), ..ClientConfig::default() };
    Client::connect(addresses, config).expect("connected")
}

fn assert_rows(ids: &[NodeId], rows: &[u8]) {
    assert_eq!(rows.len(), ids.len() * ROW_BYTES);
    for (row, &id) in rows.chunks_exact(ROW_BYTES).zip(ids) {
        assert!(row == row_of(id, WIDTH), "row of node {id}");
    }
}

fn pull(client: &Client, ids: &[NodeId]) -> Result<Vec<u8>, ClientError> {
    let mut out = vec![0xEE; ids.len() * ROW_BYTES];
    client.sync_pull("feat", ids, &mut out)?;
    Ok(out)
}

/// Returns all nodes in random order, some of them twice.
fn all_ids(n_nodes: u32) -> Vec<NodeId> {
    let mut ids = shuffled_ids(n_nodes, n_nodes as usize);
    ids.extend_from_within(..ids.len().min(100));
    ids
}

#[test]
fn every_row_is_pulled_for_any_layout() {
    const N_NODES: u32 = 5003;
    for n_parts in [1, 2, 7] {
        let dir = tempfile::tempdir().unwrap();
        let graph = feature_graph(dir.path(), N_NODES, WIDTH, n_parts);
        let ids = all_ids(N_NODES);
        for n_shards in [1, 2] {
            for tier_bytes in [0, 64 << 10, 1 << 30] {
                let (server, address) =
                    start(&ServerConfig { tier_bytes, ..config(&graph, n_shards) });
                let client = connect(&[&address]);
                // The first pull reads from disk, the second also from the tier.
                for _ in 0..2 {
                    assert_rows(&ids, &pull(&client, &ids).unwrap());
                }
                let mut out = vec![0; ids.len() * ROW_BYTES];
                let stats = client.vector_pull("feat", &ids, &mut out).unwrap();
                assert_rows(&ids, &out);
                assert_eq!((stats.rows, stats.bytes), (ids.len() as u64, out.len() as u64));
                let forwarded: u64 = server.stats().iter().map(|s| s.forwarded_rows).sum();
                assert_eq!(forwarded, 0, "a shard-aware client asks the owner");
                server.stop().unwrap();
            }
        }
    }
}

#[test]
fn every_policy_serves_right_rows_from_a_tier_smaller_than_a_batch() {
    const N_NODES: u32 = 5003;
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, WIDTH, 2);
    let ids = all_ids(N_NODES);
    for policy in PolicyKind::ALL {
        let settings = ServerConfig { policy, tier_bytes: 64 << 10, ..config(&graph, 2) };
        if PolicySpec::try_from(policy).is_err() || policy == PolicyKind::Unbounded {
            let message = Server::start(&settings).err().unwrap().to_string();
            assert!(message.contains(policy.name()) && message.contains("s3-fifo"), "{message}");
            continue;
        }
        let (server, address) = start(&settings);
        let client = connect(&[&address]);
        for _ in 0..3 {
            assert_rows(&ids, &pull(&client, &ids).unwrap());
            assert_rows(&ids[..50], &pull(&client, &ids[..50]).unwrap());
        }
        let hits: u64 = server.stats().iter().map(|shard| shard.tier_hits).sum();
        assert_eq!(hits > 0, policy != PolicyKind::None, "{policy}");
        server.stop().unwrap();
    }
}

#[test]
fn partitions_on_two_servers_look_like_one_graph() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 3000, WIDTH, 3);
    let parts = |parts: &[u16]| ServerConfig {
        parts: parts.iter().copied().map(PartId).collect(),
        ..config(&graph, 2)
    };
    let (first, first_address) = start(&parts(&[0, 2]));
    let (second, second_address) = start(&parts(&[1]));
    let client = connect(&[&first_address, &second_address]);
    let ids = all_ids(3000);
    assert_rows(&ids, &pull(&client, &ids).unwrap());
    let half = connect(&[&first_address]);
    assert!(matches!(pull(&half, &ids), Err(ClientError::NoReplica { part: PartId(1) })));
    first.stop().unwrap();
    second.stop().unwrap();
}

/// Checks that the rows of every third node come to every second row of the output, alone.
fn check_places(client: &Client, n_nodes: u32) {
    const OTHER: u8 = 0xEE;
    let ids: Vec<NodeId> = shuffled_ids(n_nodes, n_nodes as usize / 3);
    let at: Vec<u32> = (0..ids.len() as u32).map(|i| 2 * i + 1).collect();
    let mut out = vec![OTHER; (2 * ids.len() + 2) * ROW_BYTES];
    let mut n_calls = 0;
    let mut work = || n_calls += 1;
    let stats = client.pull_at("feat", &ids, &at, &mut out, PullKind::Sync, &mut work).unwrap();
    let n_bytes = (ids.len() * ROW_BYTES) as u64;
    assert_eq!((stats.rows, stats.bytes, n_calls), (ids.len() as u64, n_bytes, 1));
    for (place, row) in out.chunks_exact(ROW_BYTES).enumerate() {
        match at.binary_search(&(place as u32)) {
            Ok(i) => assert!(row == row_of(ids[i], WIDTH), "row of node {}", ids[i]),
            Err(_) => assert!(row.iter().all(|&byte| byte == OTHER), "row {place} was written"),
        }
    }
    let none = client.pull_at("feat", &[], &[], &mut out, PullKind::Sync, &mut || ()).unwrap();
    assert_eq!((none.rows, none.requests), (0, 0));
}

#[test]
fn rows_are_received_at_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 3000, WIDTH, 3);
    let of_parts = |parts: &[u16]| ServerConfig {
        parts: parts.iter().copied().map(PartId).collect(),
        tier_bytes: 1 << 20,
        ..config(&graph, 2)
    };
    let (first, first_address) = start(&of_parts(&[0, 2]));
    let unix = dir.path().join("lode.sock");
    let second = ServerConfig { listen: None, unix: Some(unix.clone()), ..of_parts(&[1]) };
    let second = Server::start(&second).unwrap();
    let client = connect(&[first_address, format!("unix:{}", unix.display())]);
    // The first pull reads from disk, the second from the tier.
    for _ in 0..2 {
        check_places(&client, 3000);
    }
    first.stop().unwrap();
    second.stop().unwrap();
}

#[test]
#[should_panic(expected = "positions ascend")]
fn places_that_do_not_ascend_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 10, WIDTH, 1);
    let (_server, address) = start(&config(&graph, 1));
    let mut out = [0; 6 * ROW_BYTES];
    let ids = [NodeId(1), NodeId(2), NodeId(3)];
    let client = connect(&[&address]);
    let _ = client.pull_at("feat", &ids, &[3, 3, 5], &mut out, PullKind::Sync, &mut || ());
}

#[test]
fn unix_sockets_serve_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 1000, WIDTH, 2);
    let path = dir.path().join("lode.sock");
    let config = ServerConfig { listen: None, unix: Some(path.clone()), ..config(&graph, 2) };
    let server = Server::start(&config).unwrap();
    assert!(matches!(Server::start(&config), Err(ServerError::Listen { .. })));
    let client = connect(&[format!("unix:{}", path.display())]);
    let ids = all_ids(1000);
    assert_rows(&ids, &pull(&client, &ids).unwrap());
    server.stop().unwrap();
    assert!(!path.exists(), "the server removes its socket file");
    // A server replaces the socket file that a killed server has left behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    Server::start(&config).unwrap().stop().unwrap();
    std::fs::write(&path, "a file").unwrap();
    assert!(matches!(Server::start(&config), Err(ServerError::SocketPath { .. })));
}

/// A client that ignores shards and sends every request to the common port.
struct PlainClient(TcpStream);

impl PlainClient {
    fn connect(address: &str) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(&hello()).unwrap();
        let mut theirs = [0; 16];
        stream.read_exact(&mut theirs).unwrap();
        assert_eq!(Some(theirs), WireVersions::SPOKEN.answer(&hello()).0);
        Self(stream)
    }

    fn ask(&mut self, body: RequestBody, ids: &[NodeId]) {
        let mut frame = Vec::new();
        Request::new(body).append_to(ids.len() * 4, &mut frame);
        frame.extend_from_slice(bytemuck::cast_slice(ids));
        self.0.write_all(&frame).unwrap();
    }

    fn answer(&mut self) -> std::io::Result<(Reply, Vec<u8>)> {
        let mut prefix = [0; PREFIX_BYTES];
        self.0.read_exact(&mut prefix)?;
        let prefix = Prefix::of_reply(prefix).unwrap();
        let mut head = vec![0; prefix.head_bytes];
        self.0.read_exact(&mut head)?;
        let mut body = vec![0; prefix.body_bytes];
        self.0.read_exact(&mut body)?;
        Ok((Reply::decode(&head).unwrap(), body))
    }
}

const SYNC_PULL: RequestBody = RequestBody::Pull { tensor: 0, kind: PullKind::Sync };

#[test]
fn a_client_without_shards_is_served_by_forwarding() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 4000, WIDTH, 2);
    let (server, address) = start(&config(&graph, 2));
    let mut client = PlainClient::connect(&address);
    let ids = all_ids(4000);
    client.ask(SYNC_PULL, &ids);
    let mut rows = Vec::new();
    while rows.len() < ids.len() * ROW_BYTES {
        let (reply, body) = client.answer().unwrap();
        let first_row = u32::try_from(rows.len() / ROW_BYTES).unwrap();
        let n_rows = u32::try_from(body.len() / ROW_BYTES).unwrap();
        let is_so = matches!(reply, Reply::Rows { first_row: first, n_rows: n, .. }
            if (first, n) == (first_row, n_rows));
        assert!(is_so, "{reply:?}");
        rows.extend(body);
    }
    assert_rows(&ids, &rows);
    assert!(server.stats().iter().map(|s| s.forwarded_rows).sum::<u64>() > 1000);
    server.stop().unwrap();
}

#[test]
fn a_pull_of_no_rows_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 10, WIDTH, 2);
    let (server, address) = start(&config(&graph, 2));
    assert_eq!(pull(&connect(&[&address]), &[]).unwrap(), [0u8; 0]);
    let mut plain = PlainClient::connect(&address);
    plain.ask(SYNC_PULL, &[]);
    let (reply, body) = plain.answer().unwrap();
    assert!(matches!(reply, Reply::Rows { first_row: 0, n_rows: 0, .. }) && body.is_empty());
    server.stop().unwrap();
}

#[test]
fn graphs_of_zero_and_one_nodes_are_served() {
    for n_nodes in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        let graph = feature_graph(dir.path(), n_nodes, WIDTH, 2);
        let (server, address) = start(&config(&graph, 2));
        let client = connect(&[&address]);
        let ids: Vec<NodeId> = (0..n_nodes).map(NodeId).collect();
        assert_rows(&ids, &pull(&client, &ids).unwrap());
        let past = pull(&client, &[NodeId(n_nodes)]);
        assert!(matches!(past, Err(ClientError::UnknownNode { .. })), "{past:?}");
        server.stop().unwrap();
    }
}

#[test]
fn pulls_of_more_ids_than_fit_one_request_are_split() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 1000, 1, 1);
    let (server, address) = start(&config(&graph, 1));
    let client = connect(&[&address]);
    let ids: Vec<NodeId> =
        (0..IDS_PER_PULL_MAX as u32 + 5).map(|i| NodeId(i.wrapping_mul(7919) % 1000)).collect();
    let mut out = vec![0; ids.len() * 4];
    let stats = client.vector_pull("feat", &ids, &mut out).unwrap();
    assert_eq!(stats.requests, 2);
    for (row, &id) in out.chunks_exact(4).zip(&ids) {
        assert!(row == row_of(id, 1));
    }
    server.stop().unwrap();
}

#[test]
fn an_invalid_request_is_refused_and_the_connection_stays_usable() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 100, WIDTH, 2);
    let only_first = ServerConfig { parts: vec![PartId(0)], ..config(&graph, 1) };
    let (server, address) = start(&only_first);
    let mut client = PlainClient::connect(&address);
    let refused = |client: &mut PlainClient, body: RequestBody, ids: &[u32]| {
        let ids: Vec<NodeId> = ids.iter().copied().map(NodeId).collect();
        client.ask(body, &ids);
        match client.answer().unwrap().0 {
            Reply::Failure(failure) => failure,
            other => panic!("{other:?}"),
        }
    };
    let no_node = refused(&mut client, SYNC_PULL, &[1, 100]);
    assert_eq!(no_node.code, FailureCode::NotFound);
    assert!(no_node.message.contains("node 100 does not exist"), "{no_node}");
    let elsewhere = refused(&mut client, SYNC_PULL, &[99]);
    assert!(elsewhere.message.contains("partition 1"), "{elsewhere}");
    let no_tensor = RequestBody::Pull { tensor: 9, kind: PullKind::Vector };
    assert_eq!(refused(&mut client, no_tensor, &[1]).code, FailureCode::NotFound);
    client.ask(SYNC_PULL, &[NodeId(3)]);
    let (_, row) = client.answer().unwrap();
    assert_rows(&[NodeId(3)], &row);
    server.stop().unwrap();
}

#[test]
fn an_invalid_frame_closes_only_its_connection() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 100, WIDTH, 1);
    let (server, address) = start(&config(&graph, 1));
    let closed = |mut stream: TcpStream| {
        let mut rest = Vec::new();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The server may reset the connection or close it.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.len() <= 16, "nothing follows the hello");
    };
    let mut http = TcpStream::connect(&address).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    closed(http);
    // A head and a body above their limits, then a garbage head of valid length.
    for prefix in [[0xff; 8], [8, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f], [8, 0, 0, 0, 0, 0, 0, 0]] {
        let mut client = PlainClient::connect(&address);
        client.0.write_all(&prefix).unwrap();
        client.0.write_all(&[0xff; 8]).unwrap();
        closed(client.0);
    }
    let ids = all_ids(100);
    assert_rows(&ids, &pull(&connect(&[&address]), &ids).unwrap());
    server.stop().unwrap();
}

#[test]
fn a_peer_with_another_protocol_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let error = Client::connect(&[&address], ClientConfig::default()).err().unwrap();
    assert!(error.to_string().contains("HTTP/1.1"), "{error}");
    peer.join().unwrap();
}

#[test]
fn corruption_on_disk_is_reported_with_file_and_page_and_affects_no_other_row() {
    let dir = tempfile::tempdir().unwrap();
    // 96-byte rows: page 1 holds rows 43 to 85.
    let graph = feature_graph(dir.path(), 1000, WIDTH, 1);
    let segment = graph.join("part-000/feat.v1.seg");
    let (server, address) = start(&ServerConfig { tier_bytes: 0, ..config(&graph, 1) });
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[4096 + 4096 + 100] ^= 1;
    std::fs::write(&segment, &bytes).unwrap();
    let client = connect(&[&address]);
    let error = pull(&client, &[NodeId(50)]).unwrap_err();
    let ClientError::Refused { failure, .. } = &error else { panic!("{error:?}") };
    assert_eq!(failure.code, FailureCode::Damaged);
    let message = error.to_string();
    assert!(message.contains("feat.v1.seg") && message.contains("page 1"), "{message}");
    let sound = [NodeId(0), NodeId(500)];
    assert_rows(&sound, &pull(&client, &sound).unwrap());
    server.stop().unwrap();
}

#[test]
fn a_port_in_use_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 10, WIDTH, 1);
    let (server, address) = start(&config(&graph, 1));
    let second = ServerConfig { listen: Some(address.parse().unwrap()), ..config(&graph, 1) };
    let error = Server::start(&second).err().unwrap();
    assert!(error.to_string().contains(&address), "{error}");
    let open = ServerConfig { listen: Some(([0, 0, 0, 0], 0).into()), ..config(&graph, 1) };
    assert!(matches!(Server::start(&open), Err(ServerError::Exposed { .. })));
    server.stop().unwrap();
}

/// A service manager restarts a server after some seconds. More requests fail in this time than a
/// pull has attempts.
#[test]
fn pulls_and_puts_wait_for_a_restarting_server_within_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 1000, WIDTH, 1);
    let (server, address) =
        start(&ServerConfig { writable: true, insecure: true, ..config(&graph, 2) });
    let settings =
        ClientConfig { deadline: Duration::from_secs(60), attempts: 2, ..ClientConfig::default() };
    let client = Client::connect(&[&address], settings).unwrap();
    let ids = all_ids(1000);
    assert_rows(&ids, &pull(&client, &ids).unwrap());
    server.stop().unwrap();
    let (server, rows) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| pull(&client, &ids).unwrap());
        let writer = scope
            .spawn(|| client.put_rows("feat", &[NodeId(1)], &row_of(NodeId(1), WIDTH)).unwrap());
        std::thread::sleep(Duration::from_secs(2));
        assert!(!reader.is_finished() && !writer.is_finished(), "both wait");
        let again = ServerConfig {
            listen: Some(address.parse().unwrap()),
            writable: true,
            insecure: true,
            ..config(&graph, 2)
        };
        let (server, _) = start(&again);
        writer.join().unwrap();
        (server, reader.join().unwrap())
    });
    assert_rows(&ids, &rows);
    server.stop().unwrap();
}

#[test]
fn an_unreachable_server_is_named_as_configured_with_the_number_of_tries() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 1000, WIDTH, 1);
    let (server, address) = start(&config(&graph, 2));
    let config = ClientConfig { deadline: Duration::from_secs(1), ..ClientConfig::default() };
    let client = Client::connect(&[&address], config).unwrap();
    let ids = all_ids(1000);
    assert_rows(&ids, &pull(&client, &ids).unwrap());
    server.stop().unwrap();
    let error = pull(&client, &ids).unwrap_err();
    let words = error.to_string();
    match error {
        ClientError::Away { server, shard: Some(_), tries: 2.., .. } => {
            assert_eq!(server.to_string(), address);
        }
        other => panic!("{other:?}"),
    }
    assert!(
        words.contains(&format!("{address}, shard ")) && words.contains(" times in "),
        "{words}"
    );
}

#[test]
fn another_server_with_the_partition_takes_over() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 1000, WIDTH, 2);
    let (first, first_address) = start(&config(&graph, 2));
    let (second, second_address) = start(&config(&graph, 1));
    let client = connect(&[&first_address, &second_address]);
    let ids = all_ids(1000);
    assert_rows(&ids, &pull(&client, &ids).unwrap());
    first.stop().unwrap();
    assert_rows(&ids, &pull(&client, &ids).unwrap());
    second.stop().unwrap();
}

#[test]
fn many_threads_share_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 5000, WIDTH, 3);
    let (server, address) = start(&ServerConfig { tier_bytes: 100 << 10, ..config(&graph, 2) });
    let client = connect(&[&address]);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let client = &client;
            scope.spawn(move || {
                let ids = shuffled_ids(5000, 5000);
                for ids in ids.rchunks(300 + 100 * thread) {
                    assert_rows(ids, &pull(client, ids).unwrap());
                }
            });
        }
    });
    assert!(client.stats().unwrap()[0].1.shards.iter().all(|shard| shard.failures == 0));
    assert_eq!(client.book().n_parts(), 3);
    server.stop().unwrap();
}

#[test]
fn another_graph_at_the_same_address_is_refused() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [graph, other] = dirs.each_ref().map(|dir| feature_graph(dir.path(), 1000, WIDTH, 1));
    let (server, address) = start(&config(&graph, 1));
    let client = connect(&[&address]);
    server.stop().unwrap();
    let again = ServerConfig { listen: Some(address.parse().unwrap()), ..config(&other, 1) };
    let (server, _) = start(&again);
    let error = pull(&client, &[NodeId(1)]).unwrap_err();
    assert!(matches!(error, ClientError::GraphsDiffer { .. }), "{error}");
    server.stop().unwrap();
}

#[test]
fn a_server_restarted_with_other_shards_and_ports_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 1000, WIDTH, 1);
    let (server, address) = start(&config(&graph, 2));
    let client = connect(&[&address]);
    let ids = all_ids(1000);
    assert_rows(&ids, &pull(&client, &ids).unwrap());
    server.stop().unwrap();
    let again = ServerConfig { listen: Some(address.parse().unwrap()), ..config(&graph, 1) };
    let (server, _) = start(&again);
    // The nodes alternate between stripes: merged without sorting, the shards' positions would look
    // contiguous.
    let ids: Vec<NodeId> = [0, 700, 1, 701].map(NodeId).into();
    assert_rows(&ids, &pull(&client, &ids).unwrap());
    server.stop().unwrap();
}
