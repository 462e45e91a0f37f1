//! Small pulls that somebody waits for, beside large ones that are to be there some time.

use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig};
use lodestore_graph::NodeId;

use crate::support::graph::{Source, WIDE};
use crate::support::process::{Serving, command};
use crate::wait_until;

const N_NODES: u32 = 20_000;

/// Times of pulls of 100 rows one after the other, ascending.
fn pulls(client: &Client, time: Duration) -> Vec<Duration> {
    let ids: Vec<_> = (0..100).map(|i| NodeId(i * 97 % N_NODES)).collect();
    let (mut rows, mut times, start) = (vec![0; 100 * WIDE], Vec::new(), Instant::now());
    while start.elapsed() < time {
        let before = Instant::now();
        client.sync_pull("wide", &ids, &mut rows).unwrap();
        times.push(before.elapsed());
    }
    times.sort();
    times
}

#[test]
fn a_sync_pull_does_not_wait_for_vector_pulls_to_have_their_fill() {
    let source = Source::random(N_NODES, N_NODES);
    let graph = source.import("graph", 1, "hash");
    let server = Serving::start(&graph, "--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 1");
    let client = Client::connect(&[&server.address], ClientConfig::default()).unwrap();
    pulls(&client, Duration::from_millis(300));
    let line = format!(
        "load --connect {} --connections 16 --rows 5000 --tensor wide --vector-share 1 --duration 60 \
         --warm-up 0",
        server.address
    );
    let mut bulk = command(line.split_whitespace()).spawn().unwrap();
    let n_sent = || crate::metric(&server, "lodestore_sent_rows_total");
    let before = n_sent();
    wait_until("bulk goes", || n_sent() > before + 100_000.0);
    // Others use the machine too: the best of a few looks.
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let times = pulls(&client, Duration::from_secs(1));
        let at = |share: usize| times[times.len() * share / 100];
        println!(
            "{} pulls beside bulk: p50 {:?}, p90 {:?}, p99 {:?}",
            times.len(),
            at(50),
            at(90),
            at(99)
        );
        best = best.min(at(90));
    }
    bulk.kill().unwrap();
    bulk.wait().unwrap();
    assert!(best < Duration::from_millis(30), "{best:?}");
    server.stop();
}
