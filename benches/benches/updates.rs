//! Puts beside what the disk can sync, gathers with rows over the segment, opening with them, and
//! compaction beside a plain copy.
//!
//! Rows of 400 B in one partition. It does not measure several partitions, a server, or a disk that
//! others use. A sync is as expensive as the disk says; a virtual disk may say less than it should.

use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_benches::{
    Contestant, Rounds, feature_graph, is_asked_for, is_smoke, random_ids, row_of, shuffled_ids,
};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::{
    DeviceProfile, EmbeddedStore, Folding, Graph, LiveGraph, LiveMode, OpenOptions, ReadPlan,
    ReaderKind, RowIdx, RowReader, View,
};

const WIDTH: u32 = 100;
const ROW_BYTES: usize = WIDTH as usize * 4;
const BATCH_ROWS: usize = 15_000;
/// Batches of one round.
const N_BATCHES: usize = 16;

/// How much is done.
#[derive(Clone, Copy)]
struct Scale {
    n_nodes: u32,
    budget: Duration,
}

fn main() {
    let scale = if is_smoke() {
        Scale { n_nodes: 20_000, budget: Duration::from_millis(20) }
    } else {
        Scale { n_nodes: 1_000_000, budget: Duration::from_secs(3) }
    };
    if is_asked_for("puts") || is_asked_for("updates") {
        puts(scale);
    }
    if is_asked_for("versions") || is_asked_for("updates") {
        versions();
    }
    if is_asked_for("overlays") || is_asked_for("updates") {
        let overlays = [0, 1, 10].map(|percent| Overlaid::new(scale, percent));
        gathers(scale, &overlays);
        let [_, _, most] = overlays;
        most.open_again();
        most.compact();
    }
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

fn puts(scale: Scale) {
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

/// Rows over the segment in the bench of versions, whatever the number of versions.
const N_VERSIONED: usize = 10_000;

/// Look-ups and openings with the same rows over the segment, put for few versions or for many.
fn versions() {
    let n_nodes = 10 * N_VERSIONED as u32;
    let n_versions: &[usize] = if is_smoke() { &[1, 10] } else { &[1, 100, 10_000] };
    for &n_versions in n_versions {
        let dir = tempfile::tempdir().expect("a folder");
        let graph = feature_graph(dir.path(), n_nodes, 1, 1);
        let ids = shuffled_ids(n_nodes, N_VERSIONED);
        let live = open(&graph, LiveMode::Write);
        for ids in ids.chunks(N_VERSIONED / n_versions) {
            live.put_rows("feat", ids, &vec![1; ids.len() * 4]).expect("a put");
            live.commit_version().expect("a commit");
        }
        drop(live);
        let opening = best(|| drop(open(&graph, LiveMode::Read)));
        let live = open(&graph, LiveMode::Read);
        let tensor = live.tensor(PartId(0), 0).expect("a tensor");
        let current = tensor.current();
        let look_up = |rows: &[u32]| {
            let is_over = |row: &&u32| current.layer_of(RowIdx(**row)) > 0;
            let time = best(|| _ = std::hint::black_box(rows.iter().filter(is_over).count()));
            time.as_secs_f64() / rows.len() as f64 * 1e9
        };
        let over: Vec<u32> = ids.iter().map(|id| id.0).collect();
        let all: Vec<u32> = (0..n_nodes).collect();
        println!(
            "updates, {N_VERSIONED} rows of {n_nodes} over the segment in {n_versions} versions: \
             opening {:.1} ms, look-up of one of them {:.0} ns, of any row {:.0} ns",
            opening.as_secs_f64() * 1e3,
            look_up(&over),
            look_up(&all),
        );
    }
}

/// The shortest of several times.
fn best(mut each: impl FnMut()) -> Duration {
    let time = |_| {
        let start = Instant::now();
        each();
        start.elapsed()
    };
    (0..5).map(time).min().expect("five times")
}

/// Puts of neighbouring rows by several threads at once, per second.
fn put_rate(live: &LiveGraph, n_threads: u32, batch_rows: usize, scale: Scale) -> f64 {
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

/// The row that is put for a node.
fn new_row(node: NodeId) -> Vec<u8> {
    row_of(NodeId(node.0 ^ 0x5a5a), WIDTH)
}

/// A graph with committed rows over some of its rows, spread over all of them.
struct Overlaid {
    percent: usize,
    ids: Vec<NodeId>,
    graph: PathBuf,
    _dir: tempfile::TempDir,
}

impl Overlaid {
    fn new(scale: Scale, percent: usize) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let graph = feature_graph(dir.path(), scale.n_nodes, WIDTH, 1);
        let ids = shuffled_ids(scale.n_nodes, scale.n_nodes as usize / 100 * percent);
        let live = open(&graph, LiveMode::Write);
        for ids in ids.chunks(10_000) {
            let rows: Vec<u8> = ids.iter().flat_map(|&id| new_row(id)).collect();
            live.put_rows("feat", ids, &rows).expect("a put");
        }
        live.commit_version().expect("a commit");
        Self { percent, ids, graph, _dir: dir }
    }

    fn store(&self) -> EmbeddedStore {
        EmbeddedStore::over(open(&self.graph, LiveMode::Read), View::Latest).expect("a store")
    }

    fn open_again(&self) {
        for mode in [LiveMode::Read, LiveMode::Write] {
            let start = Instant::now();
            drop(open(&self.graph, mode));
            let (n_rows, seconds) = (self.ids.len(), start.elapsed().as_secs_f64());
            println!("updates, opening to {mode:?} with {n_rows} rows over: {seconds:.3} s");
        }
    }

    fn compact(&self) {
        let live = open(&self.graph, LiveMode::Write);
        let segment = live.tensor(PartId(0), 0).expect("a tensor").current();
        let segment = segment.base().segment().clone();
        let (path, n_bytes) = (segment.path().to_owned(), segment.layout().file_bytes() as f64);
        drop(segment);
        let copied = copy_seconds(&path);
        drop_cached(&path);
        let start = Instant::now();
        let mut progress = |_, _| ControlFlow::Continue(());
        let reports =
            live.compact(None, Some("feat"), Folding::All, &mut progress).expect("a compaction");
        let compacted = start.elapsed().as_secs_f64();
        assert_eq!(reports[0].rows, self.ids.len() as u64);
        println!(
            "updates, compaction of {:.0} MB with {} % over it: {:.0} MB/s, written and read back; \
             plain copy and sync: {:.0} MB/s",
            n_bytes / 1e6,
            self.percent,
            n_bytes / compacted / 1e6,
            n_bytes / copied / 1e6,
        );
        let store = EmbeddedStore::over(live, View::Latest).expect("a store");
        let mut out = vec![0; self.ids.len() * ROW_BYTES];
        store.gather("feat", &self.ids, &mut out).expect("rows");
        for (row, &id) in out.chunks_exact(ROW_BYTES).zip(&self.ids) {
            assert!(row == new_row(id), "row of node {id}");
        }
    }
}

/// Buffers of a thread.
struct Work {
    batches: Vec<Vec<NodeId>>,
    pairs: Vec<(RowIdx, u32)>,
    plan: ReadPlan,
    out: Vec<u8>,
}

fn gathers(scale: Scale, overlays: &[Overlaid; 3]) {
    let ids = random_ids(scale.n_nodes, N_BATCHES * BATCH_ROWS, 1);
    let batches = ids.chunks(BATCH_ROWS).map(|ids| ids.iter().copied().map(NodeId).collect());
    let (pairs, out) = (Vec::new(), vec![0; BATCH_ROWS * ROW_BYTES]);
    let work = Work { batches: batches.collect(), pairs, plan: ReadPlan::default(), out };
    let work = Mutex::new(work);
    let graph = Graph::open(&overlays[0].graph).expect("a graph");
    let reader = graph.reader(PartId(0), "feat").expect("a reader");
    let stores = overlays.each_ref().map(Overlaid::store);
    let alone = || routed(&graph, &reader, &mut work.lock().expect("no panic"));
    let through = |store: &EmbeddedStore| {
        let Work { batches, out, .. } = &mut *work.lock().expect("no panic");
        batches.iter().for_each(|ids| store.gather("feat", ids, out).expect("rows"));
    };
    let contestants: [Contestant<'_>; 4] = [
        ("routing and reader alone", Box::new(|_| alone())),
        ("nothing over the segment", Box::new(|_| through(&stores[0]))),
        ("1 % of the rows over it", Box::new(|_| through(&stores[1]))),
        ("10 % of the rows over it", Box::new(|_| through(&stores[2]))),
    ];
    println!("updates, gathers of {BATCH_ROWS} rows of {} from memory, one thread:", scale.n_nodes);
    let figures = Rounds::from_args(15, 1).run(&contestants);
    for ((name, _), figures) in contestants.iter().zip(figures) {
        let (time, share) = (figures.median, figures.share);
        let rows = (N_BATCHES * BATCH_ROWS) as f64 / time.as_secs_f64() / 1e6;
        println!("  {name:<26} {rows:>6.2} M rows/s, {share:.2} of the first");
    }
    // The last batch of the last store: every row is the old or the new one of its node.
    let Work { batches, out, .. } = &*work.lock().expect("no panic");
    for (row, &id) in out.chunks_exact(ROW_BYTES).zip(&batches[N_BATCHES - 1]) {
        assert!(row == row_of(id, WIDTH) || row == new_row(id), "row of node {id}");
    }
}

/// What a gather costs where nobody can put.
fn routed(graph: &Graph, reader: &dyn RowReader, work: &mut Work) {
    let profile = DeviceProfile::default();
    for ids in &work.batches {
        work.pairs.clear();
        for (&id, out_row) in ids.iter().zip(0u32..) {
            let (_, row) = graph.book().locate(id).expect("a node");
            work.pairs.push((RowIdx(row), out_row));
        }
        reader.gather(&work.pairs, &profile, &mut work.plan, &mut work.out).expect("rows");
    }
}

/// Seconds of a plain copy with a sync, from a file that is not cached.
fn copy_seconds(path: &Path) -> f64 {
    let copy = path.with_extension("copy");
    drop_cached(path);
    let start = Instant::now();
    fs::copy(path, &copy).expect("room for a copy");
    File::open(&copy).and_then(|file| file.sync_all()).expect("a sync");
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_file(&copy).expect("the copy");
    seconds
}

/// Makes the next read of a file come from the disk.
fn drop_cached(path: &Path) {
    let file = File::open(path).expect("a file");
    file.sync_all().expect("a sync");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
}
