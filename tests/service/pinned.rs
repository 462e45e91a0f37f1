//! Rows of one version, whichever server gives them; or an error that says why not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lodestore_client::{Client, ClientConfig, ClientError};
use lodestore_graph::NodeId;
use lodestore_schema::FailureCode;

use crate::support::graph::Source;
use crate::support::process::{Serving, lode_line};

fn config(pin: bool) -> ClientConfig {
    ClientConfig { pin, ..ClientConfig::default() }
}

fn label(client: &Client, node: u32) -> Result<i64, ClientError> {
    let mut row = [0u8; 8];
    client.sync_pull("label", &[NodeId(node)], &mut row)?;
    Ok(i64::from_le_bytes(row))
}

fn refusal(client: &Client) -> FailureCode {
    match label(client, 0) {
        Err(ClientError::Refused { failure, .. }) => failure.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_put_or_committed_later_is_no_row_of_the_version() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --writable --insecure --shards 2");
    let [pinned, free] =
        [true, false].map(|pin| Client::connect(&[&server.address], config(pin)).unwrap());
    let before = label(&pinned, 0).unwrap();
    free.put_rows("label", &[NodeId(0)], &77i64.to_le_bytes()).unwrap();
    assert_eq!(refusal(&pinned), FailureCode::OtherVersion);
    assert_ne!(before, label(&free, 0).unwrap());
    let mut feat = vec![0; 52];
    // Nothing was put into this tensor.
    pinned.sync_pull("feat", &[NodeId(0)], &mut feat).unwrap();
    assert_eq!(free.commit().unwrap(), 2);
    assert_eq!(refusal(&pinned), FailureCode::OtherVersion);
    assert!(pinned.sync_pull("feat", &[NodeId(0)], &mut feat).is_err(), "another version");
    let again = Client::connect(&[&server.address], config(true)).unwrap();
    assert_eq!(label(&again, 0).unwrap(), 77);
    server.stop();
}

#[test]
fn a_server_with_another_version_does_not_take_over() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    let other = source.file("other");
    let copied =
        std::process::Command::new("cp").arg("-r").args([&graph, &other]).status().unwrap();
    assert!(copied.success());
    let servers =
        [&graph, &other].map(|g| Serving::start(g, "--listen 127.0.0.1:0 --writable --insecure"));
    let addresses = servers.each_ref().map(|server| server.address.clone());
    let pinned = Client::connect(&addresses, config(true)).unwrap();
    let before = label(&pinned, 5).unwrap();
    // The second goes ahead alone.
    let ahead = Client::connect(&addresses[1..], config(false)).unwrap();
    ahead.put_rows("label", &[NodeId(5)], &99i64.to_le_bytes()).unwrap();
    ahead.commit().unwrap();
    for _ in 0..20 {
        assert_eq!(label(&pinned, 5).unwrap(), before);
    }
    let mixed = Client::connect(&addresses, config(true)).err().unwrap();
    assert!(matches!(mixed, ClientError::VersionsDiffer { found: 2, expected: 1, .. }), "{mixed}");
    let [first, second] = servers;
    first.kill();
    let mut told = Vec::new();
    for _ in 0..5 {
        told.push(label(&pinned, 5).unwrap_err().to_string());
    }
    assert!(told.iter().any(|error| error.contains("version 1 are wanted")), "{told:?}");
    second.stop();
    lode_line("gather --graph x --pin --tensor feat --ids i --out o").failed(2, &["--graph"]);
}

#[test]
fn rows_of_one_pull_are_of_the_version_while_another_is_committed() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 4, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --writable --insecure --shards 1");
    let writer = Client::connect(&[&server.address], config(false)).unwrap();
    let ids: Vec<NodeId> = (0..60).map(NodeId).collect();
    let put = |number: i64| {
        let rows: Vec<u8> = ids.iter().flat_map(|_| number.to_le_bytes()).collect();
        writer.put_rows("label", &ids, &rows).unwrap();
        writer.commit().unwrap()
    };
    // Every row of version v is v.
    assert_eq!(put(2), 2);
    let is_over = AtomicBool::new(false);
    let n_pulls = std::thread::scope(|scope| {
        let pulls = scope.spawn(|| {
            let mut n_pulls = 0;
            while !is_over.load(Ordering::Relaxed) {
                let Ok(pinned) = Client::connect(&[&server.address], config(true)) else {
                    continue;
                };
                let (mut version, mut rows) = (None, vec![0u8; ids.len() * 8]);
                while pinned.sync_pull("label", &ids, &mut rows).is_ok() {
                    for row in rows.as_chunks::<8>().0 {
                        let row = i64::from_le_bytes(*row);
                        assert_eq!(*version.get_or_insert(row), row, "rows of two versions");
                    }
                    n_pulls += 1;
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
            n_pulls
        });
        for version in 3..60 {
            assert_eq!(put(version), version as u32);
            // Now and then long enough for a client to connect and pull.
            std::thread::sleep(Duration::from_millis(if version % 4 == 0 { 40 } else { 0 }));
        }
        is_over.store(true, Ordering::Relaxed);
        pulls.join().unwrap()
    });
    assert!(n_pulls > 0);
    server.stop();
}
