use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_cache::next_uses;
use lodestore_graph::{NodeId, PartId, PartitionBook};
use proptest::prelude::*;

use super::*;
use crate::testing::{ROW_BYTES, TestSource, loader, nodes, rows_of};
use crate::{BatchSource, Kept, Prefetcher, RowSource, TensorInfo, Window};
use lodestore_graph::batch::Batch;

const N_NODES: u32 = 40;

/// Batches of distinct nodes, and when each node is needed next.
struct Known {
    tier: Arc<PlannedTier>,
    first: u32,
    batches: Vec<Vec<NodeId>>,
    fails_at: Option<u32>,
}

impl Known {
    fn new(n_slots: usize, first: u32, batches: Vec<Vec<NodeId>>) -> Self {
        let numbers = first..batches.len() as u32;
        let tier = PlannedTier::new(n_slots, ROW_BYTES, N_NODES, &numbers).unwrap();
        Self { tier: Arc::new(tier), first, batches, fails_at: None }
    }

    /// The same with a tier that is filled before the first batch, and what that pulled.
    fn filled(
        (n_slots, most_rows): (usize, usize),
        first: u32,
        batches: Vec<Vec<NodeId>>,
        remote: &Arc<TestSource>,
    ) -> (Self, LoadStats) {
        let (loader, mut soonest) = (loader(remote), Vec::<(NodeId, u32)>::new());
        for (number, batch) in (0..).zip(&batches[first as usize..]) {
            for &node in batch.iter().filter(|&&node| loader.is_remote(node)) {
                if soonest.iter().all(|(known, _)| *known != node) {
                    soonest.push((node, number));
                }
            }
        }
        let (sizes, numbers) = ((n_slots, most_rows), first..batches.len() as u32);
        let (tier, pulled) =
            PlannedTier::filled(sizes, &loader, N_NODES, &numbers, &soonest).unwrap();
        (Self { tier: Arc::new(tier), first, batches, fails_at: None }, pulled)
    }

    /// By looking ahead, node by node.
    fn next_uses(&self, index: u32) -> Vec<u32> {
        let later = || index + 1..self.batches.len() as u32;
        let has = |batch: u32, node: &NodeId| self.batches[batch as usize].contains(node);
        let next = |node: &NodeId| later().find(|&batch| has(batch, node));
        let next = self.batches[index as usize].iter().map(next);
        next.map(|next| next.map_or(u32::MAX, |next| next - self.first)).collect()
    }
}

impl BatchSource for Known {
    fn n_batches(&self) -> u32 {
        self.batches.len() as u32
    }

    fn batch(&self, index: u32) -> Result<(Batch, Kept), ClientError> {
        let mut turn = self.tier.turn(index);
        if self.fails_at == Some(index) {
            return Err(ClientError::Panicked { thread: "test batch" });
        }
        turn.announce(self.next_uses(index));
        let nodes = self.batches[index as usize].clone();
        Ok((Batch { nodes, ..Batch::default() }, Kept::Planned(turn)))
    }

    fn end_of_epoch(&self, _index: u32) -> u32 {
        self.n_batches()
    }
}

/// Remote rows that Belady's MIN has to read for each batch, one batch after the other.
fn misses(n_slots: u32, batches: &[Vec<NodeId>]) -> Vec<u64> {
    let is_remote = |id: &u32| !(10..30).contains(id);
    let batches: Vec<Vec<u32>> =
        batches.iter().map(|b| b.iter().map(|n| n.0).filter(is_remote).collect()).collect();
    let spec = PolicySpec::Oracle { n_batches: batches.len() as u32 };
    let mut tier = Tier::of_slots(n_slots, ROW_BYTES, N_NODES, &spec).unwrap();
    let (mut misses, mut all) = (Vec::new(), Vec::new());
    for (number, ids) in batches.iter().enumerate() {
        let later = |id: &u32| batches[number + 1..].iter().position(|b| b.contains(id));
        let next = |id: &u32| later(id).map_or(u32::MAX, |after| (number + 1 + after) as u32);
        tier.announce(&ids.iter().map(next).collect::<Vec<_>>());
        let mut rows = vec![0; ids.len() * ROW_BYTES];
        tier.lookup(ids, &mut rows, &mut misses);
        tier.admit(ids, &rows, &misses);
        all.push(misses.len() as u64);
    }
    all
}

