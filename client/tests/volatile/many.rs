//! Concurrent publishers and pullers.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// The last stamp of each publisher.
const LAST: Stamp = 2_000;
/// Nodes of each publisher.
const N_EACH: u32 = 40;

/// Publishes every stamp of a range, and records each once it is published.
fn publish_all(address: &str, ids: &[NodeId], newest: &AtomicU32) {
    let client = connect(&[address], LONG);
    let mut publisher = client.publisher();
    let range = ids[0].0..ids[0].0 + N_EACH;
    publisher.claim("h1", &[range]).unwrap();
    for stamp in 1..=LAST {
        publisher.publish("h1", ids, &rows_of(ids, stamp), stamp).unwrap();
        newest.store(stamp, Ordering::Release);
    }
}

/// Pulls until the last stamp is published, and checks each row.
fn pull_all(client: &Client, seed: u64, newest: &[AtomicU32]) -> u32 {
    let mut state = seed;
    let mut below = |bound: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as u32 % bound
    };
    let mut n_pulls = 0;
    loop {
        let all = newest.iter().map(|of| of.load(Ordering::Acquire)).min().unwrap();
        // A stamp that is published, has just been published, or is not published yet.
        let min_stamp = (all + 2).saturating_sub(below(5)).clamp(1, LAST);
        let ids: Vec<NodeId> = (0..16).map(|_| NodeId(below(2 * N_EACH))).collect();
        let mut out = vec![0xEE; ids.len() * ROW_BYTES];
        let wanted = StampWanted::awaited(min_stamp);
        let pulled = client.pull_volatile("h1", &ids, wanted, &mut out).unwrap();
        assert!(pulled.is_whole(), "every stamp is published in time");
        check(&ids, &(out, pulled), min_stamp);
        n_pulls += 1;
        if all == LAST {
            return n_pulls;
        }
    }
}

#[test]
fn no_row_is_torn_or_older_than_required_with_several_publishers_and_pullers() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, 2, 1);
    let unix = dir.path().join("lode.sock");
    let config = ServerConfig { unix: Some(unix.clone()), ..config(&graph, &["h1:60xf32/40"]) };
    let (server, address) = start(&config);
    let unix = format!("unix:{}", unix.display());
    let newest = [AtomicU32::new(0), AtomicU32::new(0)];
    let n_pulls: u32 = std::thread::scope(|scope| {
        for part in 0..2 {
            let (newest, address) = (&newest[part as usize], &address);
            let ids: Vec<NodeId> = (part * N_EACH..(part + 1) * N_EACH).map(NodeId).collect();
            scope.spawn(move || publish_all(address, &ids, newest));
        }
        let pullers: Vec<_> = [&address, &unix, &unix, &address]
            .into_iter()
            .zip(0..)
            .map(|(address, seed)| {
                let newest = &newest;
                scope.spawn(move || pull_all(&connect(&[address], LONG), seed, newest))
            })
            .collect();
        pullers.into_iter().map(|puller| puller.join().unwrap()).sum()
    });
    assert!(n_pulls > 1_000, "{n_pulls} pulls during {LAST} publications of two publishers");
    server.stop().unwrap();
}

#[test]
fn many_waiting_pulls_are_all_answered() {
    let dir = tempfile::tempdir().unwrap();
    let graph = feature_graph(dir.path(), N_NODES, 2, 1);
    let config = ServerConfig { n_shards: 1, ..config(&graph, &["h1:60xf32"]) };
    let (server, address) = start(&config);
    let settings = || ClientConfig { deadline: LONG, ..ClientConfig::default() };
    let client = Client::connect(&[&address], settings()).unwrap();
    let n_waiting = 60;
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..n_waiting)
            .map(|at| {
                let client = &client;
                scope.spawn(move || {
                    let ids = [NodeId(at)];
                    let found = pull(client, &ids, StampWanted::awaited(1)).unwrap();
                    check(&ids, &found, 1);
                    found.1.is_whole()
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        let mut publisher = client.publisher();
        publisher.claim("h1", &[0..N_NODES]).unwrap();
        let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
        publisher.publish("h1", &ids, &rows_of(&ids, 1), 1).unwrap();
        assert!(waiting.into_iter().all(|one| one.join().unwrap()));
    });
    server.stop().unwrap();
}
