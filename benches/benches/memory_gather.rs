//! Embedded gather of rows that the page cache holds, beside a plain copy of the same rows.
//!
//! Rows are drawn at random, without locality; batches of 100 000 ids into one reused buffer per
//! thread. Contestants take turns, so that a busy machine slows all of them. It does not measure
//! reads from disk. Takes row lengths as arguments, such as `-- 400`.

use std::sync::Mutex;

use lodestore_benches::{
    Contestant, Figures, Pages, PlainTable, Rounds, check_parts, feature_graph, is_asked_for,
    is_smoke, random_ids, row_of,
};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::plan::{DiskProfile, ReadPlan};
use lodestore_store::reader::{MappedReader, MemoryReader, RowReader};
use lodestore_store::{EmbeddedStore, Graph, RowIdx};

const TABLE_BYTES: usize = 1 << 30;
const HOT_BYTES: usize = 16 << 20;
const BATCH_ROWS: usize = 100_000;
const WIDTHS: [u32; 3] = [100, 128, 602];

fn main() {
    let widths = WIDTHS.map(|width| (width * 4).to_string());
    check_parts(&widths.each_ref().map(String::as_str));
    let (table_bytes, batch_rows) =
        if is_smoke() { (1 << 20, 1000) } else { (TABLE_BYTES, BATCH_ROWS) };
    for width in WIDTHS.into_iter().filter(|width| is_asked_for(&(width * 4).to_string())) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let n_nodes = (table_bytes / (width as usize * 4)) as u32;
        let graph = feature_graph(dir.path(), n_nodes, width, 1);
        // All rows, and the few that processors keep in their caches.
        for n_drawn in [n_nodes, (HOT_BYTES / (width as usize * 4)) as u32] {
            for n_threads in [1, 2] {
                warm(&graph, (n_nodes, n_drawn.min(n_nodes)), width, batch_rows, n_threads);
            }
        }
        verification(&graph, n_nodes, width, batch_rows);
    }
}

/// Buffers of one thread, and the batches that it gathers in a round.
struct Work {
    ids: Vec<u32>,
    nodes: Vec<NodeId>,
    pairs: Vec<(RowIdx, u32)>,
    plan: ReadPlan,
    out: Vec<u8>,
}

impl Work {
    fn new(n_nodes: u32, width: u32, n: usize, seed: u64) -> Mutex<Self> {
        let ids = random_ids(n_nodes, n, seed);
        let nodes = ids.iter().copied().map(NodeId).collect();
        let pairs = ids.iter().copied().map(RowIdx).zip(0..).collect();
        let out = vec![0; n * width as usize * 4];
        Mutex::new(Self { ids, nodes, pairs, plan: ReadPlan::default(), out })
    }

    fn check(&mut self, width: u32) {
        for (row, &id) in self.out.chunks_exact(width as usize * 4).zip(&self.ids).step_by(97) {
            assert!(row == row_of(NodeId(id), width), "row of node {id}");
        }
        self.out.fill(0);
    }
}

