//! Volatile tensors on real servers: pulls return published rows with their stamps over every
//! transport, never torn and never older than required.

mod bad;
mod many;
mod publishers;

use std::path::Path;
use std::time::{Duration, Instant};

use lodestore_client::error::FailureCode;
use lodestore_client::source::TensorInfo;
use lodestore_client::volatile::{
    NO_STAMP, Stamp, StampWanted, VolatileInfo, VolatilePulled, VolatileSource,
};
use lodestore_client::{Client, ClientConfig, ClientError};
use lodestore_graph::{NodeId, PartId};
use lodestore_schema::limits::IDS_PER_PULL_MAX;
use lodestore_server::{Server, ServerConfig};
use lodestore_store::Dtype;
use testing::features::{feature_graph, shuffled_ids};

const N_NODES: u32 = 3000;
const WIDTH: u32 = 60;
const ROW_BYTES: usize = WIDTH as usize * 4;

fn config(graph: &Path, volatile: &[&str]) -> ServerConfig {
    ServerConfig {
        listen: Some(([127, 0, 0, 1], 0).into()),
        n_shards: 2,
        insecure: true,
        volatile: volatile.iter().map(|text| text.parse().unwrap()).collect(),
        ..ServerConfig::new(graph)
    }
}

fn start(config: &ServerConfig) -> (Server, String) {
    let server = Server::start(config).expect("the server starts");
    let address = server.address().expect("the configuration has a TCP address").to_string();
    (server, address)
}

fn connect<A: AsRef<str>>(addresses: &[A], deadline: Duration) -> Client {
    let config = ClientConfig { deadline, ..ClientConfig::default() };
    Client::connect(addresses, config).expect("connected")
}

/// Returns the row of a node as published with a stamp. Every byte depends on both, and the first
/// four are the stamp.
fn row_of(node: NodeId, stamp: Stamp) -> Vec<u8> {
    let mix = node.0.wrapping_mul(2_654_435_761) ^ stamp.wrapping_mul(40_503);
    let mut row: Vec<u8> = (0..ROW_BYTES as u32).map(|i| (mix >> (i % 17)) as u8).collect();
    row[..4].copy_from_slice(&stamp.to_le_bytes());
    row
}

fn rows_of(ids: &[NodeId], stamp: Stamp) -> Vec<u8> {
    ids.iter().flat_map(|&id| row_of(id, stamp)).collect()
}

fn pull(
    client: &Client,
    ids: &[NodeId],
    wanted: StampWanted,
) -> Result<(Vec<u8>, VolatilePulled), ClientError> {
    let mut out = vec![0xEE; ids.len() * ROW_BYTES];
    let pulled = client.pull_volatile("h1", ids, wanted, &mut out)?;
    Ok((out, pulled))
}

/// Checks each row against the row that was published with its stamp.
fn check(ids: &[NodeId], (rows, pulled): &(Vec<u8>, VolatilePulled), min_stamp: Stamp) {
    assert_eq!(pulled.stamps.len(), ids.len());
    for ((&id, row), &stamp) in ids.iter().zip(rows.chunks_exact(ROW_BYTES)).zip(&pulled.stamps) {
        if stamp == NO_STAMP {
            assert!(row.iter().all(|&byte| byte == 0), "missing rows are zeros");
        } else {
            assert!(stamp >= min_stamp, "node {id}: {stamp} is older than {min_stamp}");
            assert!(row == row_of(id, stamp), "node {id}: not the row of stamp {stamp}");
        }
    }
}

fn refused(error: &ClientError) -> Option<FailureCode> {
    match error {
        ClientError::Refused { failure, .. } => Some(failure.code),
        _ => None,
    }
}

