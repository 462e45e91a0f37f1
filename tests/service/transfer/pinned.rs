//! Readers of a version whose partitions move.
//!
//! The server that takes one in may have kept the version already, of the partitions that it had.

use std::time::Duration;

use lodestore_client::transfer::PartitionTransfer;
use lodestore_client::{Client, ClientConfig, Pin};
use lodestore_graph::NodeId;

use crate::transfer::{N_NODES, Two, plan};
use testing::process::Serving;
use testing::workload::{ROW_BYTES, put_row};

fn client(servers: &[Serving], pin: bool) -> Client {
    let addresses: Vec<&str> = servers.iter().map(|it| it.address.as_str()).collect();
    let deadline = Duration::from_secs(10);
    let config =
        ClientConfig { deadline, pin: pin.then_some(Pin::Newest), ..ClientConfig::default() };
    Client::connect(&addresses, config).unwrap()
}

fn all_nodes() -> Vec<NodeId> {
    (0..N_NODES).map(NodeId).collect()
}

/// Fails unless every row is that of a turn.
fn assert_turn(client: &Client, turn: u32, when: &str) {
    let mut out = vec![0; N_NODES as usize * ROW_BYTES];
    client.sync_pull("feat", &all_nodes(), &mut out).unwrap_or_else(|it| panic!("{when}: {it}"));
    for (node, row) in all_nodes().into_iter().zip(out.chunks_exact(ROW_BYTES)) {
        assert!(*row == put_row(node, turn), "{when}: node {node}");
    }
}

#[test]
fn a_pinned_reader_continues_after_each_move_and_so_does_a_new_one() {
    let two = Two::new();
    let servers = [two.serve(0, "127.0.0.1:0"), two.serve(1, "127.0.0.1:0")];
    let move_part = |part: u16| {
        let plan = plan(&servers[0], part, &two.folders[1], Some(&servers[1]));
        PartitionTransfer::run(plan, &mut |_, _| {}).unwrap();
    };
    move_part(0);
    // Both servers keep the version from here on, each of the partitions that it has.
    let pinned = client(&servers, true);
    assert_turn(&pinned, 0, "before the move");
    move_part(1);
    assert_turn(&pinned, 0, "after a move without a commit");
    assert_turn(&client(&servers, true), 0, "a new reader of the same version");

    let writing = client(&servers, false);
    let rows: Vec<u8> = all_nodes().iter().flat_map(|&node| put_row(node, 1)).collect();
    writing.put_rows("feat", &all_nodes(), &rows).unwrap();
    writing.commit().unwrap();
    move_part(2);
    assert_turn(&pinned, 0, "the file of the version before came too");
    assert_turn(&client(&servers, true), 1, "the newest version");
    drop([pinned, writing]);
    servers.into_iter().for_each(Serving::stop);
    two.assert_whole();
}