fn batches() -> impl Strategy<Value = Vec<Vec<NodeId>>> {
    let batch = prop::collection::btree_set(0..N_NODES, 0..14).prop_map(nodes).prop_shuffle();
    prop::collection::vec(batch, 1..14)
}

proptest! {
    #[test]
    fn every_row_is_right_and_as_few_travel_as_the_optimum_needs(
        batches in batches(), n_slots in 0usize..24, window in 0usize..8, together in 1usize..5, first in 0usize..6,
        fill in prop::option::of(1usize..9),
    ) {
        let first = first.min(batches.len());
        let remote = Arc::new(TestSource::new(Duration::ZERO, u64::MAX));
        let misses = misses(n_slots as u32, &batches[first..]);
        let expected = misses.iter().sum::<u64>();
        let (source, filled) = match fill {
            None => (Known::new(n_slots, first as u32, batches.clone()), 0),
            Some(most_rows) => {
                let sizes = (n_slots, most_rows);
                let (known, filled) =
                    Known::filled(sizes, first as u32, batches.clone(), &remote);
                let pulls = remote.pulls.lock().unwrap();
                let is_fill = |(ids, kind): &(Vec<NodeId>, PullKind)| {
                    ids.len() <= most_rows && *kind == PullKind::Vector
                };
                prop_assert!(pulls.iter().all(is_fill));
                prop_assert_eq!(known.tier.held_bytes(), filled.remote_bytes);
                (known, filled.remote_rows)
            }
        };
        let source = Arc::new(source);
        let travelled = thread::scope(|scope| {
            let loader = loader(&remote);
            let (source, first) = (Arc::clone(&source) as _, first as u32);
            let window = Window { n_batches: window, together };
            let mut prefetcher = Prefetcher::start(scope, source, loader, window, first);
            let mut travelled = 0;
            for (nodes, misses) in batches[first as usize..].iter().zip(misses) {
                let prepared = prefetcher.next_batch().unwrap().unwrap();
                assert_eq!(prepared.rows.bytes(), rows_of(nodes));
                let load = prepared.load;
                let n_rows = load.local_rows + load.hit_rows + load.remote_rows;
                assert_eq!(n_rows, nodes.len() as u64);
                assert!(load.remote_rows == misses || fill.is_some());
                travelled += load.remote_rows;
            }
            travelled
        });
        prop_assert_eq!(travelled + filled, expected);
        prop_assert!(source.tier.held_bytes() <= (n_slots * ROW_BYTES) as u64);
    }
}

#[test]
fn next_uses_of_the_test_agree_with_the_caches() {
    let batches = [[1, 2], [2, 3], [1, 3]].map(nodes).to_vec();
    let known = Known::new(1, 0, batches);
    let ids = [1, 2, 2, 3, 1, 3];
    let found: Vec<u32> = (0..3).flat_map(|batch| known.next_uses(batch)).collect();
    assert_eq!(found, next_uses(&ids, &[0, 2, 4, 6]).unwrap());
}

#[test]
fn a_batch_that_fails_ends_the_run_and_nobody_waits_for_it() {
    for window in [0, 1, 3, 8].map(Window::joined) {
        for fails_at in 0..4 {
            let all = (0..9).map(|i| nodes([i, i + 1, 35])).collect();
            let known = Known { fails_at: Some(fails_at), ..Known::new(4, 0, all) };
            let remote = Arc::new(TestSource::new(Duration::from_millis(1), u64::MAX));
            thread::scope(|scope| {
                let source = Arc::new(known);
                let mut prefetcher = Prefetcher::start(scope, source, loader(&remote), window, 0);
                for _ in 0..fails_at {
                    prefetcher.next_batch().unwrap().unwrap();
                }
                assert!(prefetcher.next_batch().is_err());
            });
        }
    }
}

