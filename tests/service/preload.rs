//! Rows that a server loads after its start: all of a table, or those that were hot before.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lodestore_client::{Client, ClientConfig};
use lodestore_graph::NodeId;

use crate::{metric, wait_until};
use testing::Numbers;
use testing::http::get;
use testing::names_in;
use testing::process::{Serving, lode, lode_line};
use testing::workload::{EndOnDrop, N_WRITERS, ROW_BYTES, Workload, known_graph};

const N_NODES: u32 = 9000;
const N_PARTS: u16 = 3;
/// Starts over which rows change while they are loaded.
const ROUNDS: u64 = 3;

fn start(graph: &Path, more: &str) -> Serving {
    let more = format!("--listen 127.0.0.1:0 --metrics 127.0.0.1:0 --shards 2 {more}");
    Serving::start(graph, &more)
}

fn wait_until_loaded(server: &Serving) {
    wait_until("all is loaded", || get(&server.metrics, "/readyz").body == "ready\n");
}

/// Returns the bytes that were loaded ahead, and asserts that they are all that were to be.
fn preloaded(server: &Serving) -> f64 {
    let done = metric(server, "lodestore_preloaded_bytes");
    assert_eq!(done, metric(server, "lodestore_preload_bytes"));
    done
}

/// Pulls all rows, or panics over one that is wrong; returns the reads from disk that it took.
fn reads_of(server: &Serving, load: &Workload, ids: &[NodeId]) -> f64 {
    let before = metric(server, "lodestore_disk_reads_total");
    let client = Client::connect(&[&server.address], ClientConfig::default()).unwrap();
    load.check(&client, ids);
    metric(server, "lodestore_disk_reads_total") - before
}

fn all_ids() -> Vec<NodeId> {
    (0..N_NODES).map(NodeId).collect()
}

#[test]
fn a_table_that_fits_is_loaded_and_pulls_read_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let graph = known_graph(dir.path(), N_NODES, N_PARTS);
    let load = Workload::new(N_NODES);
    for (preload, n_bytes) in [
        ("", N_NODES as usize * (ROW_BYTES + 8)),
        ("--preload auto", N_NODES as usize * (ROW_BYTES + 8)),
        ("--preload feat", N_NODES as usize * ROW_BYTES),
    ] {
        let server = start(&graph, &format!("--memory 64MiB {preload}"));
        wait_until_loaded(&server);
        assert_eq!(preloaded(&server), n_bytes as f64, "{preload}");
        let stat = lode_line(&format!("stat {}", server.address)).succeeded().stdout;
        assert!(stat.contains("preloaded: "), "{stat}");
        assert_eq!(metric(&server, "lodestore_tier_misses_total"), 0.0);
        assert_eq!(reads_of(&server, &load, &all_ids()), 0.0, "{preload}");
        assert_eq!(metric(&server, "lodestore_tier_misses_total"), 0.0);
        assert!(!graph.join("hot-rows").exists());
        server.stop();
    }
    let server = start(&graph, "--memory 64MiB --preload none");
    assert_eq!(preloaded(&server), 0.0);
    assert!(reads_of(&server, &load, &all_ids()) > 0.0);
    server.stop();
    let line = format!("serve {} --preload feat,nothing --listen 127.0.0.1:0", graph.display());
    lode(line.split_whitespace()).failed(1, &["no tensor `nothing` to preload", "feat"]);
    for (flags, message) in [
        ("--preload none,feat", "expected none alone"),
        ("--state-dir state", "--state-dir is for rows that --preload auto"),
        ("--preload none --state-dir state", "--state-dir is for rows that --preload auto"),
    ] {
        let line = format!("serve {} {flags} --listen 127.0.0.1:0", graph.display());
        lode(line.split_whitespace()).failed(2, &[message]);
    }
}

