//! Puts beside what the disk can sync, gathers with rows over the segment, opening with them, and
//! compaction beside a plain copy.
//!
//! Rows of 400 B in one partition. It does not measure several partitions, a server, or a disk that
//! others use. A sync is as expensive as the disk says; a virtual disk may say less than it should.

use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_benches::{feature_graph, row_of, shuffled_ids};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::{
    DeviceProfile, EmbeddedStore, Graph, LiveGraph, LiveMode, OpenOptions, ReadPlan, ReaderKind,
    RowIdx, RowReader, View,
};

const WIDTH: u32 = 100;
const ROW_BYTES: usize = WIDTH as usize * 4;
const BATCH_ROWS: usize = 15_000;

/// How much is done.
struct Scale {
    n_nodes: u32,
    budget: Duration,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_smoke = args.iter().any(|arg| arg == "--test");
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    if !filters.is_empty() && !filters.iter().any(|filter| "updates".contains(*filter)) {
        return;
    }
    let scale = if is_smoke {
        Scale { n_nodes: 20_000, budget: Duration::from_millis(20) }
    } else {
        Scale { n_nodes: 1_000_000, budget: Duration::from_secs(3) }
    };
    puts(&scale);
    gathers_and_compaction(&scale);
}

fn open(dir: &Path, mode: LiveMode) -> Arc<LiveGraph> {
    let graph = Graph::open(dir).expect("a graph");
    let options = OpenOptions { reader: ReaderKind::Mapped };
    Arc::new(LiveGraph::open(graph, None, mode, &options).expect("it opens"))
}

/// Calls `each` until the time is over; gives calls per second.
fn rate(budget: Duration, mut each: impl FnMut()) -> f64 {
    let (start, mut n) = (Instant::now(), 0u32);
    while n == 0 || start.elapsed() < budget {
        each();
        n += 1;
    }
    f64::from(n) / start.elapsed().as_secs_f64()
}

/// Appends of so many bytes with a sync after each, per second.
fn plain_syncs(dir: &Path, n_bytes: usize, budget: Duration) -> f64 {
    let mut file = File::create(dir.join("plain")).expect("a file");
    let bytes = vec![7; n_bytes];
    let rate = rate(budget, || {
        file.write_all(&bytes).and_then(|()| file.sync_data()).expect("room on the disk");
    });
    fs::remove_file(dir.join("plain")).expect("the file");
    rate
}

fn puts(scale: &Scale) {
    for batch_rows in [1, 100, 10_000] {
        let dir = tempfile::tempdir().expect("a folder");
        let graph = feature_graph(dir.path(), scale.n_nodes, WIDTH, 1);
        let syncs = plain_syncs(dir.path(), batch_rows * ROW_BYTES, scale.budget);
        println!("updates, puts of {batch_rows} rows: write and fdatasync {syncs:.0}/s");
        for n_threads in [1, 8, 64] {
            let live = open(&graph, LiveMode::Write);
            let puts = put_rate(&live, n_threads, batch_rows, scale);
            println!(
                "  {n_threads:>2} threads: {puts:>8.0} puts/s, {:>9.0} rows/s, {:.2} of the syncs",
                puts * batch_rows as f64,
                puts / syncs,
            );
        }
    }
}

/// Puts of neighbouring rows by several threads at once, per second.
fn put_rate(live: &LiveGraph, n_threads: u32, batch_rows: usize, scale: &Scale) -> f64 {
    let (start, n_puts) = (Instant::now(), AtomicU32::new(0));
    let put = |thread: u32| {
        let mut first = thread * (scale.n_nodes / 64);
        while start.elapsed() < scale.budget {
            let ids: Vec<NodeId> =
                (0..batch_rows as u32).map(|i| NodeId((first + i) % scale.n_nodes)).collect();
            let rows = vec![first as u8; ids.len() * ROW_BYTES];
            live.put_rows("feat", &ids, &rows).expect("a put");
            n_puts.fetch_add(1, Ordering::Relaxed);
            first = (first + batch_rows as u32) % scale.n_nodes;
        }
    };
    thread::scope(|scope| {
        for thread in 0..n_threads {
            scope.spawn(move || put(thread));
        }
    });
    f64::from(n_puts.load(Ordering::Relaxed)) / start.elapsed().as_secs_f64()
}

fn gathers_and_compaction(scale: &Scale) {
    let dir = tempfile::tempdir().expect("a folder");
    let graph = feature_graph(dir.path(), scale.n_nodes, WIDTH, 1);
    println!("updates, gathers of {BATCH_ROWS} rows of {} from memory:", scale.n_nodes);
    println!("  {:<36} {:>7.2} M rows/s", "reader alone", reader_alone(&graph, scale) / 1e6);
    let live = open(&graph, LiveMode::Write);
    report_gathers("no overlay", &live, scale);
    let mut n_put = 0;
    for percent in [1, 10] {
        let n_rows = scale.n_nodes as usize / 100 * percent;
        put_spread(&live, n_put, n_rows);
        n_put = n_rows;
        report_gathers(&format!("{percent} % overlaid, just put"), &live, scale);
    }
    live.commit_version().expect("a commit");
    drop(live);
    opening(&graph, n_put);
    let live = open(&graph, LiveMode::Write);
    report_gathers("10 % overlaid, opened again", &live, scale);
    compaction(&live, n_put);
    report_gathers("after the compaction", &live, scale);
}

