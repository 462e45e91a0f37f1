//! Small pulls with a waiting client, beside large ones without a hurry.

use std::process::Child;
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig};
use lodestore_graph::NodeId;
use lodestore_schema::request::PullKind;

use crate::{metric, wait_until};
use testing::graph::{Source, WIDE};
use testing::process::{Serving, command};

const N_NODES: u32 = 20_000;

/// A process that ends with the test, however that does.
struct Bulk(Child);

impl Drop for Bulk {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns what half of the pulls of 100 rows take at most, one after the other.
fn half_take(client: &Client, kind: PullKind, time: Duration) -> Duration {
    let ids: Vec<_> = (0..100).map(|i| NodeId(i * 97 % N_NODES)).collect();
    let (mut rows, mut times, start) = (vec![0; 100 * WIDE], Vec::new(), Instant::now());
    while start.elapsed() < time {
        let before = Instant::now();
        let pulled = match kind {
            PullKind::Sync => client.sync_pull("wide", &ids, &mut rows),
            PullKind::Vector => client.vector_pull("wide", &ids, &mut rows),
        };
        pulled.unwrap();
        times.push(before.elapsed());
    }
    times.sort();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    println!(
        "{kind:?}: {} pulls, p50 {:?}, p90 {:?}, p99 {:?}",
        times.len(),
        at(50),
        at(90),
        at(99)
    );
    at(50)
}

/// Tests that fail where other programs slow the machine.
mod timing {
    use super::sync_passes_bulk;

    #[test]
    #[ignore = "measures time: ./x test runs it by itself"]
    fn a_sync_pull_does_not_wait_for_vector_pulls_to_have_their_fill() {
        sync_passes_bulk("");
    }

    #[test]
    #[ignore = "measures time: ./x test runs it by itself"]
    fn nor_do_its_reads_from_disk_wait_for_theirs() {
        sync_passes_bulk("--memory 0");
    }
}

/// Compares both kinds beside bulk, at a server with these arguments.
fn sync_passes_bulk(more: &str) {
    let source = Source::random(N_NODES, N_NODES);
    let graph = source.import("graph", 1, "hash");
    let args = format!("--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 1 {more}");
    let server = Serving::start(&graph, &args);
    let config = ClientConfig { deadline: Duration::from_secs(30), ..ClientConfig::default() };
    let client = Client::connect(&[&server.address], config).unwrap();
    let line = format!(
        "load --connect {} --connections 16 --rows 5000 --tensor wide --vector-share 1 --duration \
         120 --warm-up 0",
        server.address
    );
    let bulk = Bulk(command(line.split_whitespace()).spawn().unwrap());
    let n_sent = || metric(&server, "lodestore_sent_rows_total");
    let before = n_sent();
    wait_until("bulk goes", || n_sent() > before + 100_000.0);
    // The same rows of the same server at the same time, once as a batch and once as bulk among
    // other bulk. Other programs use the machine too, and affect both alike. The best of a few
    // looks.
    let mut best = f64::MAX;
    for _ in 0..5 {
        let as_bulk = half_take(&client, PullKind::Vector, Duration::from_secs(1));
        let as_batch = half_take(&client, PullKind::Sync, Duration::from_secs(1));
        best = best.min(as_batch.as_secs_f64() / as_bulk.as_secs_f64());
        if best < 0.25 {
            break;
        }
    }
    drop(bulk);
    assert!(best < 0.5, "a batch waits for {best} of the time that bulk does");
    server.stop();
}
