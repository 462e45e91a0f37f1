//! Invalid calls of a client, and invalid requests on the wire.

use std::io::{Read, Write};
use std::net::TcpStream;

use lodestore_client::volatile::STAMP_MAX;
use lodestore_schema::limits::{HELLO_BYTES, PREFIX_BYTES, ROWS_PER_PUBLISH_MAX};
use lodestore_schema::name::Name;
use lodestore_schema::request::{Publish, PullVolatile};
use lodestore_schema::{Failure, Prefix, Reply, Request, RequestBody, WireVersions};

use super::*;

/// A raw connection that speaks a given range of wire versions.
struct Plain(TcpStream);

impl Plain {
    fn open(address: &str, versions: WireVersions) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&versions.hello()).unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        Self(stream)
    }

    fn ask(&mut self, body: RequestBody, bytes: &[u8]) -> Reply {
        let mut frame = Vec::new();
        Request::new(body).append_to(bytes.len(), &mut frame);
        frame.extend_from_slice(bytes);
        self.0.write_all(&frame).unwrap();
        let mut prefix = [0; PREFIX_BYTES];
        self.0.read_exact(&mut prefix).unwrap();
        let prefix = Prefix::of_reply(prefix).unwrap();
        let mut head = vec![0; prefix.head_bytes];
        self.0.read_exact(&mut head).unwrap();
        self.0.read_exact(&mut vec![0; prefix.body_bytes]).unwrap();
        Reply::decode(&head).unwrap()
    }

    fn failure(&mut self, body: RequestBody, bytes: &[u8]) -> Failure {
        match self.ask(body, bytes) {
            Reply::Failure(failure) => failure,
            other => panic!("{other:?}"),
        }
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

#[test]
fn every_invalid_request_is_refused_and_the_connection_stays_usable() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, 2, 2);
    let (server, address) = start(&config(&graph, &["h1:1xf32/500"]));
    let mut plain = Plain::open(&address, WireVersions::SPOKEN);
    let publish = |n_rows, stamp| RequestBody::Publish(Publish { name: name("h1"), n_rows, stamp });
    let claim = RequestBody::Claim { tensor: name("h1") };
    let words = |words: &[u32]| bytemuck::cast_slice::<u32, u8>(words).to_vec();
    let pull = |tensor: &str| {
        let wait = Duration::ZERO;
        RequestBody::PullVolatile(PullVolatile { name: name(tensor), min_stamp: 0, wait })
    };
    use FailureCode::{Held, Invalid, NotFound, NotOwned, Older, TooLarge};
    let n_too_many = ROWS_PER_PUBLISH_MAX as u32 + 1;
    let cases: Vec<(RequestBody, Vec<u8>, FailureCode, &str)> = vec![
        (publish(1, 0), words(&[3, 9]), NotOwned, "row 3 is not this publisher's"),
        (publish(1, 0), words(&[3, 9, 9]), Invalid, "take 8 bytes, the body has 12"),
        (publish(2, 0), words(&[3, 9]), Invalid, "take 16 bytes"),
        (publish(0, 0), Vec::new(), Invalid, "at least one row"),
        (publish(n_too_many, 0), words(&[3, 9]), TooLarge, "the limit is 65536"),
        (publish(u32::MAX, 0), words(&[3, 9]), TooLarge, "the limit is 65536"),
        (publish(1, STAMP_MAX + 1), words(&[3, 9]), Invalid, "is no stamp"),
        (publish(1, 0), words(&[N_NODES, 9]), NotFound, "row 3000 is not held here"),
        (claim, words(&[0, 1]), Invalid, "those from 0 to 500"),
        (claim, words(&[0, 500, 2999]), Invalid, "8 bytes each"),
        (claim, Vec::new(), Invalid, "8 bytes each"),
        (claim, words(&[7, 3]), NotFound, "row 7"),
        (claim, words(&[2500, 3001]), NotFound, "row 3000"),
        (claim, vec![0; 8 * ((1 << 16) + 1)], TooLarge, "the limit is 65536"),
        (RequestBody::Claim { tensor: name("h2") }, words(&[0, 1]), NotFound, "the server has h1"),
        (pull("h2"), words(&[0]), NotFound, "no volatile tensor `h2`"),
        (pull("h1"), words(&[0, N_NODES]), NotFound, "row 3000 is not held here"),
        (pull("h1"), vec![1, 2, 3], Invalid, "4 bytes each"),
        (
            RequestBody::Volatile { tensor: name("feat") },
            Vec::new(),
            NotFound,
            "or start the server with it",
        ),
    ];
    for (body, bytes, code, told) in cases {
        let failure = plain.failure(body, &bytes);
        assert_eq!(failure.code, code, "{body:?}: {failure}");
        assert!(failure.message.contains(told), "{body:?}: {failure}");
    }
    assert_eq!(plain.ask(claim, &words(&[0, 500, 1000, 1500])), Reply::Claimed { n_rows: 1000 });
    assert_eq!(plain.ask(publish(2, 5), &words(&[3, 1001, 9, 9])), Reply::Published { n_rows: 2 });
    let mut other = Plain::open(&address, WireVersions::SPOKEN);
    let failure = other.failure(claim, &words(&[500, 1500]));
    assert_eq!(failure.code, Held, "{failure}");
    assert_eq!(other.ask(claim, &words(&[500, 1000])), Reply::Claimed { n_rows: 500 });
    let mut both = [plain, other];
    for (of, id, stamp, code) in [(1, 3, 6, NotOwned), (0, 3, 4, Older), (0, 500, 9, NotOwned)] {
        let failure = both[of].failure(publish(1, stamp), &words(&[id, 1]));
        assert_eq!(failure.code, code, "{failure}");
    }
    server.stop().unwrap();
}