#[test]
fn batches_look_up_and_move_rows_in_their_order() {
    let tier = Arc::new(PlannedTier::new(4, ROW_BYTES, N_NODES, &(3..6)).unwrap());
    let (looked_up, moved) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for index in [5, 3, 4] {
            let (mut turn, looked_up, moved) = (tier.turn(index), &looked_up, &moved);
            scope.spawn(move || {
                // A batch that was given its slots out of order would find the row of another.
                turn.announce(vec![index - 2; 1]);
                let slots = turn.look_up(nodes([7]), 0..1).unwrap().to_vec();
                looked_up.lock().unwrap().push((index, slots));
                // The first of them takes longest.
                thread::sleep(Duration::from_millis(u64::from(60 - 10 * index)));
                let mut rows = if index == 3 { rows_of(&nodes([7])) } else { vec![0xEE; 4] };
                turn.move_rows(&[0], &mut rows, |_, _, _| panic!("no row is lost")).unwrap();
                assert_eq!(rows, rows_of(&nodes([7])), "batch {index}");
                moved.lock().unwrap().push(index);
            });
        }
    });
    let mut looked_up = looked_up.into_inner().unwrap();
    looked_up.sort_unstable();
    assert_eq!(looked_up, [(3, vec![u32::MAX]), (4, vec![0]), (5, vec![0])]);
    assert_eq!(moved.into_inner().unwrap().len(), 3);
    drop(tier.turn(6));
    let found = tier.turn(7).look_up(Vec::new(), 0..0).map(<[u32]>::to_vec);
    assert!(matches!(found, Err(ClientError::Abandoned { batch: 7 })));
}

/// A source whose pulls take different times, and of which some fail.
struct Unsteady {
    rows: TestSource,
    /// Of each pull, one after the other and then from the first again: microseconds, and whether it fails.
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

    fn pull(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
    ) -> Result<PullStats, ClientError> {
        let number = self.n_begun.fetch_add(1, Ordering::SeqCst);
        let (time_us, fails) = self.pulls[number % self.pulls.len()];
        thread::sleep(Duration::from_micros(time_us));
        if fails {
            self.n_failed.fetch_add(1, Ordering::SeqCst);
            out.fill(0xBB);
            return Err(ClientError::Panicked { thread: "test source, as the test wants it:" });
        }
        self.rows.pull(tensor, ids, out, kind)
    }
}

/// What a batch that was loaded found and pulled, or nothing for one that failed.
type Loaded = Option<LoadStats>;

