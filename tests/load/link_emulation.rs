//! `lode-lab shape`: rows come back as they are, at the rate and after the delay that were asked
//! for.

use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig, PullKind, RowSource};
use lodestore_graph::NodeId;

use testing::graph::{Source, WIDE};
use testing::process::{Serving, lode_line};

const N_NODES: u32 = 600;

fn client(address: &str) -> Client {
    let config = ClientConfig { deadline: Duration::from_secs(60), ..ClientConfig::default() };
    Client::connect(&[address], config).unwrap()
}

/// Returns all rows of `wide`, and how long they took.
fn pull(client: &Client) -> (Vec<u8>, Duration) {
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut rows = vec![0; ids.len() * WIDE];
    let start = Instant::now();
    client.pull("wide", &ids, &mut rows, PullKind::Vector).unwrap();
    (rows, start.elapsed())
}

#[test]
fn impossible_links_are_refused() {
    let refused = |line: &str, code, parts: &[&str]| {
        lode_line(line).failed(code, parts);
    };
    refused("shape 127.0.0.1:9 --at nowhere", 2, &["127.0.0.2", "unix:/tmp/far.sock"]);
    refused("shape 127.0.0.1:9 --at 127.0.0.2 --rate 10GB", 2, &["10Gbit"]);
    refused("shape 127.0.0.1:9 --at 127.0.0.2 --delay 2h", 2, &["100us"]);
    refused("shape 127.0.0.1:9 --at 127.0.0.2", 1, &["127.0.0.1:9"]);
    let source = Source::random(50, 100);
    let server = Serving::start(&source.import("graph", 1, "hash"), "--listen 127.0.0.1:0");
    let line = format!("shape {} --at unix:{}", server.address, source.file("s").display());
    refused(&line, 1, &["cannot be had", "127.0.0.2"]);
    // The server itself is there.
    refused(&format!("shape {} --at 127.0.0.1", server.address), 1, &["cannot listen"]);
}

/// Tests that fail where other programs slow the machine.
mod timing {
    use super::*;

    fn check(server: &str, at: &str) {
        let (expected, _) = pull(&client(server));
        let shaped = Serving::start_command(&format!(
            "shape {server} --at {at} --rate 80Mbit --delay 20ms --json"
        ));
        let far = client(&shaped.address);
        let bytes_per_second = 80e6 / 8.0;
        for _ in 0..2 {
            let (rows, took) = pull(&far);
            assert!(rows == expected, "through {at}");
            let least = rows.len() as f64 / bytes_per_second + 0.040;
            let took = took.as_secs_f64();
            assert!(took >= 0.95 * least, "{took} s, but the link takes {least} s");
            assert!(took < 4.0 * least, "{took} s, where the link takes {least} s");
        }
        let start = Instant::now();
        far.pull("label", &[NodeId(1)], &mut [0; 8], PullKind::Sync).unwrap();
        let took = start.elapsed();
        assert!(
            (Duration::from_millis(40)..Duration::from_millis(400)).contains(&took),
            "{took:?}"
        );
        drop(far);
        shaped.stop();
    }

    #[test]
    #[ignore = "measures time: ./x test runs it by itself"]
    fn a_link_has_its_rate_and_its_delay_and_changes_no_row() {
        let source = Source::random(N_NODES, 2000);
        let graph = source.import("graph", 2, "hash");
        let socket = source.file("near.sock");
        let more = format!("--listen 127.0.0.1:0 --unix {} --shards 2", socket.display());
        let server = Serving::start(&graph, &more);
        check(&server.address, "127.0.0.9");
        let far = format!("unix:{}", source.file("far.sock").display());
        check(&format!("unix:{}", socket.display()), &far);
        assert!(!source.file("far.sock").exists() && !source.file("far.sock.0").exists());
        server.stop();
    }
}
