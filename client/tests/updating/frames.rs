//! Update requests on the wire: forged frames, and frames that no client sends twice.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use lodestore_schema::limits::{
    COMMIT_AHEAD_MAX, PREFIX_BYTES, PUSH_BODY_BYTES_MAX, ROWS_PER_PUSH_MAX,
};
use lodestore_schema::request::{CommitStep, Push};
use lodestore_schema::versions::VersionTag;
use lodestore_schema::{FailureCode, Prefix, Reply, Request, RequestBody};
use lodestore_store::CommitId;

use super::*;

/// Returns the body of a push.
fn body(ids: &[u32], rows: &[u8]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).chain(rows.iter().copied()).collect()
}

fn push(n_rows: u32) -> RequestBody {
    whole(Push { n_rows, ..Push::default() })
}

/// Returns a put of one piece with a number of its own.
fn whole(push: Push) -> RequestBody {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let put = NEXT.fetch_add(1, Ordering::Relaxed).into();
    RequestBody::Push(Push { put, is_last: true, total_rows: push.n_rows, ..push })
}

fn publish(version: u32) -> RequestBody {
    RequestBody::Commit { version, step: CommitStep::Publish, label: 0 }
}

/// Returns the reply to a push; it has no rows.
fn answer(plain: &mut PlainConnection, request: RequestBody, body: &[u8]) -> Reply {
    plain.ask_bytes(request, body);
    let (reply, rows) = plain.answer();
    assert!(rows.is_empty());
    reply
}

fn refusal(plain: &mut PlainConnection, request: RequestBody, body: &[u8]) -> FailureCode {
    match answer(plain, request, body) {
        Reply::Failure(failure) => failure.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn invalid_pushes_are_refused_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 100, WIDTH, 3);
    let parts = vec![PartId(0), PartId(1)];
    let (server, address) = start(&ServerConfig { parts, ..config(&graph, 2) });
    let mut plain = PlainConnection::open(&address);
    let row = put_row(NodeId(3), 1);
    let two = [&row[..], &row[..]].concat();
    use FailureCode::{Elsewhere, Invalid, NotFound, TooLarge};
    let lies = [
        // Bodies whose length does not match the number of rows, or has rows of another length.
        (push(1), body(&[3], &row[1..]), Invalid),
        (push(1), body(&[3], &two), Invalid),
        (push(2), body(&[3, 4], &row), Invalid),
        (push(0), body(&[3], &row), Invalid),
        (push(0), vec![], Invalid),
        (push(1), vec![], Invalid),
        (push(25), body(&[3; 24], &row.repeat(24)), Invalid),
        (push(u32::MAX), body(&[3], &row), TooLarge),
        (push(ROWS_PER_PUSH_MAX as u32 + 1), vec![0; PUSH_BODY_BYTES_MAX], TooLarge),
        // Rows that do not exist, are on another server, or are of two partitions.
        (push(1), body(&[100], &row), NotFound),
        (push(1), body(&[u32::MAX], &row), NotFound),
        (push(1), body(&[99], &row), Elsewhere),
        (push(2), body(&[3, 50], &two), Invalid),
        (push(2), body(&[3, 99], &two), Invalid),
        (push(2), body(&[3, 100], &two), NotFound),
        (whole(Push { tensor: 9, n_rows: 1, ..Push::default() }), body(&[3], &row), NotFound),
        (publish(COMMIT_AHEAD_MAX + 2), vec![], Invalid),
        (publish(u32::MAX), vec![1, 2, 3], Invalid),
    ];
    for (request, body, code) in &lies {
        let found = refusal(&mut plain, *request, body);
        assert_eq!(found, *code, "{request:?} with {} bytes", body.len());
    }
    connect(&[&address]).commit().unwrap();
    let rows = plain.pull(0, PullKind::Sync, &[NodeId(3), NodeId(50)], ROW_BYTES);
    assert_eq!(
        (turn_of(NodeId(3), &rows[..ROW_BYTES]), turn_of(NodeId(50), &rows[ROW_BYTES..])),
        (0, 0)
    );
    assert_eq!(server.stats().iter().map(|s| s.failures).sum::<u64>(), lies.len() as u64);
    server.stop().unwrap();
}

