//! Updates of a graph. Puts are beside what the disk can sync, commits beside a plain write,
//! compaction and new tensors beside a plain copy. Gathers with changed rows are from memory and
//! from the disk, and opening is with layers.
//!
//! Rows of 400 B in one partition. It does not measure several partitions, a server, or a disk that
//! others use. A sync is as expensive as the disk says; a virtual disk may say less than it should.
//! `puts`, `versions`, `changed`, `cold`, `commits`, `opening` and `tensors`
//! run these parts alone.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_benches::{
    Contestant, Rounds, check_parts, drop_cached, feature_graph, is_asked_for, is_smoke,
    random_ids, row_of, shuffled_ids,
};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::update::Folding;
use lodestore_store::{
    EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind, RowIdx, View,
};

#[path = "updates/tensors.rs"]
mod tensors;

const WIDTH: u32 = 100;
const ROW_BYTES: usize = WIDTH as usize * 4;
const BATCH_ROWS: usize = 15_000;
/// Batches of one round.
const N_BATCHES: usize = 16;

/// Size of a run.
#[derive(Clone, Copy)]
struct Scale {
    n_nodes: u32,
    budget: Duration,
}

fn main() {
    check_parts(&["puts", "versions", "changed", "cold", "commits", "opening", "tensors"]);
    let scale = if is_smoke() {
        Scale { n_nodes: 20_000, budget: Duration::from_millis(20) }
    } else {
        Scale { n_nodes: 1_000_000, budget: Duration::from_secs(3) }
    };
    if is_asked_for("puts") {
        puts(scale);
    }
    if is_asked_for("versions") {
        versions();
    }
    if is_asked_for("changed") || is_asked_for("cold") {
        let graphs = SHARES.map(|percent| Changed::new(scale, percent));
        if is_asked_for("changed") {
            resident(scale, &graphs);
        }
        if is_asked_for("cold") {
            from_disk(scale, &graphs);
        }
        if is_asked_for("changed") {
            graphs[2].open_again();
            graphs[2].compact();
        }
    }
    if is_asked_for("commits") {
        commits(scale);
    }
    if is_asked_for("opening") {
        opening(scale);
    }
    if is_asked_for("tensors") {
        tensors::new_tensors(scale);
    }
}

/// Changed rows, in percent of all.
const SHARES: [usize; 4] = [0, 1, 10, 50];

fn open(dir: &Path, mode: OpenMode) -> Arc<GraphHandle> {
    open_with(dir, mode, ReaderKind::Mapped)
}

fn open_with(dir: &Path, mode: OpenMode, reader: ReaderKind) -> Arc<GraphHandle> {
    let graph = Graph::open(dir).expect("a graph");
    Arc::new(GraphHandle::open(graph, None, mode, &OpenOptions { reader }).expect("it opens"))
}

/// Calls `each` until the time is over; returns calls per second.
fn rate(budget: Duration, mut each: impl FnMut()) -> f64 {
    let (start, mut n) = (Instant::now(), 0u32);
    while n == 0 || start.elapsed() < budget {
        each();
        n += 1;
    }
    f64::from(n) / start.elapsed().as_secs_f64()
}

/// Appends of this many bytes with a sync after each, per second.
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
            let live = open(&graph, OpenMode::Write);
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

