//! Rows of one version, from any server, with any puts, commits and compactions meanwhile; or an
//! error with the reason.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lodestore_client::{Client, ClientConfig, ClientError, Pin, RowSource};
use lodestore_graph::NodeId;
use lodestore_schema::FailureCode;

use testing::graph::Source;
use testing::process::{Serving, lode_line};

fn config(pin: bool) -> ClientConfig {
    ClientConfig { pin: pin.then_some(Pin::Newest), ..ClientConfig::default() }
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

fn put_label(client: &Client, node: u32, label: i64) {
    client.put_rows("label", &[NodeId(node)], &label.to_le_bytes()).unwrap();
}

fn compact(client: &Client) {
    let runs = client.compact().unwrap();
    client.wait_for_compactions(&runs, &mut |_, _| {}).unwrap();
}

#[test]
fn what_is_put_committed_or_compacted_later_is_no_row_of_the_version() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    let flags = "--writable --insecure --keep-versions 1 --keep-for 0";
    let server = Serving::start(&graph, &format!("--listen 127.0.0.1:0 {flags} --shards 2"));
    let [pinned, free] =
        [true, false].map(|pin| Client::connect(&[&server.address], config(pin)).unwrap());
    let numbers = [&pinned, &free].map(|it| it.pinned_version().map(|version| version.number));
    assert_eq!(numbers, [Some(1), None]);
    let before = label(&free, 0).unwrap();
    assert!(![77, 78].contains(&before));
    put_label(&free, 0, 77);
    // A put is a row of no version.
    assert_eq!([label(&pinned, 0).unwrap(), label(&free, 0).unwrap()], [before; 2]);
    assert_eq!(free.commit().unwrap(), 2);
    assert_eq!([label(&pinned, 0).unwrap(), label(&free, 0).unwrap()], [before, 77]);
    let second = Client::connect(&[&server.address], config(true)).unwrap();
    compact(&free);
    assert_eq!([label(&pinned, 0).unwrap(), label(&free, 0).unwrap()], [before, 77]);
    put_label(&free, 0, 78);
    assert_eq!(free.commit().unwrap(), 3);
    compact(&free);
    let third = Client::connect(&[&server.address], config(true)).unwrap();
    assert_eq!(third.pinned_version().map(|version| version.number), Some(3));
    for _ in 0..2 {
        let found = [&pinned, &second, &third, &free].map(|client| label(client, 0).unwrap());
        assert_eq!(found, [before, 77, 78, 78]);
    }
    let mut feat = vec![0; 52];
    pinned.sync_pull("feat", &[NodeId(0)], &mut feat).unwrap();

    // A server that starts has the versions alone that are in its files.
    let address = server.address.clone();
    server.stop();
    let more = format!("--listen {address} {flags} --shards 1");
    let server = Serving::start(&graph, &more);
    assert_eq!(refusal(&pinned), FailureCode::OtherVersion);
    assert_eq!(label(&third, 0).unwrap(), 78);
    put_label(&free, 0, 79);
    assert_eq!(free.commit().unwrap(), 4);
    server.stop();
    let server = Serving::start(&graph, &more);
    assert_eq!([label(&third, 0).unwrap(), label(&free, 0).unwrap()], [78, 79]);
    server.stop();
}

#[test]
fn a_version_is_kept_from_connecting_on_whatever_is_committed_before_the_first_pull() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --writable --insecure --shards 2");
    let [pinned, free] =
        [true, false].map(|pin| Client::connect(&[&server.address], config(pin)).unwrap());
    let before = label(&free, 5).unwrap();
    for number in 1000..1030 {
        put_label(&free, 5, number);
        free.commit().unwrap();
        if number % 10 == 0 {
            compact(&free);
        }
    }
    assert_eq!([label(&pinned, 5).unwrap(), label(&free, 5).unwrap()], [before, 1029]);
    server.stop();
}

#[test]
fn a_server_that_has_the_version_too_takes_over_and_one_that_has_folded_it_does_not() {
    let source = Source::random(60, 100);
    let graph = source.import("graph", 1, "hash");
    let other = source.file("other");
    let copied =
        std::process::Command::new("cp").arg("-r").args([&graph, &other]).status().unwrap();
    assert!(copied.success());
    let flags = "--writable --insecure --keep-versions 1 --keep-for 0";
    let servers = [&graph, &other]
        .map(|graph| Serving::start(graph, &format!("--listen 127.0.0.1:0 {flags}")));
    let addresses = servers.each_ref().map(|server| server.address.clone());
    let pinned = Client::connect(&addresses, config(true)).unwrap();
    let before = label(&pinned, 5).unwrap();
    // The second goes ahead alone.
    let ahead = Client::connect(&addresses[1..], config(false)).unwrap();
    put_label(&ahead, 5, 99);
    ahead.commit().unwrap();
    for _ in 0..20 {
        assert_eq!(label(&pinned, 5).unwrap(), before);
    }
    let newer = Client::connect(&addresses, config(true)).unwrap();
    assert_eq!(label(&newer, 5).unwrap(), 99, "one that is behind is not asked");
    let [first, second] = servers;
    first.kill();
    for _ in 0..5 {
        assert_eq!(label(&pinned, 5).unwrap(), before);
    }
    compact(&ahead);
    assert_eq!(label(&pinned, 5).unwrap(), before);
    second.stop();
    let second = Serving::start(&other, &format!("--listen {} {flags}", addresses[1]));
    // For any order of requests: the server's answer is reported, not that the other is away.
    for _ in 0..5 {
        let error = label(&pinned, 5).unwrap_err().to_string();
        assert!(error.contains("version 1 cannot be read here"), "{error}");
    }
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
                let pinned = Client::connect(&[&server.address], config(true)).unwrap();
                let (mut version, mut rows) = (None, vec![0u8; ids.len() * 8]);
                for _ in 0..30 {
                    pinned.sync_pull("label", &ids, &mut rows).unwrap();
                    for row in rows.as_chunks::<8>().0 {
                        let row = i64::from_le_bytes(*row);
                        assert_eq!(*version.get_or_insert(row), row, "rows of two versions");
                    }
                    n_pulls += 1;
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
