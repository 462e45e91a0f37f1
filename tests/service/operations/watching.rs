//! Health, readiness, the page and `lode top`.

use std::time::{Duration, Instant};

use lodestore_graph::NodeId;
use lodestore_schema::RequestBody;
use lodestore_schema::request::PullKind;
use rustix::process::Signal;
use serde_json::Value;

use crate::operations::Watched;
use testing::http::{exchange, get};
use testing::process::{lode_line, signal, wait};
use testing::wire::PlainConnection;

#[test]
fn a_server_that_drains_lives_and_is_not_ready() {
    let mut watched = Watched::start("--shards 1");
    let at = watched.server.metrics.clone();
    assert_eq!(get(&at, "/readyz").status, 200);
    // A client that asks for much and takes nothing keeps the server draining.
    let mut connection = PlainConnection::open(&watched.server.address);
    let tensors = connection.describe().tensors;
    let wide = tensors.iter().position(|tensor| tensor.name == "wide").unwrap() as u16;
    let ids: Vec<NodeId> = (0..600).cycle().take(20_000).map(NodeId).collect();
    connection.ask(RequestBody::Pull { tensor: wide, kind: PullKind::Sync }, &ids);
    let in_progress = || {
        let figures: Value = serde_json::from_str(&get(&at, "/status.json").body).unwrap();
        figures["kinds"]["sync_pull"]["in_progress"].as_u64().unwrap()
    };
    let end = Instant::now() + Duration::from_secs(10);
    while in_progress() == 0 {
        assert!(Instant::now() < end, "the pull never came");
    }
    signal(&watched.server.child, Signal::TERM);
    let mut readiness = get(&at, "/readyz");
    while readiness.status == 200 {
        assert!(Instant::now() < end, "{readiness:?}");
        readiness = get(&at, "/readyz");
    }
    assert_eq!((readiness.status, readiness.body.as_str()), (503, "draining\n"));
    assert_eq!(get(&at, "/healthz").status, 200);
    drop(connection);
    assert_eq!(wait(&mut watched.server.child, Duration::from_secs(20)), Some(0));
}

#[test]
fn the_page_is_one_file_and_asks_only_its_own_server() {
    let watched = Watched::start("--shards 2");
    let page = get(&watched.server.metrics, "/");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("Content-Type: text/html"), "{}", page.head);
    let policy = page.head.lines().find(|line| line.starts_with("Content-Security-Policy: "));
    let policy = policy.unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
    assert!(!policy.contains("unsafe"), "{policy}");
    assert!(page.body.contains("fetch(\"status.json\""));

    let status = get(&watched.server.metrics, "/status.json");
    assert!(status.head.contains("Content-Type: application/json"), "{}", status.head);
    let figures: Value = serde_json::from_str(&status.body).unwrap();
    assert_eq!(figures["shards"].as_array().unwrap().len(), 2);
    assert_eq!((&figures["ready"], &figures["parts"]), (&true.into(), &serde_json::json!([0, 1])));
    // Every figure that the page reads is there.
    let read = |object: &str| {
        let prefix = format!("{object}.");
        let names = page.body.match_indices(&prefix).map(|(at, _)| {
            let rest = &page.body[at + prefix.len()..];
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap();
            rest[..end].to_owned()
        });
        names.collect::<Vec<String>>()
    };
    for (object, at) in [("u", &figures["updates"]), ("p", &figures["process"])] {
        let names = read(&format!(" {object}")).into_iter().chain(read(&format!("{{{object}")));
        let names: Vec<String> =
            names.chain(read(&format!("({object}"))).filter(|name| name.contains('_')).collect();
        assert!(names.len() >= 3, "{names:?}");
        assert!(names.iter().all(|name| !at[name].is_null()), "{names:?} of {at}");
    }
    let head = exchange(&watched.server.metrics, b"HEAD / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    watched.server.stop();
}

#[test]
fn top_shows_what_the_page_shows() {
    let watched = Watched::start("--shards 2 --writable --insecure");
    let address = &watched.server.address;
    lode_line(&format!("load --connect {address} --rows 50 --duration 0.5 --warm-up 0"))
        .succeeded();
    let text = lode_line(&format!("top {} --once", watched.server.metrics)).succeeded().stdout;
    for part in ["ready", "partitions 0, 1", "tier hits", "sync pull", "p99.9", "takes updates"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    assert!(!text.contains('\x1b'), "no control characters where there is no terminal");
    assert!(text.contains("failures since it started: none"), "{text}");
    let figures = lode_line(&format!("top {} --json", watched.server.metrics)).succeeded().json();
    assert_eq!(figures["shards"].as_array().unwrap().len(), 2);
    assert!(figures["kinds"]["sync_pull"]["begun"].as_u64() > Some(0), "{figures}");

    lode_line(&format!("top {address}")).failed(1, &[address, "--metrics"]);
    lode_line("top 127.0.0.1:1").failed(1, &["127.0.0.1:1", "--metrics"]);
    lode_line("top nowhere").failed(2, &["nowhere"]);
    watched.server.stop();
}
