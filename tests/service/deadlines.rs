//! Requests that came too late, and those whose clients have left, cost nothing.

use std::thread::sleep;
use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_schema::request::PullKind;
use lodestore_schema::{FailureCode, Reply, Request, RequestBody};
use rustix::process::Signal;

use crate::{broken, metric, wait_until};
use testing::graph::Source;
use testing::process::{Serving, signal};
use testing::wire::PlainConnection;

const PULL: RequestBody = RequestBody::Pull { tensor: 0, kind: PullKind::Sync };

fn serve(source: &Source, more: &str) -> Serving {
    let graph = source.import("graph", 2, "hash");
    let args = format!("--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 2 {more}");
    Serving::start(&graph, &args)
}

/// Stops a server; when this returns none of its threads runs.
fn stand_still(server: &Serving) {
    signal(&server.child, Signal::STOP);
    let is_stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, s)| s.starts_with('T'));
    wait_until("all threads stand still", || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
        let mut stats = threads.map(|thread| thread.unwrap().path().join("stat"));
        stats.all(|path| std::fs::read_to_string(path).is_ok_and(is_stopped))
    });
}

#[test]
fn a_request_that_waited_past_its_deadline_is_dropped_before_work_is_done_for_it() {
    let source = Source::random(2000, 2000);
    let server = serve(&source, "");
    let opened = Instant::now();
    let mut client = PlainConnection::open(&server.address);
    let ids: Vec<NodeId> = (0..1000).map(NodeId).collect();
    let request = |deadline_ms| Request {
        sent: opened.elapsed(),
        deadline: Some(Duration::from_millis(deadline_ms)),
        ..Request::new(PULL)
    };
    // On a busy machine each of them may wait; the one that waits least is the measure.
    for _ in 0..10 {
        client.send(&request(20_000), &ids);
        assert!(matches!(client.answer(), (Reply::Rows { n_rows: 1000, .. }, _)));
    }
    let sent = || metric(&server, "lodestore_sent_rows_total");
    wait_until("what was sent is counted", || sent() == 10_000.0);
    let served = metric(&server, "lodestore_sent_rows_total");
    // All of them are in the socket while the server stalls.
    stand_still(&server);
    for _ in 0..5 {
        client.send(&request(300), &ids);
    }
    client.send(&request(60_000), &ids[..10]);
    sleep(Duration::from_millis(900));
    signal(&server.child, Signal::CONT);
    for _ in 0..5 {
        let failure = client.failure();
        assert_eq!(failure.code, FailureCode::Deadline, "{failure}");
        assert!(failure.message.contains("before the request was read"), "{failure}");
    }
    assert!(matches!(client.answer(), (Reply::Rows { n_rows: 10, .. }, _)));
    let all = || metric(&server, "lodestore_sent_rows_total");
    wait_until("what was sent is counted", || all() > served);
    assert_eq!(all(), served + 10.0);
    server.stop();
}

#[test]
fn requests_of_a_client_that_has_left_cost_nothing_more() {
    let source = Source::random(2000, 2000);
    let server = serve(&source, "--memory 0");
    let ids: Vec<NodeId> = (0..200_000).map(|i| NodeId(i * 7919 % 2000)).collect();
    let before = metric(&server, "lodestore_sent_rows_total");
    for kind in [PullKind::Sync, PullKind::Vector] {
        let mut client = PlainConnection::open(&server.address);
        signal(&server.child, Signal::STOP);
        // 10 MB of rows each.
        for _ in 0..3 {
            client.send(&Request::new(RequestBody::Pull { tensor: 0, kind }), &ids[..20_000]);
        }
        drop(client);
        signal(&server.child, Signal::CONT);
        // In the midst of an answer.
        let mut client = PlainConnection::open(&server.address);
        client.send(&Request::new(RequestBody::Pull { tensor: 0, kind }), &ids);
        let _ = client.answer();
        drop(client);
    }
    wait_until("connections are closed", || metric(&server, "lodestore_connections") == 0.0);
    let served = metric(&server, "lodestore_sent_rows_total") - before;
    assert!(served < 300_000.0, "{served} rows of 520,000 without a reader");
    // A shard publishes ten times a second.
    wait_until("its room is free", || metric(&server, "lodestore_in_flight_bytes") == 0.0);
    assert!(broken(&server, "left") > 0.0);
    server.stop();
}

#[test]
fn requests_for_another_graph_or_partition_are_sent_elsewhere() {
    let source = Source::random(100, 100);
    let server = serve(&source, "--parts 1");
    let mut client = PlainConnection::open(&server.address);
    let description = client.describe();
    let inside = NodeId(description.bounds[1]);
    for (graph, id, code) in [
        (description.graph_tag(), inside, None),
        (0, inside, None),
        (description.graph_tag() ^ 1, inside, Some(FailureCode::Elsewhere)),
        (0, NodeId(0), Some(FailureCode::Elsewhere)),
        (0, NodeId(100), Some(FailureCode::NotFound)),
    ] {
        client.send(&Request { graph, ..Request::new(PULL) }, &[id]);
        let found = match client.answer() {
            (Reply::Rows { .. }, _) => None,
            (Reply::Failure(failure), _) => Some(failure.code),
            other => panic!("{other:?}"),
        };
        assert_eq!(found, code, "graph {graph:x}, node {id}");
    }
    server.stop();
}