#[test]
fn requests_above_the_wire_version_of_a_connection_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, 2, 2);
    let (server, address) = start(&config(&graph, &["h1:1xf32"]));
    let mut plain = Plain::open(&address, WireVersions { oldest: 3, newest: 4 });
    let failure = plain.failure(RequestBody::Volatile { tensor: name("h1") }, &[]);
    assert_eq!(failure.code, FailureCode::Unsupported);
    assert!(
        failure.message.contains("wire version 5 to 6, ") && failure.message.contains("version 4")
    );
    let body = RequestBody::Claim { tensor: name("h1") };
    let failure = plain.failure(body, &[0; 8]);
    assert!(failure.message.contains("`claim`"), "{failure}");
    // Requests of the older version are still served.
    assert!(matches!(plain.ask(RequestBody::Describe, &[]), Reply::Description(_)));
    server.stop().unwrap();
}

#[test]
fn invalid_calls_fail_with_their_own_kind_of_error() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, 2, 2);
    let settings = ServerConfig { tier_bytes: 4 << 20, ..config(&graph, &["h1:60xf32"]) };
    let (server, address) = start(&settings);
    let client = connect(&[&address], Duration::from_secs(3));
    let info = |name: &str, width| VolatileInfo {
        tensor: TensorInfo { name: name.into(), dtype: Dtype::F32, width },
        range_rows: 0,
    };
    let code = |error: ClientError, told: &str| {
        assert!(error.to_string().contains(told), "{error}");
        refused(&error)
    };
    let declare = |name: &str, width| client.declare(&info(name, width)).unwrap_err();
    assert_eq!(code(declare("h1", 61), "60xf32"), Some(FailureCode::Invalid));
    assert_eq!(code(declare("feat", 2), "a stored tensor"), Some(FailureCode::Invalid));
    assert_eq!(code(declare("h2", 1 << 17), "bytes (3000 rows"), Some(FailureCode::TooLarge));
    assert_eq!(code(declare("h2", 1 << 20), "the limit of servers is 1048576"), None);
    assert_eq!(code(declare("h/2", 1), "tensor name"), None);
    assert_eq!(code(client.volatile("h2").unwrap_err(), "`h2`"), Some(FailureCode::NotFound));
    let ids = [NodeId(0), NodeId(2000)];
    let rows = rows_of(&ids, 1);
    let mut publisher = client.publisher();
    publisher.claim("h1", &[0..1500]).unwrap();
    let mut publish =
        |ids: &[NodeId], rows: &[u8], stamp| publisher.publish("h1", ids, rows, stamp).unwrap_err();
    assert!(matches!(publish(&ids, &rows, 1), ClientError::NotClaimed { node: NodeId(2000), .. }));
    assert!(matches!(publish(&ids, &rows[1..], 1), ClientError::BufferSize { .. }));
    let (one, row) = (&ids[..1], &rows[..ROW_BYTES]);
    assert_eq!(code(publish(one, row, STAMP_MAX + 1), "is no stamp"), Some(FailureCode::Invalid));
    publisher.publish("h1", one, row, 5).unwrap();
    let older = publisher.publish("h1", one, row, 4).unwrap_err();
    assert_eq!(code(older, "a later stamp than 4"), Some(FailureCode::Older));
    let claimed = publisher.claim("h1", &[0..1499]).unwrap_err();
    assert_eq!(code(claimed, "those from 0 to 1500"), Some(FailureCode::Invalid));
    assert!(matches!(
        publisher.claim("h1", &[1500..3001]),
        Err(ClientError::UnknownNode { node: NodeId(3000), .. })
    ));
    assert!(matches!(
        pull(&client, &[NodeId(N_NODES)], StampWanted::now(0)),
        Err(ClientError::UnknownNode { .. })
    ));
    drop(publisher);
    server.stop().unwrap();
    // A server that was started without volatile tensors and without memory for them declares none.
    let (server, address) = start(&config(&graph, &[]));
    let client = connect(&[&address], Duration::from_secs(3));
    let error = client.declare(&info("h1", 60)).unwrap_err();
    assert_eq!(code(error, "accepts no volatile rows"), Some(FailureCode::ReadOnly));
    server.stop().unwrap();
}

#[test]
fn a_server_without_enough_memory_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, 2, 2);
    // 3000 rows of 240 bytes, each with 16 bytes more.
    let needed = 3000 * 256;
    let with = |tier_bytes| ServerConfig { tier_bytes, ..config(&graph, &["h1:60xf32"]) };
    let message = Server::start(&with(needed - 1)).err().unwrap().to_string();
    assert!(message.contains("takes 768000 bytes") && message.contains("767999"), "{message}");
    let (server, address) = start(&with(needed));
    let client = connect(&[&address], LONG);
    let stats = client.stats().unwrap();
    assert_eq!(stats[0].1.volatile.n_bytes, needed);
    let tiers: u64 = server.stats().iter().map(|shard| shard.tier_bytes).sum();
    assert_eq!(tiers, 0, "no memory is left for tiers");
    server.stop().unwrap();
    let (server, _) = start(&with(needed + (1 << 20)));
    let tiers: u64 = server.stats().iter().map(|shard| shard.tier_bytes).sum();
    assert!(tiers > 0 && tiers <= 1 << 20);
    server.stop().unwrap();
}
