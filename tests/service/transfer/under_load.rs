//! A partition that moves to and fro under load.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_client::transfer::PartitionTransfer;
use lodestore_client::{Client, ClientError, RowSource};
use lodestore_graph::{NodeId, PartId};

use crate::transfer::{N_NODES, Two, plan};
use testing::process::lode_line;
use testing::workload::{EndOnDrop, N_WRITERS, ROW_BYTES, Workload};

/// Checks that under the load of this test only a moment without an owner may be reported.
fn nothing_fails(error: &ClientError) {
    panic!("a client learned of a move: {error}");
}

#[test]
fn clients_see_nothing_of_a_move_but_a_pause() {
    let (two, load) = (Two::new(), Workload::new(N_NODES));
    let servers = [two.serve(0, "127.0.0.1:0"), two.serve(1, "127.0.0.1:0")];
    let addresses: Vec<String> = servers.iter().map(|it| it.address.clone()).collect();
    let deadline = Duration::from_secs(20);
    let client = || load.client(&addresses, deadline).unwrap();
    let n_moves = if std::env::var_os("LODE_LONG").is_some() { 60 } else { 6 };
    thread::scope(|scope| {
        for writer in 0..N_WRITERS {
            let client = client();
            let load = &load;
            scope.spawn(move || load.write(&client, writer, &nothing_fails));
        }
        for seed in 1..3 {
            let client = client();
            let load = &load;
            scope.spawn(move || load.read(&client, seed, &nothing_fails));
        }
        let end = EndOnDrop(&load);
        let mover = client();
        for turn in 0..n_moves {
            let (from, to) = (turn % 2, (turn + 1) % 2);
            let plan = plan(&servers[from], 1, &two.folders[to], Some(&servers[to]));
            let stats = PartitionTransfer::run(plan, &mut |_, _| {}).unwrap();
            assert_eq!(two.owners(), [1; 3]);
            assert!(stats.files >= 4 && stats.sealed > Duration::ZERO, "{stats:?}");
            if turn % 3 == 2 {
                load.commit(&mover).unwrap();
                let runs = mover.compact().unwrap();
                mover.wait_for_compactions(&runs, &mut |_, _| {}).unwrap();
            }
            println!("{stats:?}");
            // Leftovers are removed, as an operator would do.
            for name in testing::names_in(&two.folders[from]) {
                if name.contains(".moved-") {
                    std::fs::remove_dir_all(two.folders[from].join(name)).unwrap();
                }
            }
        }
        drop(end);
    });
    let client = load_client(&load, &addresses);
    load.commit(&client).unwrap();
    load.check_all(&client);
    let counts = &load.counts;
    for count in [&counts.puts, &counts.pulls] {
        assert!(count.load(Ordering::Relaxed) > 20);
    }
    servers.into_iter().for_each(testing::process::Serving::stop);
    two.assert_whole();
}

/// A slow copy makes no client wait before its seal, and rows that are not committed move too.
#[test]
fn commits_and_folds_continue_while_a_partition_is_copied() {
    let (two, load) = (Two::new(), Workload::new(N_NODES));
    let servers = [two.serve(0, "127.0.0.1:0"), two.serve(1, "127.0.0.1:0")];
    let addresses: Vec<String> = servers.iter().map(|it| it.address.clone()).collect();
    let failures = |client: &Client| {
        let stats = client.stats().unwrap();
        stats.iter().flat_map(|(_, of)| &of.shards).map(|it| it.failures).sum::<u64>()
    };
    // Far shorter than the copy.
    let client = load.client(&addresses, Duration::from_millis(800)).unwrap();
    let mut moving =
        PartitionTransfer::begin(plan(&servers[0], 1, &two.folders[1], Some(&servers[1]))).unwrap();
    assert!(!moving.open().unwrap());
    let (start, n_commits) = (Instant::now(), AtomicUsize::new(0));
    thread::scope(|scope| {
        let end = EndOnDrop(&load);
        scope.spawn(|| {
            while !load.is_over() {
                load.try_put(&client, 0).unwrap();
                load.commit(&client).unwrap();
                let runs = client.compact().unwrap();
                client.wait_for_compactions(&runs, &mut |_, _| {}).unwrap();
                n_commits.fetch_add(1, Ordering::Relaxed);
            }
        });
        moving.fetch(&mut |_, _| thread::sleep(Duration::from_millis(500))).unwrap();
        drop(end);
    });
    let (took, n_commits) = (start.elapsed(), n_commits.into_inner());
    assert!(took > Duration::from_secs(2) && n_commits > 5, "{n_commits} in {took:?}");
    assert_eq!(failures(&client), 0, "no server has refused anything");

    for writer in 0..N_WRITERS {
        load.try_put(&client, writer).unwrap();
    }
    moving.seal().unwrap();
    moving.release().unwrap();
    let stats = moving.take().unwrap();
    assert!(stats.pending_bytes > 0 && stats.version > 5, "{stats:?}");
    // No pull sees them before their commit.
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let pull = || {
        let mut rows = vec![0; ids.len() * ROW_BYTES];
        client.sync_pull("feat", &ids, &mut rows).unwrap();
        let moved = client.book().range(PartId(1));
        rows[moved.start as usize * ROW_BYTES..moved.end as usize * ROW_BYTES].to_vec()
    };
    let (before, _) = (pull(), load.commit(&client).unwrap());
    assert_ne!(before, pull());
    load.check_all(&client);
    servers.into_iter().for_each(testing::process::Serving::stop);
    two.assert_whole();
}

#[test]
fn a_load_generator_follows_a_partition_and_counts_no_error() {
    let two = Two::new();
    let servers = [two.serve(0, "127.0.0.1:0"), two.serve(1, "127.0.0.1:0")];
    let connect = format!("--connect {} --connect {}", servers[0].address, servers[1].address);
    let verify = format!("--verify {}", two.folders[0].display());
    for window in [1, 4] {
        let line = format!(
            "load {connect} --connections 4 --window {window} --rows 300 --warm-up 0 --duration 4 --json"
        );
        // Rows can be compared for as long as their folder is there: the first time.
        let line = if window == 1 { format!("{line} {verify}") } else { line };
        let load = thread::spawn(move || lode_line(&line));
        thread::sleep(Duration::from_millis(1000));
        let (from, to) = if window == 1 { (0, 1) } else { (1, 0) };
        let plan = plan(&servers[from], 1, &two.folders[to], Some(&servers[to]));
        PartitionTransfer::run(plan, &mut |_, _| {}).unwrap();
        let report = load.join().unwrap().succeeded().json();
        assert_eq!(report["errors"], serde_json::json!({}), "{report}");
        assert!(report["rows"].as_f64().unwrap() > 10_000.0, "{report}");
        for name in testing::names_in(&two.folders[from]) {
            if name.contains(".moved-") {
                std::fs::remove_dir_all(two.folders[from].join(name)).unwrap();
            }
        }
    }
}

fn load_client(load: &Workload, addresses: &[String]) -> lodestore_client::Client {
    let _ = load;
    let config = lodestore_client::ClientConfig::default();
    lodestore_client::Client::connect(addresses, config).unwrap()
}