/// Nodes in an order without locality: what is put is spread over the segment.
fn spread(scale_nodes: u32, n: usize) -> Vec<NodeId> {
    shuffled_ids(scale_nodes, n)
}

/// The row that is put for a node.
fn new_row(node: NodeId) -> Vec<u8> {
    row_of(NodeId(node.0 ^ 0x5a5a), WIDTH)
}

fn put_spread(live: &LiveGraph, from: usize, to: usize) {
    let ids = spread(live.graph().book().n_nodes(), to);
    for ids in ids[from..].chunks(10_000) {
        let rows: Vec<u8> = ids.iter().flat_map(|&id| new_row(id)).collect();
        live.put_rows("feat", ids, &rows).expect("a put");
    }
}

/// Batches of random nodes, as many as make the caches of the processor useless.
fn batches(n_nodes: u32) -> Vec<Vec<NodeId>> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        NodeId(((state >> 33) % u64::from(n_nodes)) as u32)
    };
    (0..16).map(|_| (0..BATCH_ROWS).map(|_| next()).collect()).collect()
}

/// What a gather costs without views: routing, and the reader.
fn reader_alone(graph: &Path, scale: &Scale) -> f64 {
    let graph = Graph::open(graph).expect("a graph");
    let reader = graph.reader(PartId(0), "feat").expect("a reader");
    let (mut plan, mut out) = (ReadPlan::default(), vec![0; BATCH_ROWS * ROW_BYTES]);
    let (profile, mut rows) = (DeviceProfile::default(), Vec::new());
    let batches = batches(scale.n_nodes);
    let mut gather = |ids: &Vec<NodeId>| {
        rows.clear();
        for (&id, out_row) in ids.iter().zip(0u32..) {
            let (_, row) = graph.book().locate(id).expect("a node");
            rows.push((RowIdx(row), out_row));
        }
        reader.gather(&rows, &profile, &mut plan, &mut out).expect("rows");
    };
    batches.iter().for_each(&mut gather);
    rate(scale.budget, || batches.iter().for_each(&mut gather)) * (16 * BATCH_ROWS) as f64
}

fn report_gathers(what: &str, live: &Arc<LiveGraph>, scale: &Scale) {
    let store = EmbeddedStore::over(Arc::clone(live), View::Latest).expect("a store");
    let batches = batches(scale.n_nodes);
    let mut out = vec![0; BATCH_ROWS * ROW_BYTES];
    let mut gather = |ids: &Vec<NodeId>| store.gather("feat", ids, &mut out).expect("rows");
    batches.iter().for_each(&mut gather);
    let rate = rate(scale.budget, || batches.iter().for_each(&mut gather));
    println!("  {what:<36} {:>7.2} M rows/s", rate * (16 * BATCH_ROWS) as f64 / 1e6);
    // The last batch: every row is the old or the new one of its node.
    for (row, &id) in out.chunks_exact(ROW_BYTES).zip(&batches[15]) {
        assert!(row == row_of(id, WIDTH) || row == new_row(id), "row of node {id}");
    }
}

fn opening(graph: &Path, n_rows: usize) {
    for mode in [LiveMode::Read, LiveMode::Write] {
        let start = Instant::now();
        drop(open(graph, mode));
        let seconds = start.elapsed().as_secs_f64();
        println!("updates, opening for {mode:?} with {n_rows} rows overlaid: {seconds:.3} s");
    }
}

fn compaction(live: &LiveGraph, n_rows: usize) {
    let segment = live.tensor(PartId(0), 0).expect("a tensor").base().segment().clone();
    let (path, n_bytes) = (segment.path().to_owned(), segment.layout().file_bytes() as f64);
    drop(segment);
    let copy = path.with_extension("copy");
    drop_cached(&path);
    let start = Instant::now();
    fs::copy(&path, &copy).expect("room for a copy");
    File::open(&copy).and_then(|file| file.sync_all()).expect("a sync");
    let copied = start.elapsed().as_secs_f64();
    fs::remove_file(&copy).expect("the copy");
    drop_cached(&path);
    let start = Instant::now();
    let mut progress = |_, _| ControlFlow::Continue(());
    let reports = live.compact(None, Some("feat"), &mut progress).expect("a compaction");
    let compacted = start.elapsed().as_secs_f64();
    assert_eq!(reports[0].rows, n_rows as u64);
    println!(
        "updates, compaction of {:.0} MB with 10 % overlaid: {:.0} MB/s; plain copy and sync {:.0} \
         MB/s",
        n_bytes / 1e6,
        n_bytes / compacted / 1e6,
        n_bytes / copied / 1e6,
    );
}

/// Makes the next read of a file come from the disk.
fn drop_cached(path: &Path) {
    let file = File::open(path).expect("a file");
    file.sync_all().expect("a sync");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
}