/// A row that was put while the one before was read never comes back.
#[test]
fn rows_that_change_while_they_are_loaded_are_never_old() {
    const N_ROWS: u32 = 240_000;
    let dir = tempfile::tempdir().unwrap();
    let graph = known_graph(dir.path(), N_ROWS, N_PARTS);
    let load = Workload::new(N_ROWS);
    let n_puts = AtomicU64::new(0);
    for round in 0..ROUNDS {
        let server = start(&graph, "--memory 256MiB --writable --insecure --preload auto");
        let address = [server.address.clone()];
        let connect = || Client::connect(&address, ClientConfig::default()).unwrap();
        let is_loaded = || get(&server.metrics, "/readyz").body == "ready\n";
        std::thread::scope(|scope| {
            for writer in 0..N_WRITERS {
                let (load, n_puts) = (&load, &n_puts);
                scope.spawn(move || {
                    let client = connect();
                    // Beyond the end of loading, so that some are put all along.
                    let until = Instant::now() + Duration::from_millis(1500);
                    while Instant::now() < until {
                        load.try_put(&client, writer).unwrap();
                        n_puts.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let mut numbers = Numbers(round);
            let client = connect();
            while !is_loaded() {
                let ids = load.some_ids(&mut numbers, &[200]);
                load.check(&client, &ids);
            }
        });
        wait_until_loaded(&server);
        load.check_all(&connect());
        lode_line(&format!("compact --connect {}", server.address)).succeeded();
        load.check_all(&connect());
        server.stop();
    }
    assert!(n_puts.into_inner() > 10 * ROUNDS);
}

/// Returns the file of each partition.
fn hot_files(graph: &Path) -> Vec<PathBuf> {
    let dir = graph.join("hot-rows");
    names_in(&dir).iter().map(|name| dir.join(name)).collect()
}

#[test]
fn a_tier_that_is_smaller_loads_the_rows_that_were_hot() {
    let dir = tempfile::tempdir().unwrap();
    let graph = known_graph(dir.path(), N_NODES, N_PARTS);
    let load = Workload::new(N_NODES);
    let _end = EndOnDrop(&load);
    // Some in each partition, far apart.
    let hot: Vec<NodeId> = (0..N_NODES).step_by(9).map(NodeId).collect();
    let small = "--memory 512KiB --preload auto";
    let server = start(&graph, small);
    assert_eq!(preloaded(&server), 0.0, "nothing is remembered");
    assert!(reads_of(&server, &load, &hot) > 0.0);
    assert_eq!(reads_of(&server, &load, &hot), 0.0, "they fit");
    server.stop();
    assert_eq!(hot_files(&graph).len(), usize::from(N_PARTS));
    lode(["verify".as_ref(), graph.as_os_str()]).succeeded();

    let server = start(&graph, small);
    wait_until_loaded(&server);
    assert_eq!(preloaded(&server), (hot.len() * ROW_BYTES) as f64);
    assert_eq!(reads_of(&server, &load, &hot), 0.0);
    server.stop();

    // A file that cannot be used is named, and ignored.
    let files = hot_files(&graph);
    let mut bytes = std::fs::read(&files[0]).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&files[0], bytes).unwrap();
    std::fs::copy(&files[2], &files[1]).unwrap();
    let server = start(&graph, small);
    wait_until_loaded(&server);
    let left = preloaded(&server);
    assert!(left > 0.0 && left < (hot.len() * ROW_BYTES / 2) as f64, "one is left: {left}");
    assert!(reads_of(&server, &load, &all_ids()) > 0.0);
    let log = server.stop_and_take_log();
    assert!(log.contains("damaged: expected checksum"), "{log}");
    assert!(log.contains("expected partition 1, found 2"), "{log}");
}

#[test]
fn rows_are_remembered_in_another_folder_where_the_graph_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let graph = known_graph(dir.path(), N_NODES, N_PARTS);
    let state = dir.path().join("state");
    let load = Workload::new(N_NODES);
    let _end = EndOnDrop(&load);
    let hot: Vec<NodeId> = (0..N_NODES).step_by(11).map(NodeId).collect();
    let more = format!("--memory 512KiB --preload feat --state-dir {}", state.display());
    let server = start(&graph, &more);
    wait_until_loaded(&server);
    // Named, and nothing remembered: what fits of it.
    let filled = preloaded(&server);
    assert!(filled > 0.0 && filled < (N_NODES as usize * ROW_BYTES) as f64, "{filled}");
    assert_eq!(metric(&server, "lodestore_tier_evictions_total"), 0.0, "no row went for them");
    for _ in 0..3 {
        reads_of(&server, &load, &hot);
    }
    server.stop();
    assert!(!graph.join("hot-rows").exists());
    assert_eq!(names_in(&state).len(), usize::from(N_PARTS));
    let server = start(&graph, &more);
    wait_until_loaded(&server);
    assert_eq!(reads_of(&server, &load, &hot), 0.0);
    // A folder that cannot be made is said, and nothing else happens.
    server.stop();
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::write(&state, "").unwrap();
    let server = start(&graph, &more);
    wait_until_loaded(&server);
    reads_of(&server, &load, &hot);
    let log = server.stop_and_take_log();
    assert!(log.contains("cannot save resident rows"), "{log}");
}