#[test]
fn a_truncated_push_puts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 100, WIDTH, 1);
    let (server, address) = start(&config(&graph, 1));
    let ids: Vec<u32> = (0..10).collect();
    let whole = body(&ids, &put_rows(&ids.iter().copied().map(NodeId).collect::<Vec<_>>(), 1));
    for length in [0, 1, 39, 40, 41, whole.len() - 1] {
        let mut plain = PlainConnection::open(&address);
        let mut frame = Vec::new();
        Request::new(push(10)).append_to(whole.len(), &mut frame);
        frame.extend_from_slice(&whole[..length]);
        plain.stream.write_all(&frame).unwrap();
        plain.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        // The server may reset the connection or close it.
        let _ = plain.stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "no reply to a truncated push");
    }
    let mut plain = PlainConnection::open(&address);
    plain
        .stream
        .write_all(&Prefix { head_bytes: 8, body_bytes: PUSH_BODY_BYTES_MAX + 1 }.to_bytes())
        .unwrap();
    assert_eq!(
        plain.stream.read(&mut [0; PREFIX_BYTES]).unwrap_or(0),
        0,
        "the body exceeds its limit"
    );
    connect(&[&address]).commit().unwrap();
    Expected::new(100).check(&[&address], "nothing was put");
    assert_eq!(server.stats().iter().map(|s| s.pushes).sum::<u64>(), 0);
    server.stop().unwrap();
}

#[test]
fn a_read_only_server_refuses_updates_with_advice_and_continues() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 100, WIDTH, 1);
    let (server, address) = start(&ServerConfig { writable: false, ..config(&graph, 1) });
    let mut plain = PlainConnection::open(&address);
    assert!(!plain.describe().writable);
    let row = body(&[3], &put_row(NodeId(3), 1));
    for (request, body) in
        [(push(1), &row[..]), (push(9), &row[..]), (publish(2), &[]), (RequestBody::Compact, &[])]
    {
        match answer(&mut plain, request, body) {
            Reply::Failure(failure) => {
                assert_eq!(failure.code, FailureCode::ReadOnly);
                assert!(failure.message.contains("read-only"), "{failure}");
            }
            other => panic!("{other:?}"),
        }
    }
    server.stop().unwrap();
    let (server, address) = start(&config(&graph, 1));
    connect(&[&address]).commit().unwrap();
    Expected::new(100).check(&[&address], "nothing was put");
    server.stop().unwrap();
}

#[test]
fn a_commit_can_be_repeated_and_any_shard_accepts_a_push_of_any_row() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 2000, WIDTH, 1);
    let (server, address) = start(&config(&graph, 3));
    let client = connect(&[&address]);
    let mut expected = Expected::new(2000);
    expected.check(&[&address], "resident before the put");
    let ports = PlainConnection::open(&address).describe().shard_ports;
    for (turn, port) in (1..).zip(ports) {
        let mut plain = PlainConnection::open(&format!("127.0.0.1:{port}"));
        let ids: Vec<NodeId> = (0..2000).step_by(3).map(NodeId).collect();
        let raw: Vec<u32> = ids.iter().map(|id| id.0).collect();
        let body = body(&raw, &put_rows(&ids, turn));
        let pushed = answer(&mut plain, push(ids.len() as u32), &body);
        assert_eq!(pushed, Reply::Pushed { version: turn + 1 });
        expected.check(&[&address], "not committed");
        expected.put(&ids, turn);
        for asked in [turn + 1, turn + 1, 0] {
            let commit = publish(asked);
            let committed = answer(&mut plain, commit, &[]);
            let is_it =
                matches!(committed, Reply::Committed { version, .. } if version == turn + 1);
            assert!(is_it, "{committed:?}");
        }
        assert_eq!(plain.describe().version, turn + 1);
        expected.check(&[&address], "through another shard");
    }
    assert_eq!(client.commit().unwrap(), 5);
    server.stop().unwrap();
}

