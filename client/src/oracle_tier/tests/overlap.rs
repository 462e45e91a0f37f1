//! Concurrent loads of batches from sources that are slow or fail.

use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::time::Instant;

use lodestore_graph::{PartId, PartitionBook};

use super::*;
use crate::source::{RowSource, TensorInfo, VersionTag};

/// A source with varying latency, some of whose pulls fail.
struct Unsteady {
    rows: TestSource,
    /// Latency of each pull in microseconds and whether it fails; cyclic.
    pulls: Vec<(u64, bool)>,
    n_begun: AtomicUsize,
    n_failed: AtomicUsize,
}

impl Unsteady {
    fn new(pulls: Vec<(u64, bool)>) -> Self {
        let rows = TestSource::new(Duration::ZERO, u64::MAX);
        Self { rows, pulls, n_begun: 0.into(), n_failed: 0.into() }
    }
}

impl RowSource for Unsteady {
    fn book(&self) -> &PartitionBook {
        self.rows.book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.rows.tensor(name)
    }

    fn pinned_version(&self) -> Option<VersionTag> {
        self.rows.pinned_version()
    }

    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        _work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        let number = self.n_begun.fetch_add(1, Ordering::SeqCst);
        let (time_us, fails) = self.pulls[number % self.pulls.len()];
        thread::sleep(Duration::from_micros(time_us));
        if fails {
            self.n_failed.fetch_add(1, Ordering::SeqCst);
            out.fill(0xBB);
            return Err(ClientError::Panicked { thread: "test source" });
        }
        self.rows.pull(tensor, ids, out, kind)
    }
}

/// Statistics of a loaded batch; `None` for one that failed.
type Loaded = Option<LoadStats>;

/// Loads all batches on `n_threads` threads, `together` in one call.
fn load_all(known: &Known, remote: &Arc<Unsteady>, n_threads: usize, together: u32) -> Vec<Loaded> {
    let local = Arc::new(TestSource::new(Duration::ZERO, u64::MAX));
    let loader = BatchLoader::new(local, Arc::clone(remote) as _, "x", &[PartId(1)]).unwrap();
    let (next, n) = (AtomicU32::new(0), known.n_batches());
    let loaded = Mutex::new(vec![None; n as usize]);
    thread::scope(|scope| {
        for _ in 0..n_threads {
            let (next, loaded, mut loader) = (&next, &loaded, loader.clone());
            scope.spawn(move || {
                loop {
                    let first = next.fetch_add(together, Ordering::SeqCst);
                    if first >= n {
                        return;
                    }
                    let group: Vec<u32> = (first..(first + together).min(n)).collect();
                    let (batches, kept): (Vec<_>, Vec<_>) =
                        group.iter().map(|&index| known.batch(index).unwrap()).unzip();
                    let mut batches: Vec<_> =
                        batches.iter().map(|batch: &Batch| &batch.nodes[..]).zip(kept).collect();
                    let nodes = batches.iter().flat_map(|(nodes, _)| *nodes).copied();
                    let expected = rows_of(&nodes.collect::<Vec<_>>());
                    let mut out = vec![0xEE; expected.len()];
                    let Ok(stats) = loader.load_together(&mut batches, &mut out) else { continue };
                    assert_eq!(out, expected, "batches {group:?}");
                    for (index, stats) in group.into_iter().zip(stats) {
                        loaded.lock().unwrap()[index as usize] = Some(stats);
                    }
                }
            });
        }
    });
    loaded.into_inner().unwrap()
}

