//! The trainer's way to rows that no cache has: the prefetcher over the embedded store. Batches are
//! loaded one by one, or several under one plan.
//!
//! The trainer of this bench does nothing with a batch, and times begin after two windows of them.
//! So it measures how fast batches arrive. All rows are the worker's own. Settings are those of
//! `cold_gather`: `LODE_COLD_TABLE`, `LODE_COLD_TRACE`, `LODE_COLD_GRAPH`, `LODE_COLD_SECONDS`. The
//! segment's pages are dropped from the page cache before each case, and read past it. Plans follow
//! the graph's `device.toml`, if `lode probe` has made one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lodestore_benches::{ColdSubject, Trace, check_parts, drop_cached, is_smoke};
use lodestore_client::loader::RowResidency;
use lodestore_client::prefetch::{BatchSource, PreparedBatch, Window};
use lodestore_client::{BatchLoader, ClientError, EmbeddedSource, Prefetcher, PullKind, RowSource};
use lodestore_graph::batch::Batch;
use lodestore_graph::{NodeId, PartId};
use lodestore_store::{EmbeddedStore, Graph, OpenOptions, ReaderKind};

/// Batches ahead, and how many of them are loaded together.
const CASES: [(usize, usize); 4] = [(16, 8), (8, 4), (4, 2), (16, 1)];

/// The batches of a trace, over and over.
struct Replay<'a> {
    trace: &'a Trace,
    n_batches: u32,
}

impl BatchSource for Replay<'_> {
    fn n_batches(&self) -> u32 {
        self.n_batches
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        let batch = index as usize % self.trace.n_batches();
        let rows = self.trace.rows(batch..batch + 1);
        let nodes = rows.iter().map(|row| NodeId(row.0)).collect();
        Ok((Batch { nodes, ..Batch::default() }, None))
    }

    fn end_of_epoch(&self, index: u32) -> u32 {
        let per_epoch = self.trace.n_batches() as u32;
        (index / per_epoch + 1) * per_epoch
    }
}

fn main() {
    check_parts(&[]);
    let subject = ColdSubject::open(32);
    let row_bytes = subject.row_bytes();
    let ColdSubject { graph, trace, budget, .. } = &subject;
    println!("cold_prefetch: {} batches, rows of {row_bytes} B", trace.n_batches());
    let replay = Arc::new(Replay { trace, n_batches: if is_smoke() { 60 } else { u32::MAX / 2 } });
    for (n_batches, together) in CASES {
        let window = Window { n_batches, together };
        let (n_rows, seconds) = run(graph, &replay, window, *budget);
        println!(
            "  {n_batches:>2} batches ahead, {together} together  {:>9.0} rows/s  ({n_rows} rows, \
             {seconds:.2} s)",
            n_rows as f64 / seconds
        );
    }
}

/// Takes batches for so long; rows and seconds that it took.
fn run(graph: &Graph, replay: &Arc<Replay>, window: Window, budget: Duration) -> (usize, f64) {
    drop_cached(graph.segment(PartId(0), "feat").expect("a segment").path());
    let options = OpenOptions { reader: ReaderKind::Direct };
    let store = EmbeddedStore::open_with(graph.dir(), Some(&[PartId(0)]), &options);
    let store = store.expect("a store");
    let source = Arc::new(EmbeddedSource::new(store));
    let plain = Arc::clone(&source);
    let loader = BatchLoader::new(source.clone(), source, "feat", &[PartId(0)]).expect("a loader");
    // At the start fewer batches are loaded together.
    let n_warm = 2 * window.n_batches;
    let (mut n_taken, mut n_rows, mut start) = (0, 0, Instant::now());
    std::thread::scope(|scope| {
        let replay = Arc::clone(replay) as Arc<dyn BatchSource>;
        let mut prefetcher = Prefetcher::start(scope, replay, loader, window, 0);
        while let Some(prepared) = prefetcher.next_batch().expect("rows") {
            n_taken += 1;
            n_rows += prepared.batch.nodes.len();
            if n_taken == n_warm {
                check(&plain, &prepared);
                (n_rows, start) = (0, Instant::now());
            }
            if n_taken > n_warm && start.elapsed() >= budget {
                break;
            }
        }
    });
    (n_rows, start.elapsed().as_secs_f64())
}

/// Compares some rows of a batch with the same ones read alone.
fn check(source: &EmbeddedSource, prepared: &PreparedBatch) {
    let row_bytes = prepared.rows.bytes().len() / prepared.batch.nodes.len().max(1);
    let mut expected = vec![0; row_bytes];
    let rows = prepared.batch.nodes.iter().zip(prepared.rows.bytes().chunks_exact(row_bytes));
    for (&node, found) in rows.step_by(5_000) {
        source.pull("feat", &[node], &mut expected, PullKind::Sync).expect("a row");
        assert!(found == expected, "row {node}");
    }
}
