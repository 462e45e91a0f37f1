//! Two writers of one partition, and one that has two names.

use std::time::Duration;

use lodestore_client::{Client, ClientConfig, ClientError, RowSource};
use lodestore_graph::{NodeId, PartId};

use crate::transfer::Two;
use testing::process::{Serving, lode_line};
use testing::workload::put_row;

const PART: PartId = PartId(1);

fn client(addresses: &[&str]) -> Client {
    let config = ClientConfig { deadline: Duration::from_secs(10), ..ClientConfig::default() };
    Client::connect(addresses, config).unwrap()
}

/// Puts a row of the partition.
fn put(client: &Client, turn: u32) -> Result<u64, ClientError> {
    let node = NodeId(client.book().range(PART).start);
    Ok(client.put_rows("feat", &[node], &put_row(node, turn))?.requests)
}

#[test]
fn two_writers_of_a_partition_are_named_and_nothing_is_put_or_committed() {
    let two = Two::new();
    let first = two.serve(0, "127.0.0.1:0");
    let (from, into) = (&first.address, two.folders[1].display());
    lode_line(&format!("transfer 1 --from {from} --into {into} --keep")).succeeded();
    let second = two.serve(1, "127.0.0.1:0");
    let (a, b) = (first.address.clone(), second.address.clone());
    let of_both = client(&[&a, &b]);
    for error in [put(&of_both, 1).unwrap_err(), of_both.commit().unwrap_err()] {
        let text = error.to_string();
        assert!(matches!(error, ClientError::TwoWriters { part: PART, .. }), "{text}");
        assert!(
            [&a, &b].iter().all(|it| text.contains(*it))
                && text.contains("a follower of the other"),
            "{text}"
        );
    }
    for address in [&a, &b] {
        let (_, stats) = client(&[address]).stats().unwrap().remove(0);
        assert_eq!((stats.updates.version, stats.updates.pending_rows), (1, 0), "{address}");
    }
    // The wrong one goes, and puts continue.
    second.stop();
    assert_eq!(put(&client(&[&a]), 2).unwrap(), 1);
    first.stop();
}

#[test]
fn a_server_of_two_names_is_one_writer_and_is_put_to_once() {
    let two = Two::new();
    let socket = two.folders[1].with_file_name("first.sock");
    let more = format!(
        "--local-parts --writable --insecure --shards 2 --listen 127.0.0.1:0 --unix {}",
        socket.display()
    );
    let first = Serving::start(&two.folders[0], &more);
    let (a, also_a) = (first.address.clone(), format!("unix:{}", socket.display()));
    let early = client(&[&a, &also_a]);
    assert_eq!(put(&early, 1).unwrap(), 1);
    let into = two.folders[1].display();
    let itself = format!("transfer 1 --from {a} --into {into} --to {also_a}");
    lode_line(&itself).failed(1, &["both source and target"]);
    // It has started again, and has been asked at one of its names since.
    first.stop();
    let first = Serving::start(&two.folders[0], &more.replace("127.0.0.1:0", &a));
    assert_eq!(put(&early, 2).unwrap(), 1);
    first.stop();
}
