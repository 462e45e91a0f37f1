//! Servers that come, go and move, and clients that have nothing but the map.

use std::thread;
use std::time::Duration;

use lodestore_client::ClientConfig;
use lodestore_client::transfer::{PartitionTransfer, TransferPlan};
use lodestore_graph::PartId;
use serde_json::json;

use crate::{N_NODES, begin, check, client, eventually, serve};
use testing::workload::{EndOnDrop, N_WRITERS, Workload};

#[test]
fn a_server_is_in_the_map_while_it_runs_with_what_it_serves() {
    let Some((engine, _dir, graph)) = begin() else { return };
    let (one, two) = (serve(&engine, &graph, "--parts 0,1"), serve(&engine, &graph, "--parts 2"));
    eventually("both are registered", || engine.servers().len() == 2);
    let mut servers = engine.servers();
    servers.sort_by_key(|server| server["parts"].to_string());
    assert_eq!(servers[0]["address"], one.address);
    assert_eq!((&servers[0]["parts"], &servers[1]["parts"]), (&json!([0, 1]), &json!([2])));
    assert_eq!(servers[0]["version"], 1);
    let busy = servers[0]["busy"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&busy), "{busy}");
    let client = client(&engine, Duration::from_secs(10)).unwrap();
    check(&client);
    two.stop();
    assert_eq!(engine.servers().len(), 1, "a server that stops leaves immediately");
    one.kill();
    eventually("who was killed leaves with its lease", || engine.servers().is_empty());
}

#[test]
fn clients_follow_a_server_to_another_port_and_a_partition_to_another_server() {
    let Some((engine, dir, graph)) = begin() else { return };
    let second = dir.path().join("second");
    std::fs::create_dir(&second).unwrap();
    std::fs::copy(graph.join("graph.toml"), second.join("graph.toml")).unwrap();
    let load = Workload::new(N_NODES);
    let first = serve(&engine, &graph, "--local-parts --writable --insecure");
    let other = thread::scope(|scope| {
        let fails = |error: &lodestore_client::ClientError| panic!("a client received: {error}");
        for writer in 0..N_WRITERS {
            let client = client(&engine, Duration::from_secs(20)).unwrap();
            let load = &load;
            scope.spawn(move || load.write(&client, writer, &fails));
        }
        let reader = client(&engine, Duration::from_secs(20)).unwrap();
        let all = &load;
        scope.spawn(move || all.read(&reader, 5, &fails));
        let end = EndOnDrop(&load);
        thread::sleep(Duration::from_millis(100));
        // A server that no client knows from its arguments.
        let other = serve(&engine, &second, "--local-parts --writable --insecure");
        for part in 0..3 {
            let plan = TransferPlan {
                from: first.address.parse().unwrap(),
                part: PartId(part),
                into: second.clone(),
                to: Some(other.address.parse().unwrap()),
                unserved: false,
                keep: false,
                config: ClientConfig::default(),
            };
            PartitionTransfer::run(plan, &mut |_, _| {}).unwrap();
            thread::sleep(Duration::from_millis(100));
        }
        // The first has nothing left, and goes; the other comes back at another port.
        first.stop();
        thread::sleep(Duration::from_millis(100));
        other.kill();
        let other = serve(&engine, &second, "--local-parts --writable --insecure");
        thread::sleep(Duration::from_millis(500));
        drop(end);
        // A put waits until the old port has left the map with its lease.
        other
    });
    load.check_all(&client(&engine, Duration::from_secs(10)).unwrap());
    other.stop();
}