/// Measures gathers from a store, a reader and plain memory with the same rows, all touched before.
fn warm(
    graph: &std::path::Path,
    (n_nodes, n_drawn): (u32, u32),
    width: u32,
    batch_rows: usize,
    n_threads: usize,
) {
    let store = EmbeddedStore::open(graph, None).expect("the graph opens");
    let reader = reader(graph);
    let row_bytes = width as usize * 4;
    let all: Vec<NodeId> = (0..n_nodes).map(NodeId).collect();
    let mut rows = vec![0; n_nodes as usize * row_bytes];
    store.gather("feat", &all, &mut rows).expect("all rows");
    let plain = PlainTable::new(&rows, row_bytes, Pages::Small);
    let plain_huge = PlainTable::new(&rows, row_bytes, Pages::Huge);
    drop(rows);
    let works: Vec<Mutex<Work>> =
        (0..n_threads).map(|i| Work::new(n_drawn, width, batch_rows, i as u64)).collect();
    let with = |thread: usize, work: &dyn Fn(&mut Work)| {
        work(&mut works[thread].lock().expect("no panic"));
    };
    let profile = DiskProfile::default();
    let contestants: [Contestant<'_>; 5] = [
        ("plain copy", Box::new(|i| with(i, &|w| plain.gather(&w.ids, &mut w.out)))),
        (
            "plain copy of huge pages",
            Box::new(|i| with(i, &|w| plain_huge.gather(&w.ids, &mut w.out))),
        ),
        (
            "embedded",
            Box::new(|i| {
                with(i, &|w| store.gather("feat", &w.nodes, &mut w.out).expect("rows"));
            }),
        ),
        (
            "reader",
            Box::new(|i| {
                with(i, &|w| {
                    reader.gather(&w.pairs, &profile, &mut w.plan, &mut w.out).expect("rows");
                });
            }),
        ),
        (
            "reader, planned",
            Box::new(|i| {
                with(i, &|w| {
                    let n = w.pairs.len() as u32;
                    w.plan.build_scattered(&w.pairs, n, reader.layout(), &profile).expect("rows");
                    reader.execute(&w.plan, &mut w.out).expect("rows");
                });
            }),
        ),
    ];
    for (_, work) in &contestants {
        for (i, done) in works.iter().enumerate() {
            work(i);
            done.lock().expect("no panic").check(width);
        }
    }
    let figures = Rounds::from_args(31, n_threads).run(&contestants);
    for ((name, _), figures) in contestants.iter().zip(figures) {
        let name = format!("{n_drawn} rows, {name}");
        report(&name, width, n_threads, batch_rows * n_threads, &figures);
    }
}

/// Measures the cost of checking pages: checked before, at the first touch, at every read.
fn verification(graph: &std::path::Path, n_nodes: u32, width: u32, batch_rows: usize) {
    let (checked, memory) = (reader(graph), MemoryReader::load(segment(graph)).expect("loads"));
    let fresh = Mutex::new(Vec::new());
    let rounds = Rounds::from_args(11, 1);
    fresh.lock().expect("no panic").resize_with(rounds.n_rounds + 2, || reader(graph));
    let work = Work::new(n_nodes, width, batch_rows, 7);
    let profile = DiskProfile::default();
    let gather = |reader: &dyn RowReader| {
        let mut guard = work.lock().expect("no panic");
        let Work { pairs, plan, out, .. } = &mut *guard;
        reader.gather(pairs, &profile, plan, out).expect("rows");
    };
    gather(&checked);
    let contestants: [Contestant<'_>; 3] = [
        ("pages checked before", Box::new(|_| gather(&checked))),
        (
            "pages checked at first touch",
            Box::new(|_| {
                // Popped and dropped within the time: unmapping is part of a reader's cost.
                let reader = fresh.lock().expect("no panic").pop();
                reader.iter().for_each(|reader| gather(reader));
            }),
        ),
        ("pages checked at every read, planned", Box::new(|_| gather(&memory))),
    ];
    let figures = rounds.run(&contestants);
    work.lock().expect("no panic").check(width);
    for ((name, _), figures) in contestants.iter().zip(figures) {
        report(name, width, 1, batch_rows, &figures);
    }
}

fn segment(graph: &std::path::Path) -> lodestore_store::segment::Segment {
    let graph = Graph::open(graph).expect("the graph opens");
    graph.segment(PartId(0), "feat").expect("the segment opens")
}

fn reader(graph: &std::path::Path) -> MappedReader {
    MappedReader::open(segment(graph)).expect("the segment maps")
}

fn report(name: &str, width: u32, n_threads: usize, n_rows: usize, figures: &Figures) {
    let figures = figures.text(n_rows as f64 / 1e6, "M rows");
    println!("memory_gather {} B, {n_threads} threads, {name}: {figures}", width * 4);
}