#[test]
fn pushes_beyond_the_memory_of_a_shard_are_refused_and_succeed_later() {
    // Each push has three rows of 1 MiB and takes 9 of the 56 MiB that a shard has for bulk
    // requests.
    const WIDE: u32 = 1 << 18;
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 8, WIDE, 1);
    let (server, address) = start(&config(&graph, 1));
    let wide = body(&[0, 1, 2], &vec![7; 3 << 20]);
    let mut frame = Vec::new();
    Request::new(push(3)).append_to(wide.len(), &mut frame);
    let mut waiting: Vec<PlainConnection> =
        (0..6).map(|_| PlainConnection::open(&address)).collect();
    for plain in &mut waiting {
        // The server admits the push by its head, then waits for the rest of its body.
        plain.stream.write_all(&frame).unwrap();
        plain.stream.write_all(&wide[..1000]).unwrap();
    }
    let mut late = PlainConnection::open(&address);
    let end = Instant::now() + Duration::from_secs(5);
    // The server may not have read all earlier heads yet.
    loop {
        match answer(&mut late, push(3), &wide) {
            Reply::Failure(failure) => {
                assert_eq!(failure.code, FailureCode::Overloaded);
                assert!(!failure.retry_after.is_zero());
                break;
            }
            Reply::Pushed { .. } => assert!(Instant::now() < end, "no push is refused"),
            other => panic!("{other:?}"),
        }
    }
    for plain in &mut waiting {
        plain.stream.write_all(&wide[1000..]).unwrap();
        assert_eq!(plain.answer().0, Reply::Pushed { version: 2 });
    }
    assert_eq!(answer(&mut late, push(3), &wide), Reply::Pushed { version: 2 });
    server.stop().unwrap();
}

#[test]
fn abandoned_large_puts_do_not_block_a_short_one() {
    // Each large put announces 256 MiB in rows of 4 kB, and sends one row.
    const WIDE: u32 = 1024;
    const ANNOUNCED: u32 = (256 << 20) / (4 * WIDE);
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 8, WIDE, 1);
    let (server, address) = start(&config(&graph, 1));
    let row = vec![7; 4 * WIDE as usize];
    let begin = |plain: &mut PlainConnection, put: u128| {
        let first = Push { put, n_rows: 1, total_rows: ANNOUNCED, ..Push::default() };
        answer(plain, RequestBody::Push(first), &body(&[1], &row))
    };
    for put in 1001..1004 {
        let begun = begin(&mut PlainConnection::open(&address), put);
        assert_eq!(begun, Reply::Pushed { version: 0 });
    }
    let mut plain = PlainConnection::open(&address);
    match begin(&mut plain, 1004) {
        Reply::Failure(failure) => {
            assert_eq!(failure.code, FailureCode::Overloaded);
            assert!(!failure.retry_after.is_zero());
        }
        other => panic!("the server admitted a fourth put: {other:?}"),
    }
    assert_eq!(answer(&mut plain, push(1), &body(&[5], &row)), Reply::Pushed { version: 2 });
    server.stop().unwrap();
}

#[test]
fn another_put_with_the_same_number_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 100, WIDTH, 1);
    let (server, address) = start(&config(&graph, 1));
    let mut plain = PlainConnection::open(&address);
    let one = Push { put: 77, n_rows: 1, total_rows: 1, is_last: true, ..Push::default() };
    let one = RequestBody::Push(one);
    let body_of = |node: u32| body(&[node], &put_row(NodeId(node), 1));
    for _ in 0..2 {
        assert_eq!(answer(&mut plain, one, &body_of(3)), Reply::Pushed { version: 2 });
    }
    match answer(&mut plain, one, &body_of(4)) {
        Reply::Failure(failure) => {
            assert_eq!(failure.code, FailureCode::Invalid);
            assert!(failure.message.contains("draw a new number"), "{failure}");
        }
        other => panic!("{other:?}"),
    }
    server.stop().unwrap();
}