proptest! {
    #[test]
    fn concurrent_batches_hit_and_miss_as_sequential_ones_do(
        batches in batches(), n_slots in 0usize..24, n_threads in 1usize..7, together in 1u32..4,
        times_us in prop::collection::vec(0u64..600, 1..9),
    ) {
        let misses = misses(n_slots as u32, &batches);
        let known = Known::new(n_slots, 0, batches.clone());
        let remote = Arc::new(Unsteady::new(times_us.into_iter().map(|us| (us, false)).collect()));
        let loaded = load_all(&known, &remote, n_threads, together);
        for ((stats, misses), nodes) in loaded.iter().zip(misses).zip(&batches) {
            let stats = stats.unwrap();
            let n_local = nodes.iter().filter(|node| (10..30).contains(&node.0)).count() as u64;
            let found = (stats.local_rows, stats.hit_rows, stats.remote_rows);
            prop_assert_eq!(found, (n_local, nodes.len() as u64 - n_local - misses, misses));
            prop_assert_eq!(stats.remote_bytes, misses * ROW_BYTES as u64);
        }
    }

    #[test]
    fn rows_are_right_and_no_batch_hangs_when_pulls_fail(
        batches in batches(), n_slots in 0usize..24, n_threads in 1usize..7, together in 1u32..4,
        pulls in prop::collection::vec((0u64..400, prop::bool::weighted(0.3)), 1..12),
    ) {
        let known = Known::new(n_slots, 0, batches.clone());
        let remote = Arc::new(Unsteady::new(pulls));
        let loaded = load_all(&known, &remote, n_threads, together);
        let n_failed = remote.n_failed.load(Ordering::SeqCst);
        let n_lost = loaded.iter().filter(|stats| stats.is_none()).count();
        prop_assert!(n_lost <= n_failed * together as usize, "{n_lost} of {n_failed}");
        prop_assert!(n_failed == 0 || n_lost > 0);
        for (stats, nodes) in loaded.iter().zip(&batches) {
            let n_rows = stats.map(|it| it.local_rows + it.hit_rows + it.remote_rows);
            prop_assert!(n_rows.is_none_or(|n_rows| n_rows == nodes.len() as u64), "{stats:?}");
        }
        // Every row the directory lists is correct, except in slots that a later batch would find
        // empty.
        let mut state = known.tier.lock().unwrap();
        let State { tier, holes, .. } = &mut *state;
        let ids: Vec<u32> = (0..N_NODES).collect();
        let slots: Vec<u32> = ids.iter().map(|&id| tier.directory().slot_of(id)).collect();
        let (mut rows, mut misses) = (vec![0xEE; ids.len() * ROW_BYTES], Vec::new());
        tier.lookup(&ids, &mut rows, &mut misses);
        for ((id, row), slot) in (0u32..).zip(rows.chunks_exact(ROW_BYTES)).zip(slots) {
            let is_empty = slot == u32::MAX || holes.contains(&slot);
            prop_assert!(is_empty || row == id.to_le_bytes(), "node {id} in slot {slot}");
        }
    }
}

/// The pull of one batch fails after all batches have looked up; those that relied on its rows pull
/// them instead.
#[test]
fn rows_of_a_failed_pull_are_pulled_by_the_batches_that_need_them() {
    let all: Vec<_> = [[1, 2], [1, 3], [1, 2], [2, 4], [2, 4]].map(nodes).to_vec();
    let known = Known::new(4, 0, all.clone());
    let remote = TestSource::new(Duration::ZERO, u64::MAX);
    let mut turns: Vec<_> = (0..5)
        .map(|index| {
            let mut turn = known.tier.turn(index);
            turn.announce(known.next_uses(index));
            turn
        })
        .collect();
    let look_up = |turn: &mut BatchTicket, index: usize| {
        turn.look_up(&all[index], &[0, 1]).unwrap().iter().map(|&slot| slot != u32::MAX).collect()
    };
    let found: Vec<Vec<bool>> =
        turns[..3].iter_mut().enumerate().map(|(i, turn)| look_up(turn, i)).collect();
    assert_eq!(found, [[false, false], [true, false], [true, true]]);
    // The second batch fails before its turn to move rows, the first after it.
    turns[1].give_up();
    turns[0].give_up();
    let mut pulled = Vec::new();
    let mut rows = vec![0xEE; 8];
    let stats = turns[2].move_rows(&[0, 1], &mut rows, &mut |ids, at, out| {
        pulled.extend_from_slice(ids);
        remote.pull_at("x", ids, at, out, PullKind::Sync, &mut || ())
    });
    assert_eq!((stats.unwrap().rows, rows, pulled), (2, rows_of(&all[2]), all[2].clone()));
    // The failed rows have left the directory: a batch that looks up now misses and pulls them.
    assert_eq!(look_up(&mut turns[3], 3), [false, false]);
    let mut rows = rows_of(&all[3]);
    turns[3].move_rows(&[0, 1], &mut rows, &mut |_, _, _| panic!("nothing was lost")).unwrap();
    // The emptied slots hold rows again.
    assert_eq!(look_up(&mut turns[4], 4), [true, true]);
    rows.fill(0xEE);
    turns[4].move_rows(&[0, 1], &mut rows, &mut |_, _, _| panic!("nothing was lost")).unwrap();
    assert_eq!(rows, rows_of(&all[4]));
}

/// A source whose pulls wait until enough of them are in flight, or until a timeout.
struct Crowd {
    rows: TestSource,
    /// Pulls to wait for; 0 after a timeout.
    expected: AtomicUsize,
    /// Pulls in flight, and their maximum so far.
    inside: Mutex<(usize, usize)>,
    entered: Condvar,
}

