mod taken_rows;

use std::{collections::BTreeMap, sync::Mutex, thread, time::Duration};

use lodestore_graph::lock::IgnorePoison;

use super::*;
use crate::testing::{ROW_BYTES, TestSource, loader, loader_in_memory, nodes, rows_of};

/// Batches of an epoch of [`Batches`].
const PER_EPOCH: u32 = 7;

/// Batch i has the nodes 0 to 4 + i mod 3. Every requested index is recorded.
struct Batches {
    n: u32,
    asked: Mutex<Vec<u32>>,
    fails_at: Option<u32>,
    panics_at: Option<u32>,
}

impl Batches {
    fn new(n: u32) -> Self {
        Self { n, asked: Mutex::default(), fails_at: None, panics_at: None }
    }

    fn wait_until_asked_for(&self, index: u32) {
        while !self.asked().contains(&index) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn asked(&self) -> Vec<u32> {
        self.asked.lock().ignore_poison().clone()
    }
}

impl BatchSource for Batches {
    fn n_batches(&self) -> u32 {
        self.n
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        let mut asked = self.asked.lock().ignore_poison();
        asked.push(index);
        drop(asked);
        assert_ne!(self.panics_at, Some(index), "as the test wants it");
        if self.fails_at == Some(index) {
            return Err(ClientError::Panicked { thread: "test batch" });
        }
        let batch = Batch { nodes: batch_nodes(index), ..Batch::default() };
        Ok((batch, None))
    }

    fn end_of_epoch(&self, index: u32) -> u32 {
        (index / PER_EPOCH + 1) * PER_EPOCH
    }
}

fn batch_nodes(index: u32) -> Vec<NodeId> {
    nodes((0..4 + index % 3).map(|i| (index + i) % 40))
}

fn slow(delay_ms: u64) -> Arc<TestSource> {
    Arc::new(TestSource::new(Duration::from_millis(delay_ms), u64::MAX))
}

/// Runs through all batches, `train_ms` each, and checks every row.
fn run(n: u32, window: Window, pull_ms: u64, train_ms: u64) -> (PrefetchStats, Arc<Batches>) {
    let source = Arc::new(Batches::new(n));
    let stats = thread::scope(|scope| {
        let loader = loader(&slow(pull_ms));
        let mut prefetcher = Prefetcher::start(scope, Arc::clone(&source) as _, loader, window, 0);
        let (mut met, mut waited) = (BTreeMap::<u8, u64>::new(), 0.0);
        for index in 0..n {
            let prepared = prefetcher.next_batch().unwrap().unwrap();
            assert_eq!(prepared.batch.nodes, batch_nodes(index));
            *met.entry(prepared.met as u8).or_default() += 1;
            waited += prepared.wait_seconds;
            assert_eq!(prepared.rows.bytes(), rows_of(&prepared.batch.nodes));
            thread::sleep(Duration::from_millis(train_ms));
        }
        assert!(prefetcher.next_batch().unwrap().is_none());
        let stats = prefetcher.stats();
        let of = |kind: BatchReadiness| met.get(&(kind as u8)).copied().unwrap_or_default();
        let found = (
            of(BatchReadiness::Ready),
            of(BatchReadiness::Waited),
            of(BatchReadiness::DefaultPath),
        );
        assert_eq!(found, (stats.ready, stats.waited, stats.default_path));
        assert!((waited - stats.wait_seconds).abs() < 1e-9);
        stats
    });
    (stats, source)
}

#[test]
fn every_batch_is_returned_once_and_in_order_whatever_the_window_and_speeds() {
    for (window, pull_ms, train_ms) in
        [(0, 0, 0), (1, 0, 0), (1, 2, 0), (1, 0, 2), (3, 0, 0), (3, 2, 0), (3, 0, 2), (99, 0, 1)]
    {
        for together in [1, 2, 3, 50] {
            let window = Window { n_batches: window, together };
            let (stats, source) = run(40, window, pull_ms, train_ms);
            assert_eq!(source.asked(), (0..40).collect::<Vec<_>>(), "{window:?}");
            assert_eq!(stats.ready + stats.waited + stats.default_path, 40, "{stats:?}");
            assert_eq!(stats.max_nodes, 6);
        }
    }
}

/// Both threads prepare batches, at changing speeds: a tier must decide as with one thread.
#[test]
fn pulls_are_in_the_order_of_batches() {
    let n = 20;
    for window in [1, 2, 4].map(Window::one_by_one) {
        for round in 0..20 {
            let remote = slow(0);
            thread::scope(|scope| {
                let source = Arc::new(OneRow { n, per_epoch: n, slow: Some(round) });
                let mut prefetcher = Prefetcher::start(scope, source, loader(&remote), window, 0);
                while prefetcher.next_batch().unwrap().is_some() {}
            });
            let pulls = remote.pulls.lock().unwrap();
            let pulled: Vec<_> = pulls.iter().flat_map(|(ids, _)| ids.clone()).collect();
            let expected = nodes((0..n).map(OneRow::node));
            assert_eq!(pulled, expected, "{window:?}, round {round}");
        }
    }
}

#[test]
fn a_run_may_start_at_any_batch() {
    for (first, window) in [(0, 2), (1, 0), (5, 2), (8, 3), (9, 1), (12, 2)] {
        let window = Window::joined(window);
        let source = Arc::new(Batches::new(9));
        thread::scope(|scope| {
            let loader = loader(&slow(0));
            let source = Arc::clone(&source) as _;
            let mut prefetcher = Prefetcher::start(scope, source, loader, window, first);
            for index in first..9 {
                let prepared = prefetcher.next_batch().unwrap().unwrap();
                assert_eq!(prepared.batch.nodes, batch_nodes(index));
            }
            assert!(prefetcher.next_batch().unwrap().is_none());
        });
        assert_eq!(source.asked(), (first..9).collect::<Vec<_>>(), "from {first}, {window:?}");
    }
}

#[test]
fn an_empty_window_takes_the_default_path() {
    let (stats, _) = run(7, Window::joined(0), 1, 0);
    assert_eq!((stats.default_path, stats.peak_bytes), (7, 6 * ROW_BYTES as u64));
    assert!(stats.wait_seconds >= 0.007);
}

#[test]
fn a_slow_trainer_finds_its_batches_ready() {
    let (stats, _) = run(20, Window::joined(2), 0, 5);
    assert!(stats.ready >= 10, "{stats:?}");
}

#[test]
fn a_slow_source_is_shared_by_both_paths() {
    let (stats, _) = run(20, Window::one_by_one(2), 5, 0);
    assert!(stats.waited + stats.default_path >= 10, "{stats:?}");
    assert!(stats.wait_seconds > 0.02, "{stats:?}");
}

#[test]
fn memory_is_for_two_batches_more_than_the_window_has() {
    for n_batches in [1, 2, 5, 8] {
        for together in [1, 2, 4] {
            for (pull_ms, train_ms) in [(0, 1), (1, 0)] {
                let window = Window { n_batches, together };
                let (stats, _) = run(30, window, pull_ms, train_ms);
                let bound = ((n_batches + 2) * 6 * ROW_BYTES) as u64;
                assert!((1..=bound).contains(&stats.peak_bytes), "{window:?} {stats:?}");
            }
        }
    }
}

/// Batches of five nodes each.
struct Equal;

impl BatchSource for Equal {
    fn n_batches(&self) -> u32 {
        40
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        Ok((Batch { nodes: nodes(index % 7..index % 7 + 5), ..Batch::default() }, None))
    }