/// Measures look-ups and openings with the same rows over the segment, put for few versions or for
/// many.
fn versions() {
    let n_nodes = 10 * N_VERSIONED as u32;
    let n_versions: &[usize] = if is_smoke() { &[1, 10] } else { &[1, 100, 10_000] };
    for &n_versions in n_versions {
        let dir = tempfile::tempdir().expect("a folder");
        let graph = feature_graph(dir.path(), n_nodes, 1, 1);
        let ids = shuffled_ids(n_nodes, N_VERSIONED);
        let live = open(&graph, OpenMode::Write);
        for ids in ids.chunks(N_VERSIONED / n_versions) {
            live.put_rows("feat", ids, &vec![1; ids.len() * 4]).expect("a put");
            live.commit_version().expect("a commit");
        }
        drop(live);
        let opening = best(|| drop(open(&graph, OpenMode::Read)));
        let live = open(&graph, OpenMode::Read);
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

/// Returns the shortest of several times.
fn best(mut each: impl FnMut()) -> Duration {
    let time = |_| {
        let start = Instant::now();
        each();
        start.elapsed()
    };
    (0..5).map(time).min().expect("five times")
}

/// Puts of neighbouring rows by several concurrent threads, per second.
fn put_rate(live: &GraphHandle, n_threads: u32, batch_rows: usize, scale: Scale) -> f64 {
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

/// Returns the row that is put for a node.
fn new_row(node: NodeId) -> Vec<u8> {
    row_of(NodeId(node.0 ^ 0x5a5a), WIDTH)
}

/// Puts new rows for these nodes.
fn put_new(live: &GraphHandle, ids: &[NodeId]) {
    for ids in ids.chunks(10_000) {
        let rows: Vec<u8> = ids.iter().flat_map(|&id| new_row(id)).collect();
        live.put_rows("feat", ids, &rows).expect("a put");
    }
}

/// Compares rows with the new ones of their nodes.
fn assert_new(store: &EmbeddedStore, ids: &[NodeId]) {
    let mut out = vec![0; ids.len() * ROW_BYTES];
    store.gather("feat", ids, &mut out).expect("rows");
    for (row, &id) in out.chunks_exact(ROW_BYTES).zip(ids) {
        assert!(row == new_row(id), "row of node {id}");
    }
}

/// A graph of which some rows were changed by a commit, spread over all of them.
struct Changed {
    percent: usize,
    ids: Vec<NodeId>,
    graph: PathBuf,
    _dir: tempfile::TempDir,
}

impl Changed {
    fn new(scale: Scale, percent: usize) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let graph = feature_graph(dir.path(), scale.n_nodes, WIDTH, 1);
        let ids = shuffled_ids(scale.n_nodes, scale.n_nodes as usize / 100 * percent);
        let live = open(&graph, OpenMode::Write);
        put_new(&live, &ids);
        live.commit_version().expect("a commit");
        Self { percent, ids, graph, _dir: dir }
    }

    fn store(&self, reader: ReaderKind) -> EmbeddedStore {
        let live = open_with(&self.graph, OpenMode::Read, reader);
        EmbeddedStore::from_handle(live, View::Latest).expect("a store")
    }

    fn open_again(&self) {
        for mode in [OpenMode::Read, OpenMode::Write] {
            let start = Instant::now();
            drop(open(&self.graph, mode));
            let (n_rows, seconds) = (self.ids.len(), start.elapsed().as_secs_f64());
            println!("updates, opening to {mode:?} with {n_rows} rows over: {seconds:.3} s");
        }
    }

    fn compact(&self) {
        let live = open(&self.graph, OpenMode::Write);
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
        let store = EmbeddedStore::from_handle(live, View::Latest).expect("a store");
        assert_new(&store, &self.ids);
    }
}

/// Buffers of a thread.
struct Work {
    batches: Vec<Vec<NodeId>>,
    out: Vec<u8>,
}

fn resident(scale: Scale, graphs: &[Changed; 4]) {
    let ids = random_ids(scale.n_nodes, N_BATCHES * BATCH_ROWS, 1);
    let batches = ids.chunks(BATCH_ROWS).map(|ids| ids.iter().copied().map(NodeId).collect());
    let work = Work { batches: batches.collect(), out: vec![0; BATCH_ROWS * ROW_BYTES] };
    let work = Mutex::new(work);
    let stores = graphs.each_ref().map(|it| it.store(ReaderKind::Mapped));
    stores.iter().zip(graphs).for_each(|(store, graph)| assert_new(store, &graph.ids));
    let through = |store: &EmbeddedStore| {
        let Work { batches, out, .. } = &mut *work.lock().expect("no panic");
        batches.iter().for_each(|ids| store.gather("feat", ids, out).expect("rows"));
    };
    println!("updates, gathers of {BATCH_ROWS} rows of {} from memory, one thread:", scale.n_nodes);
    print_shares(&stores, 15, &through);
    through(&stores[3]);
    let Work { batches, out, .. } = &*work.lock().expect("no panic");
    assert_mixed(out, &batches[N_BATCHES - 1], &graphs[3]);
}

/// Runs gathers of all batches in turns, and prints the rate of each store. Each has a graph of its
/// own, so that none finds in the processor's cache what another read.
fn print_shares(
    stores: &[EmbeddedStore; 4],
    n_rounds: usize,
    through: &(dyn Fn(&EmbeddedStore) + Sync),
) {
    let contestant = |store| -> Contestant<'_> { ("", Box::new(move |_| through(store))) };
    let contestants = stores.each_ref().map(contestant);
    let figures = Rounds::from_args(n_rounds, 1).run(&contestants);
    for (percent, figures) in SHARES.into_iter().zip(figures) {
        let (time, share) = (figures.median, figures.share);
        let rows = (N_BATCHES * BATCH_ROWS) as f64 / time.as_secs_f64() / 1e6;
        println!(
            "  {percent:>2} % of the rows changed: {rows:>6.2} M rows/s, {share:.2} of the first"
        );
    }
}

/// Checks that every row is the new one of its node where that was changed, and else the old one.
fn assert_mixed(rows: &[u8], ids: &[NodeId], graph: &Changed) {
    let changed: HashSet<NodeId> = graph.ids.iter().copied().collect();
    for (row, &id) in rows.chunks_exact(ROW_BYTES).zip(ids) {
        let expected = if changed.contains(&id) { new_row(id) } else { row_of(id, WIDTH) };
        assert!(row == expected, "row of node {id}");
    }
}

/// Batches that a cold gather spans.
const WINDOW: usize = 8;

/// Gathers past the system's cache, some batches in one plan.
fn from_disk(scale: Scale, graphs: &[Changed; 4]) {
    let ids: Vec<NodeId> =
        random_ids(scale.n_nodes, N_BATCHES * BATCH_ROWS, 2).into_iter().map(NodeId).collect();
    let windows: Vec<&[NodeId]> = ids.chunks(WINDOW * BATCH_ROWS).collect();
    // Touched once, so that the system's making of pages is not part of a gather.
    let out = Mutex::new(vec![1; WINDOW * BATCH_ROWS * ROW_BYTES]);
    let stores = graphs.each_ref().map(|it| it.store(ReaderKind::Direct));
    for store in &stores {
        let tensor = store.live().tensor(PartId(0), 0).expect("a tensor").current();
        tensor.layers().iter().for_each(|layer| drop_cached(layer.segment().path()));
    }
    let through = |store: &EmbeddedStore| {
        let mut out = out.lock().expect("no panic");
        windows.iter().for_each(|ids| store.gather("feat", ids, &mut out).expect("rows"));
    };
    println!(
        "updates, gathers of {WINDOW} batches of {BATCH_ROWS} rows of {} from disk, direct reader, \
         one thread:",
        scale.n_nodes
    );
    print_shares(&stores, 5, &through);
    through(&stores[3]);
    assert_mixed(&out.lock().expect("no panic"), windows[windows.len() - 1], &graphs[3]);
}

/// Measures commits of as many rows as there are nodes, beside a plain write of their bytes with a
/// sync.
fn commits(scale: Scale) {
    let n_rounds = if is_smoke() { 1 } else { 3 };
    let dir = tempfile::tempdir().expect("a folder");
    let graph = feature_graph(dir.path(), scale.n_nodes, WIDTH, 1);
    let ids = shuffled_ids(scale.n_nodes, scale.n_nodes as usize);
    let live = open(&graph, OpenMode::Write);
    let n_bytes = (ids.len() * ROW_BYTES) as f64;
    for _ in 0..n_rounds {
        let before = plain_write(dir.path(), ids.len() * ROW_BYTES);
        put_new(&live, &ids);
        let start = Instant::now();
        live.commit_version().expect("a commit");
        let commit = start.elapsed().as_secs_f64();
        let plain = (before + plain_write(dir.path(), ids.len() * ROW_BYTES)) / 2.0;
        println!(
            "updates, a commit of {} rows of {ROW_BYTES} B: {:.0} MB/s, plain write and fsync \
             {:.0} MB/s: {:.2} of it",
            ids.len(),
            n_bytes / commit / 1e6,
            n_bytes / plain / 1e6,
            plain / commit,
        );
    }
    let store = EmbeddedStore::from_handle(live, View::Latest).expect("a store");
    ids.chunks(BATCH_ROWS).for_each(|ids| assert_new(&store, ids));
}

/// Writes `n_bytes` to a new file with a sync; returns the seconds. The file stays: in a virtual
/// machine memory that a removed file had is faster than memory that none has had, as a commit
/// needs.
fn plain_write(dir: &Path, n_bytes: usize) -> f64 {
    let piece = vec![7; 1 << 20];
    let start = Instant::now();
    let mut file = tempfile::Builder::new().disable_cleanup(true).tempfile_in(dir).expect("a file");
    for at in (0..n_bytes).step_by(piece.len()) {
        let piece = &piece[..piece.len().min(n_bytes - at)];
        file.write_all(piece).expect("room on the disk");
    }
    file.as_file().sync_all().expect("a sync");
    start.elapsed().as_secs_f64()
}

/// Layers of the graph that is opened, which have 2.5 times its rows in all.
const N_LAYERS: usize = 8;

/// Opens a graph with deltas over its segment, and one without.
fn opening(scale: Scale) {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [plain, layered] =
        dirs.each_ref().map(|dir| feature_graph(dir.path(), scale.n_nodes, WIDTH, 1));
    let n_rows = scale.n_nodes as usize * 5 / 2 / N_LAYERS;
    let ids = shuffled_ids(scale.n_nodes, scale.n_nodes as usize);
    let live = open(&layered, OpenMode::Write);
    for layer in 0..N_LAYERS {
        let of_layer = ids.iter().copied().cycle().skip(layer * n_rows).take(n_rows);
        put_new(&live, &of_layer.collect::<Vec<_>>());
        live.commit_version().expect("a commit");
    }
    assert_eq!(live.tensor(PartId(0), 0).expect("a tensor").current().layers().len(), 1 + N_LAYERS);
    drop(live);
    let megabytes = (N_LAYERS * n_rows * ROW_BYTES) as f64 / 1e6;
    for mode in [OpenMode::Read, OpenMode::Write] {
        for is_cold in [false, true] {
            let seconds = |graph: &Path| {
                let opened = (0..5).map(|_| {
                    if is_cold {
                        drop_all_cached(graph);
                    }
                    let start = Instant::now();
                    drop(open(graph, mode));
                    start.elapsed()
                });
                opened.min().expect("five times").as_secs_f64()
            };
            let [without, with] = [&plain, &layered].map(|graph| seconds(graph));
            println!(
                "updates, opening to {mode:?}, {}: {:.1} ms, with {megabytes:.0} MB in {N_LAYERS} \
                 layers {:.1} ms: {:.1} ms over it",
                if is_cold { "files not cached" } else { "files cached" },
                without * 1e3,
                with * 1e3,
                (with - without) * 1e3,
            );
        }
    }
    let store =
        EmbeddedStore::from_handle(open(&layered, OpenMode::Read), View::Latest).expect("a store");
    ids.chunks(BATCH_ROWS).for_each(|ids| assert_new(&store, ids));
}

/// Drops the cached pages of all files under a folder.
fn drop_all_cached(dir: &Path) {
    for entry in dir.read_dir().expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { drop_all_cached(&path) } else { drop_cached(&path) }
    }
}

/// Returns the seconds of a plain copy with a sync, from a file that is not cached.
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