#[test]
fn a_commit_after_an_interrupted_one_contains_later_puts_at_any_writer() {
    for part in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let graph = feature_graph(dir.path(), 100, WIDTH, 2);
        let servers = [0, 1]
            .map(|part| start(&ServerConfig { parts: vec![PartId(part)], ..config(&graph, 1) }));
        let addresses = servers.each_ref().map(|(_, address)| address.as_str());
        for address in addresses {
            let prepare = RequestBody::Commit { version: 2, step: CommitStep::Prepare, label: 0 };
            let prepared = answer(&mut PlainConnection::open(address), prepare, &[]);
            assert!(matches!(prepared, Reply::Committed { version: 2, .. }));
        }
        let (client, mut expected) = (connect(&addresses), Expected::new(100));
        let put = [NodeId(3 + 50 * part)];
        assert_eq!(client.put_rows("feat", &put, &put_rows(&put, 1)).unwrap().version, 3);
        assert_eq!(client.commit().unwrap(), 3);
        expected.put(&put, 1);
        expected.check(&addresses, "committed after an interrupted one");
        for (part, (server, _)) in (0..).map(PartId).zip(&servers) {
            let publishing = server.publishing();
            let made = [2, 3].map(|version| publishing.live().commit_of(part, version).unwrap());
            assert_ne!(
                made[0], made[1],
                "partition {part}: versions 2 and 3 have commits of their own"
            );
        }
        servers.into_iter().for_each(|(server, _)| server.stop().unwrap());
    }
}

/// Makes a writer take one step of the commit of version 2.
fn take_step(address: &str, step: CommitStep, commit: CommitId) {
    let label = u128::from_be_bytes(commit.to_bytes());
    let body = RequestBody::Commit { version: 2, step, label };
    let taken = answer(&mut PlainConnection::open(address), body, &[]);
    assert!(matches!(taken, Reply::Committed { version: 2, .. }), "{taken:?}");
}

/// Two clients commit concurrently, and each has prepared the version at one of the writers.
#[test]
fn the_smallest_prepared_commit_is_published_unless_another_is_already() {
    for is_committed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let graph = feature_graph(dir.path(), 100, WIDTH, 2);
        let servers = [0, 1]
            .map(|part| start(&ServerConfig { parts: vec![PartId(part)], ..config(&graph, 1) }));
        let addresses = servers.each_ref().map(|(_, address)| address.as_str());
        let mut drawn = [CommitId::draw(), CommitId::draw()];
        drawn.sort_unstable();
        let [small, large] = drawn;
        take_step(addresses[0], CommitStep::Prepare, large);
        take_step(addresses[1], CommitStep::Prepare, small);
        let client = connect(&addresses);
        if is_committed {
            take_step(addresses[0], CommitStep::Publish, large);
            pull(&client, &[NodeId(3)]).unwrap();
        }
        assert_eq!(client.commit_as(2).unwrap(), 2);
        let made = if is_committed { large } else { small };
        let expected = VersionTag { number: 2, tag: made.tag() };
        assert_eq!(client.version_id().unwrap(), expected, "is committed: {is_committed}");
        servers.into_iter().for_each(|(server, _)| server.stop().unwrap());
    }
}

#[test]
fn no_writer_publishes_a_version_that_another_has_not_prepared() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), 100, WIDTH, 2);
    let [first, second] =
        [0, 1].map(|part| start(&ServerConfig { parts: vec![PartId(part)], ..config(&graph, 1) }));
    let addresses = [first.1.as_str(), second.1.as_str()];
    let once = ClientConfig { attempts: 1, ..ClientConfig::default() };
    let client = Client::connect(&addresses, once).unwrap();
    client.put_rows("feat", &[NodeId(3)], &put_row(NodeId(3), 1)).unwrap();
    second.0.stop().unwrap();
    let error = client.commit_as(2).unwrap_err();
    assert!(error.to_string().contains(addresses[1]), "{error}");
    assert_eq!(PlainConnection::open(addresses[0]).describe().version, 1);
    first.0.stop().unwrap();
}