    fn end_of_epoch(&self, _index: u32) -> u32 {
        40
    }
}

/// Batches of equal length do not move, so there are as many memories as addresses of batches.
#[test]
fn all_memory_is_counted_also_that_of_the_default_path_and_no_more() {
    for n_batches in [0, 1, 2, 5] {
        for (pull_ms, train_ms) in [(0, 0), (1, 0), (0, 1)] {
            thread::scope(|scope| {
                let window = Window::one_by_one(n_batches);
                let loader = loader(&slow(pull_ms));
                let mut prefetcher = Prefetcher::start(scope, Arc::new(Equal), loader, window, 0);
                let mut places = std::collections::BTreeSet::new();
                while let Some(prepared) = prefetcher.next_batch().unwrap() {
                    places.insert(prepared.rows.bytes().as_ptr() as usize);
                    thread::sleep(Duration::from_millis(train_ms));
                }
                let (stats, one) = (prefetcher.stats(), 5 * ROW_BYTES);
                let has_own = usize::from(stats.default_path > 0);
                let most = if n_batches == 0 { 1 } else { n_batches + 1 + has_own };
                assert!(places.len() <= most, "{stats:?}");
                // All 40 batches were taken, so no memory was filled and never handed out.
                assert_eq!(stats.peak_bytes, (places.len() * one) as u64, "{stats:?}");
            });
        }
    }
}

#[test]
fn kept_batches_count_as_memory_and_dropped_ones_do_not() {
    thread::scope(|scope| {
        let (loader, window) = (loader(&slow(0)), Window::one_by_one(0));
        let mut prefetcher = Prefetcher::start(scope, Arc::new(Equal), loader, window, 0);
        let one = 5 * ROW_BYTES as u64;
        for _ in 0..3 {
            drop(prefetcher.next_batch().unwrap());
            assert_eq!(prefetcher.stats().peak_bytes, one);
        }
        let mut kept: Vec<_> = (0..4).map(|_| prefetcher.next_batch().unwrap()).collect();
        assert_eq!(prefetcher.stats().peak_bytes, 4 * one);
        // One memory returns for the next batch; there is no room for the others.
        kept.drain(..3);
        kept.extend((0..3).map(|_| prefetcher.next_batch().unwrap()));
        assert_eq!(prefetcher.stats().peak_bytes, 4 * one);
        kept.push(prefetcher.next_batch().unwrap());
        assert_eq!(prefetcher.stats().peak_bytes, 5 * one);
    });
}

#[test]
fn memory_is_for_the_window_and_one_batch_more() {
    for n_batches in (0..20).chain([usize::MAX - 1, usize::MAX]) {
        for together in (0..20).chain([usize::MAX]) {
            for left in [1, 2, 7, 1000, u32::MAX] {
                let shape = Window { n_batches, together }.clamped(left);
                let held = u64::from(shape.memories) * u64::from(shape.together);
                assert!(held <= u64::from(shape.places) + 1, "{n_batches} {together} {left}");
                assert!(shape.together >= 1 && shape.memories >= 2);
                assert!(shape.places as usize <= n_batches.max(1) && shape.places <= left);
            }
        }
    }
}

#[test]
fn a_full_window_stalls_the_thread() {
    let source = Arc::new(Batches::new(30));
    thread::scope(|scope| {
        let loader = loader(&slow(0));
        let _prefetcher =
            Prefetcher::start(scope, Arc::clone(&source) as _, loader, Window::one_by_one(3), 0);
        source.wait_until_asked_for(2);
        thread::sleep(Duration::from_millis(30));
        assert_eq!(source.asked(), [0, 1, 2]);
    });
}

#[test]
fn a_row_that_batches_of_a_window_share_is_pulled_once() {
    let (remote, source) = (slow(0), Arc::new(Batches::new(2 * PER_EPOCH)));
    let (mut asked, mut pulled) = (0, 0);
    thread::scope(|scope| {
        let (of_thread, window) = (Arc::clone(&source) as _, Window::joined(10));
        let mut prefetcher = Prefetcher::start(scope, of_thread, loader(&remote), window, 0);
        source.wait_until_asked_for(2);
        while let Some(prepared) = prefetcher.next_batch().unwrap() {
            assert_eq!(prepared.rows.bytes(), rows_of(&prepared.batch.nodes));
            let load = prepared.load;
            assert_eq!(load.remote_bytes, load.remote_rows * ROW_BYTES as u64);
            let rows = load.local_rows + load.hit_rows + load.remote_rows;
            assert_eq!(rows, prepared.batch.nodes.len() as u64);
            asked += rows - load.local_rows;
            pulled += load.remote_rows;
            // The thread is the faster one.
            thread::sleep(Duration::from_millis(2));
        }
    });
    let pulls = remote.pulls.lock().unwrap();
    assert_eq!(pulls.iter().map(|(ids, _)| ids.len() as u64).sum::<u64>(), pulled);
    assert!(pulled < asked, "{pulled} of {asked}");
    for (ids, _) in pulls.iter() {
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
    }
}

/// One remote row for each batch, all different.
struct OneRow {
    n: u32,
    per_epoch: u32,
    /// Every third batch from this one on is slow.
    slow: Option<u32>,
}

impl OneRow {
    fn node(index: u32) -> u32 {
        if index < 10 { index } else { 20 + index }
    }
}

impl BatchSource for OneRow {
    fn n_batches(&self) -> u32 {
        self.n
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        if self.slow.is_some_and(|slow| (index + slow).is_multiple_of(3)) {
            thread::sleep(Duration::from_micros(200));
        }
        Ok((Batch { nodes: nodes([Self::node(index)]), ..Batch::default() }, None))
    }

