//! Contents of the log.

use std::os::unix::fs::FileExt;

use lodestore_graph::NodeId;
use lodestore_schema::request::PullKind;
use lodestore_schema::{FailureCode, Reply, RequestBody};
use serde_json::Value;

use crate::operations::Watched;
use testing::wire::PlainConnection;

#[test]
fn lines_are_objects_where_that_is_asked_for() {
    let watched = Watched::start("--shards 1 --log-level info --log-format json");
    let log = watched.server.stop_and_take_log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let messages: Vec<&str> = lines.iter().map(|line| line["message"].as_str().unwrap()).collect();
    assert!(messages.contains(&"serving") && messages.contains(&"stopped"), "{messages:?}");
    let serving = lines.iter().find(|line| line["message"] == "serving").unwrap();
    for field in ["timestamp", "level", "target", "n_shards", "version", "metrics"] {
        assert!(!serving[field].is_null(), "no `{field}` in {serving}");
    }
    assert_eq!(serving["level"], "INFO");
    assert!(serving["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{serving}");
    assert!(serving["unix"].is_null(), "{serving}");
}

#[test]
fn a_server_without_faults_says_nothing_unless_asked() {
    let watched = Watched::start("");
    assert_eq!(watched.server.stop_and_take_log(), "");
}

#[test]
fn damage_is_logged_once_a_second_however_often_it_is_read() {
    let watched = Watched::start("--shards 1 --memory 0");
    let segment = watched.graph.join("part-000/wide.v1.seg");
    let file = std::fs::OpenOptions::new().write(true).open(&segment).unwrap();
    for page in 1..40 {
        file.write_all_at(&[0x5a; 64], page * 4096).unwrap();
    }
    let mut connection = PlainConnection::open(&watched.server.address);
    let tensors = connection.describe().tensors;
    let wide = tensors.iter().position(|tensor| tensor.name == "wide").unwrap() as u16;
    for _ in 0..50 {
        connection.ask(RequestBody::Pull { tensor: wide, kind: PullKind::Sync }, &[NodeId(3)]);
        let (reply, _) = connection.answer();
        let Reply::Failure(failure) = reply else { panic!("{reply:?}") };
        assert_eq!(failure.code, FailureCode::Damaged);
    }
    let log = watched.server.stop_and_take_log();
    let told = log.lines().filter(|line| line.contains("damaged page")).count();
    assert!((1..=5).contains(&told), "{told} times: {log}");
    assert!(log.contains("wide.v1.seg") && log.contains("untold"), "{log}");
}