impl RowSource for Crowd {
    fn book(&self) -> &PartitionBook {
        self.rows.book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.rows.tensor(name)
    }

    fn pinned_version(&self) -> Option<VersionTag> {
        self.rows.pinned_version()
    }

    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        _work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        let mut inside = self.inside.lock().unwrap();
        inside.0 += 1;
        inside.1 = inside.1.max(inside.0);
        self.entered.notify_all();
        let expected = || self.expected.load(Ordering::SeqCst);
        let most = Duration::from_secs(10);
        let (waited, result) =
            self.entered.wait_timeout_while(inside, most, |it| it.1 < expected()).unwrap();
        inside = waited;
        if result.timed_out() {
            self.expected.store(0, Ordering::SeqCst);
        }
        inside.0 -= 1;
        drop(inside);
        self.rows.pull(tensor, ids, out, kind)
    }
}

/// The pulls of all batches of a window run concurrently, plus at most one by the trainer itself.
#[test]
fn pulls_of_a_window_overlap_under_the_oracle() {
    for (n_batches, together, expected) in [(1, 1, 1), (4, 1, 4), (4, 2, 2), (8, 2, 3), (6, 1, 6)] {
        // Each batch misses a row of its own.
        let all: Vec<_> = (0..20).map(|i| nodes([i % 10, 12])).collect();
        let source = Arc::new(Known::new(0, 0, all.clone()));
        let rows = TestSource::new(Duration::ZERO, u64::MAX);
        let inside = Mutex::new((0, 0));
        let (crowd, entered) = (expected.into(), Condvar::new());
        let remote = Arc::new(Crowd { rows, expected: crowd, inside, entered });
        let local = Arc::new(TestSource::new(Duration::ZERO, u64::MAX));
        let loader = BatchLoader::new(local, Arc::clone(&remote) as _, "x", &[PartId(1)]).unwrap();
        thread::scope(|scope| {
            let window = Window { n_batches, together };
            let mut prefetcher = Prefetcher::start(scope, source, loader, window, 0);
            // Otherwise the trainer could be the first to claim a batch.
            let end = Instant::now() + Duration::from_secs(20);
            while remote.inside.lock().unwrap().1 < expected && Instant::now() < end {
                thread::sleep(Duration::from_millis(1));
            }
            for nodes in &all {
                let prepared = prefetcher.next_batch().unwrap().unwrap();
                assert_eq!(prepared.rows.bytes(), rows_of(nodes));
            }
            let bound = ((n_batches + 2) * 2 * ROW_BYTES) as u64;
            assert!(prefetcher.stats().peak_bytes <= bound);
        });
        let most = remote.inside.lock().unwrap().1;
        assert!((expected..=n_batches + 1).contains(&most), "{most} of {n_batches}");
    }
}

#[test]
fn a_panic_in_a_lane_is_an_error_not_a_hang() {
    struct Panics(TestSource);
    impl RowSource for Panics {
        fn book(&self) -> &PartitionBook {
            self.0.book()
        }
        fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
            self.0.tensor(name)
        }
        fn pinned_version(&self) -> Option<VersionTag> {
            self.0.pinned_version()
        }
        fn pull_overlapped(
            &self,
            tensor: &str,
            ids: &[NodeId],
            out: &mut [u8],
            kind: PullKind,
            _work: &mut dyn FnMut(),
        ) -> Result<PullStats, ClientError> {
            assert!(!ids.contains(&NodeId(2)), "the test panics here");
            self.0.pull(tensor, ids, out, kind)
        }
    }
    let all = (0..9).map(|i| nodes([i, 12])).collect();
    let source = Arc::new(Known::new(4, 0, all));
    let remote = Arc::new(Panics(TestSource::new(Duration::ZERO, u64::MAX)));
    let local = Arc::new(TestSource::new(Duration::ZERO, u64::MAX));
    let loader = BatchLoader::new(local, Arc::clone(&remote) as _, "x", &[PartId(1)]).unwrap();
    thread::scope(|scope| {
        let window = Window::one_by_one(4);
        let mut prefetcher = Prefetcher::start(scope, source, loader, window, 0);
        // Otherwise this thread could claim batch 2 and panic itself.
        while remote.0.n_pulls() < 2 {
            thread::sleep(Duration::from_millis(1));
        }
        (0..2).for_each(|_| drop(prefetcher.next_batch().unwrap().unwrap()));
        let found = prefetcher.next_batch();
        assert!(matches!(found, Err(ClientError::Panicked { thread: "prefetch" })), "{found:?}");
        assert!(prefetcher.next_batch().unwrap().is_none());
    });
}