    fn end_of_epoch(&self, index: u32) -> u32 {
        (index / self.per_epoch + 1) * self.per_epoch
    }
}

#[test]
fn batches_that_are_loaded_together_are_of_one_epoch() {
    for (per_epoch, window) in [(3, 10), (5, 4), (7, 8), (20, 16), (1, 6)] {
        let remote = slow(0);
        thread::scope(|scope| {
            let source = Arc::new(OneRow { n: 20, per_epoch, slow: None });
            let window = Window::joined(window);
            let mut prefetcher = Prefetcher::start(scope, source, loader(&remote), window, 0);
            while prefetcher.next_batch().unwrap().is_some() {
                // The thread is the faster one, so that batches are joined.
                thread::sleep(Duration::from_millis(3));
            }
        });
        // One pull for the batches that are loaded together.
        let (pulls, mut n_batches, mut most) = (remote.pulls.lock().unwrap(), 0, 0);
        for (ids, _) in pulls.iter() {
            let epoch_of = |id: &NodeId| {
                (0..20).find(|&index| OneRow::node(index) == id.0).unwrap() / per_epoch
            };
            assert!(ids.iter().all(|id| epoch_of(id) == epoch_of(&ids[0])), "{per_epoch}: {ids:?}");
            n_batches += ids.len();
            most = most.max(ids.len());
        }
        assert_eq!(n_batches, 20);
        assert!(most > 1 || per_epoch == 1, "{window:?}: none were joined");
    }
}

#[test]
fn an_error_in_the_background_reaches_the_trainer_at_its_batch() {
    for window in [0, 1, 4, 9].map(Window::joined) {
        let source = Arc::new(Batches { fails_at: Some(5), ..Batches::new(9) });
        thread::scope(|scope| {
            let mut prefetcher = Prefetcher::start(scope, source, loader(&slow(0)), window, 0);
            for _ in 0..5 {
                prefetcher.next_batch().unwrap().unwrap();
            }
            let error = prefetcher.next_batch().unwrap_err().to_string();
            assert!(error.contains("test batch"), "{error}");
            assert!(prefetcher.next_batch().unwrap().is_none());
        });
    }
}

#[test]
fn a_failing_source_reaches_the_trainer() {
    let remote = Arc::new(TestSource::new(Duration::ZERO, 3));
    thread::scope(|scope| {
        let source = Arc::new(Batches::new(9));
        let mut prefetcher =
            Prefetcher::start(scope, source, loader(&remote), Window::one_by_one(2), 0);
        let results: Vec<_> = (0..4).map(|_| prefetcher.next_batch().is_ok()).collect();
        assert_eq!(results, [true, true, true, false]);
    });
}

#[test]
fn a_panic_in_the_background_is_an_error_not_a_hang() {
    let source = Arc::new(Batches { panics_at: Some(2), ..Batches::new(9) });
    thread::scope(|scope| {
        let loader = loader(&slow(0));
        let mut prefetcher =
            Prefetcher::start(scope, Arc::clone(&source) as _, loader, Window::one_by_one(3), 0);
        // Otherwise this thread could claim batch 2 and panic itself.
        source.wait_until_asked_for(2);
        for _ in 0..2 {
            prefetcher.next_batch().unwrap().unwrap();
        }
        let found = prefetcher.next_batch();
        assert!(matches!(found, Err(ClientError::Panicked { thread: "prefetch" })));
    });
}

#[test]
fn dropping_a_busy_or_full_prefetcher_ends_it() {
    for (pull_ms, sleep_ms) in [(20, 5), (0, 20), (20, 0)] {
        let source = Arc::new(Batches::new(1000));
        thread::scope(|scope| {
            let loader = loader(&slow(pull_ms));
            let prefetcher =
                Prefetcher::start(scope, Arc::clone(&source) as _, loader, Window::joined(2), 0);
            thread::sleep(Duration::from_millis(sleep_ms));
            drop(prefetcher);
        });
        assert!(source.asked().len() <= 3);
    }
}

#[test]
fn an_empty_run_has_no_batches() {
    for window in [0, 3].map(Window::joined) {
        let (stats, _) = run(0, window, 0, 0);
        assert_eq!(stats, PrefetchStats::default());
    }
}

#[test]
fn buffers_are_reused() {
    let source = Arc::new(Batches::new(60));
    thread::scope(|scope| {
        let window = Window::joined(4);
        let mut prefetcher = Prefetcher::start(scope, source, loader(&slow(0)), window, 0);
        let mut places = BTreeMap::<usize, u32>::new();
        while let Some(prepared) = prefetcher.next_batch().unwrap() {
            *places.entry(prepared.rows.bytes().as_ptr() as usize).or_default() += 1;
        }
        // Two memories of two batches and the trainer's two, each grown at most twice.
        assert!(places.len() <= 18, "{places:?}");
    });
}