/// Loads all batches by `n_threads` threads, `together` at a time.
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
    fn batches_that_overlap_decide_as_one_after_the_other_does(
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
    fn rows_are_right_and_no_batch_hangs_where_pulls_fail(
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
        // What is said to be resident is, but for slots that a later batch would find to be empty.
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

/// A pull that fails once all batches have looked up: those that counted on its rows pull them.
#[test]
fn rows_of_a_failed_pull_are_pulled_by_the_batches_that_counted_on_them() {
    let all: Vec<_> = [[1, 2], [1, 3], [1, 2], [2, 4]].map(nodes).to_vec();
    let known = Known::new(4, 0, all.clone());
    let remote = TestSource::new(Duration::ZERO, u64::MAX);
    let mut turns: Vec<_> = (0..4)
        .map(|index| {
            let mut turn = known.tier.turn(index);
            turn.announce(known.next_uses(index));
            turn
        })
        .collect();
    let look_up = |turn: &mut Turn, index: usize| {
        turn.look_up(all[index].clone(), 0..2)
            .unwrap()
            .iter()
            .map(|&slot| slot != u32::MAX)
            .collect()
    };
    let found: Vec<Vec<bool>> =
        turns[..3].iter_mut().enumerate().map(|(i, turn)| look_up(turn, i)).collect();
    assert_eq!(found, [[false, false], [true, false], [true, true]]);
    // The second fails before it is its turn to move rows, the first afterwards.
    turns[1].give_up();
    turns[0].give_up();
    let mut pulled = Vec::new();
    let mut rows = vec![0xEE; 8];
    let stats = turns[2].move_rows(&[0, 1], &mut rows, |ids, at, out| {
        pulled.extend_from_slice(ids);
        remote.pull_at("x", ids, at, out, PullKind::Sync)
    });
    assert_eq!((stats.unwrap().rows, rows, pulled), (2, rows_of(&all[2]), all[2].clone()));
    // They were taken out, so that a batch which looks up now pulls them like any other.
    assert_eq!(look_up(&mut turns[3], 3), [false, false]);
    let mut rows = rows_of(&all[3]);
    turns[3].move_rows(&[0, 1], &mut rows, |_, _, _| panic!("nothing was lost")).unwrap();
}

/// A source whose pulls wait for each other: until so many are under way, or for too long.
struct Crowd {
    rows: TestSource,
    expected: usize,
    /// Pulls under way, and the most of them so far.
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

    fn pull(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
    ) -> Result<PullStats, ClientError> {
        let mut inside = self.inside.lock().unwrap();
        inside.0 += 1;
        inside.1 = inside.1.max(inside.0);
        self.entered.notify_all();
        let too_few = |inside: &mut (usize, usize)| inside.1 < self.expected;
        let most = Duration::from_secs(10);
        inside = self.entered.wait_timeout_while(inside, most, too_few).unwrap().0;
        inside.0 -= 1;
        drop(inside);
        self.rows.pull(tensor, ids, out, kind)
    }
}

/// The pulls of all batches of a window are under way at the same time, and never more than these and
/// the one of the trainer.
#[test]
fn pulls_of_a_window_overlap_under_the_oracle() {
    for (n_batches, together, expected) in [(1, 1, 1), (4, 1, 4), (4, 2, 2), (8, 2, 3), (6, 1, 6)] {
        // Each batch misses a row of its own.
        let all: Vec<_> = (0..20).map(|i| nodes([i % 10, 12])).collect();
        let source = Arc::new(Known::new(0, 0, all.clone()));
        let rows = TestSource::new(Duration::ZERO, u64::MAX);
        let inside = Mutex::new((0, 0));
        let remote = Arc::new(Crowd { rows, expected, inside, entered: Condvar::new() });
        let local = Arc::new(TestSource::new(Duration::ZERO, u64::MAX));
        let loader = BatchLoader::new(local, Arc::clone(&remote) as _, "x", &[PartId(1)]).unwrap();
        thread::scope(|scope| {
            let window = Window { n_batches, together };
            let mut prefetcher = Prefetcher::start(scope, source, loader, window, 0);
            // Else the trainer may be the first to claim a batch.
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
        fn pull(
            &self,
            tensor: &str,
            ids: &[NodeId],
            out: &mut [u8],
            kind: PullKind,
        ) -> Result<PullStats, ClientError> {
            assert!(!ids.contains(&NodeId(2)), "as the test wants it");
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
        // Else this thread might claim batch 2, and panic itself.
        while remote.0.n_pulls() < 2 {
            thread::sleep(Duration::from_millis(1));
        }
        (0..2).for_each(|_| drop(prefetcher.next_batch().unwrap().unwrap()));
        let found = prefetcher.next_batch();
        assert!(matches!(found, Err(ClientError::Panicked { thread: "prefetch" })), "{found:?}");
        assert!(prefetcher.next_batch().unwrap().is_none());
    });
}