/// Returns all nodes in random order, some of them twice.
fn all_ids() -> Vec<NodeId> {
    let mut ids = shuffled_ids(N_NODES, N_NODES as usize);
    ids.extend_from_within(..100);
    ids
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn published_rows_are_pulled_with_their_stamps_over_every_transport() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, 2, 3);
    let unix = dir.path().join("lode.sock");
    let config = ServerConfig { unix: Some(unix.clone()), ..config(&graph, &["h1:60xf32/500"]) };
    let (server, tcp) = start(&config);
    let unix = format!("unix:{}", unix.display());
    let ids = all_ids();
    for (turn, (address, shared_memory)) in (1..).zip([(&tcp, true), (&unix, false), (&unix, true)])
    {
        let config = ClientConfig { deadline: LONG, shared_memory, ..ClientConfig::default() };
        let client = Client::connect(&[address], config).unwrap();
        let info = client.volatile("h1").unwrap();
        assert_eq!((info.tensor.row_bytes(), info.range_rows), (ROW_BYTES, 500));
        let mut publisher = client.publisher();
        // The previous publisher was dropped, which the server notices after a moment.
        publishers::claim(&mut *publisher, &[0..N_NODES]);
        let stamp = 10 * turn;
        // Publish all rows in order, then some in random order: the later stamp wins.
        let sorted: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
        publisher.publish("h1", &sorted, &rows_of(&sorted, stamp), stamp).unwrap();
        let (some, rest) = ids.split_at(1000);
        publisher.publish("h1", some, &rows_of(some, stamp + 1), stamp + 1).unwrap();
        let found = pull(&client, &ids, StampWanted::now(stamp)).unwrap();
        check(&ids, &found, stamp);
        assert_eq!((found.1.oldest(), found.1.is_whole()), (Some(stamp), true));
        let found = pull(&client, &ids, StampWanted::now(stamp + 1)).unwrap();
        check(&ids, &found, stamp + 1);
        let lacking: Vec<u32> = (1000..3000).collect();
        assert_eq!((found.1.lacking(), rest.len()), (lacking, 2100));
        let (none, pulled) = pull(&client, &[], StampWanted::awaited(9)).unwrap();
        assert!(none.is_empty() && pulled.stamps.is_empty());
    }
    let stats = server.stats();
    let sum =
        |of: fn(&lodestore_client::remote::ShardStats) -> u64| stats.iter().map(of).sum::<u64>();
    assert_eq!(sum(|shard| shard.published_rows), 3 * 4000);
    assert_eq!(sum(|shard| shard.volatile_rows), 3 * (3100 + 1100));
    assert_eq!(sum(|shard| shard.lacking_rows), 3 * 2000);
    assert!(stats.iter().all(|shard| shard.volatile_rows > 0), "every shard serves rows");
    assert!(sum(|shard| shard.shared_bytes) > 0, "some rows were sent through shared memory");
    server.stop().unwrap();
}

#[test]
fn a_client_declares_one_tensor_over_the_partitions_of_two_servers() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, 2, 3);
    let parts = |parts: &[u16]| ServerConfig {
        parts: parts.iter().copied().map(PartId).collect(),
        ..config(&graph, &["other:1xu8"])
    };
    let (first, first_address) = start(&parts(&[0, 2]));
    let (second, second_address) = start(&parts(&[1]));
    let client = connect(&[&first_address, &second_address], LONG);
    let tensor = TensorInfo { name: "h1".into(), dtype: Dtype::F32, width: WIDTH };
    let info = VolatileInfo { tensor, range_rows: 0 };
    client.declare(&info).unwrap();
    client.declare(&info).unwrap();
    assert_eq!(client.volatile("h1").unwrap(), info);
    let ids = all_ids();
    let mut publisher = client.publisher();
    assert_eq!(publisher.claim("h1", &[0..1000, 1000..3000]).unwrap(), 3000);
    publisher.publish("h1", &ids, &rows_of(&ids, 4), 4).unwrap();
    let found = pull(&client, &ids, StampWanted::now(4)).unwrap();
    check(&ids, &found, 4);
    assert!(found.1.is_whole());
    let n = |server: &Server| server.stats().iter().map(|s| s.published_rows).sum::<u64>();
    assert!(n(&second) >= 1000 && n(&first) >= 2000 && n(&first) + n(&second) == 3100);
    // A client of one server cannot pull the rows of the other.
    let half = connect(&[&first_address], Duration::from_secs(2));
    assert!(matches!(
        pull(&half, &ids, StampWanted::now(4)),
        Err(ClientError::NoReplica { part: PartId(1) })
    ));
    drop(publisher);
    first.stop().unwrap();
    second.stop().unwrap();
}

#[test]
fn a_pull_waits_for_its_stamp_and_then_reports_missing_rows() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, 2, 2);
    let (server, address) = start(&config(&graph, &["h1:60xf32"]));
    let client = connect(&[&address], LONG);
    let ids: Vec<NodeId> = [7, 1700, 8, 2999].map(NodeId).to_vec();
    std::thread::scope(|scope| {
        let (client, ids) = (&client, &ids);
        scope.spawn(move || {
            let mut publisher = client.publisher();
            publisher.claim("h1", &[0..N_NODES]).unwrap();
            publisher.publish("h1", &ids[..2], &rows_of(&ids[..2], 6), 6).unwrap();
            std::thread::sleep(Duration::from_millis(150));
            publisher.publish("h1", ids, &rows_of(ids, 7), 7).unwrap();
        });
        let begun = Instant::now();
        let found = pull(client, ids, StampWanted::awaited(7)).unwrap();
        check(ids, &found, 7);
        assert!(found.1.is_whole());
        let waited = begun.elapsed();
        assert!(waited >= Duration::from_millis(100) && waited < LONG / 2, "{waited:?}");
    });
    // The wait ends near the deadline of the client, or after its own `wait`.
    let hasty = connect(&[&address], Duration::from_secs(1));
    let more = [ids[0], NodeId(100), ids[3], NodeId(101)];
    for (wanted, least) in [
        (StampWanted::awaited(2), Duration::from_millis(800)),
        (StampWanted { min_stamp: 2, wait: Duration::from_millis(70) }, Duration::from_millis(70)),
        (StampWanted::now(2), Duration::ZERO),
    ] {
        // The shortest of three: other programs use the machine too.
        let mut shortest = LONG;
        for _ in 0..3 {
            let begun = Instant::now();
            let found = pull(&hasty, &more, wanted).unwrap();
            let waited = begun.elapsed();
            check(&more, &found, 2);
            assert_eq!((found.1.lacking(), found.1.oldest()), (vec![1, 3], Some(7)));
            assert!(waited >= least, "{waited:?}");
            shortest = shortest.min(waited);
        }
        assert!(shortest < least + Duration::from_millis(700), "{shortest:?}");
    }
    // No row has reached a stamp above all published ones.
    let found =
        pull(&hasty, &more, StampWanted::now(lodestore_client::volatile::STAMP_MAX)).unwrap();
    assert_eq!((found.1.lacking().len(), found.1.oldest()), (4, None));
    server.stop().unwrap();
}

#[test]
fn a_pull_of_more_rows_than_fit_one_request_is_split() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, 2, 1);
    let config = ServerConfig { n_shards: 1, ..config(&graph, &["h1:1xf32"]) };
    let (server, address) = start(&config);
    let client = connect(&[&address], LONG);
    let nodes: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let rows: Vec<u8> = (0..N_NODES).flat_map(|node| (node + 1).to_le_bytes()).collect();
    let mut publisher = client.publisher();
    publisher.claim("h1", &[0..N_NODES]).unwrap();
    publisher.publish("h1", &nodes, &rows, 3).unwrap();
    for n_ids in [IDS_PER_PULL_MAX + 1, 2 * IDS_PER_PULL_MAX] {
        let ids: Vec<NodeId> = nodes.iter().copied().cycle().take(n_ids).collect();
        let mut out = vec![0; 4 * n_ids];
        let pulled = client.pull_volatile("h1", &ids, StampWanted::now(3), &mut out).unwrap();
        assert!(pulled.is_whole(), "{n_ids} ids");
        let found = out.as_chunks::<4>().0.iter().map(|&row| u32::from_le_bytes(row));
        assert!(found.eq(ids.iter().map(|node| node.0 + 1)), "{n_ids} ids");
    }
    drop(publisher);
    server.stop().unwrap();
}
