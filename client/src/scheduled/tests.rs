use std::collections::BTreeSet;
use std::time::Instant;

use lodestore_cache::PolicySpec;
use lodestore_cache::policy::rank_by_frequency;
use lodestore_cache::replay::{Replay, ReplayInputs, TierSizes};
use lodestore_cache::trace::TraceBuilder;
use lodestore_graph::sampler::{Deal, Fanout};
use lodestore_graph::schedule::{ScheduleInput, ScheduleSpec, write_schedule};
use lodestore_graph::topology::Topology;
use lodestore_graph::{NodeId, PartitionBook};
use tempfile::TempDir;

use super::planned::soonest;
use super::*;
use crate::testing::{ROW_BYTES, TestSource, loader, rows_of};

const N_NODES: u32 = 40;
const EPOCHS: u32 = 3;
const TIME: Duration = Duration::from_secs(20);

/// Returns a schedule of five batches per epoch, over a ring in which each node has two
/// in-neighbours.
fn schedule() -> (TempDir, PathBuf, Arc<Schedule>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sched");
    let offsets = (0..=u64::from(N_NODES)).map(|node| 2 * node).collect();
    let neighbours = (0..N_NODES).flat_map(|node| [1, 7].map(|by| (node + by) % N_NODES)).collect();
    let topology = Topology::from_lists(offsets, neighbours).unwrap();
    let book = PartitionBook::from_counts(&[10, 20, 10]).unwrap();
    let roots: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let spec = ScheduleSpec {
        graph_uuid: [3; 16],
        seed: 11,
        fanouts: vec![Fanout::at_most(2).unwrap()],
        batch_size: 8,
        epochs: EPOCHS,
        workers: 1,
        deal: Deal::Owned,
    };
    write_schedule(
        &ScheduleInput { topology: &topology, book: &book, train_roots: &roots },
        &spec,
        &path,
        1,
        &mut |_, _| {},
    )
    .unwrap();
    let schedule = Arc::new(Schedule::open(&path).unwrap());
    (dir, path, schedule)
}

fn config(keep: Keep) -> IterationConfig {
    IterationConfig {
        worker: 0,
        first: 0,
        window: Window { n_batches: 4, together: 2 },
        keep,
        memory_bytes: 1 << 20,
    }
}

/// Starts an iteration over `x` twice, as the first tensor and as another one.
fn start(
    source: &Arc<TestSource>,
    (_, path, schedule): &(TempDir, PathBuf, Arc<Schedule>),
    config: &IterationConfig,
) -> ScheduledBatches {
    let source: Arc<dyn RowSource> = Arc::clone(source) as _;
    let tensors = ["x", "x"].map(str::to_owned);
    ScheduledBatches::start(&source, Arc::clone(schedule), path, &tensors, config).unwrap()
}

fn source(good_pulls: u64) -> Arc<TestSource> {
    Arc::new(TestSource::new(Duration::ZERO, good_pulls))
}

/// Returns the indices of all batches, after comparing each with the schedule and with its rows.
fn checked(batches: &ScheduledBatches, schedule: &Schedule) -> Vec<u32> {
    let mut indices = Vec::new();
    while let Some(batch) = batches.next_within(TIME).unwrap().expect("a batch within the time") {
        let per_epoch = schedule.n_batches(0);
        let (epoch, position) = (batch.index / per_epoch, batch.index % per_epoch);
        assert_eq!(batch.prepared.batch, schedule.get(0, epoch, position).unwrap());
        let expected = rows_of(&batch.prepared.batch.nodes);
        assert_eq!(batch.prepared.rows.bytes(), expected);
        assert_eq!(batch.others.len(), 1);
        assert_eq!(batch.others[0].bytes(), expected);
        indices.push(batch.index);
    }
    indices
}

/// Waits until the thread has dropped its schedule.
fn wait_for_end(schedule: &Arc<Schedule>) {
    let start = Instant::now();
    while Arc::strong_count(schedule) > 1 {
        assert!(start.elapsed() < TIME, "the thread has not ended");
        thread::sleep(Duration::from_millis(1));
    }
}

fn files_beside(path: &Path) -> usize {
    path.parent().unwrap().read_dir().unwrap().count()
}

#[test]
fn all_batches_are_returned_in_order_with_the_rows_of_every_tensor() {
    let run = schedule();
    let n_batches = EPOCHS * run.2.n_batches(0);
    assert!(n_batches >= 10);
    for keep in [Keep::Nothing, Keep::Hot, Keep::Oracle] {
        let (source, config) = (source(u64::MAX), config(keep));
        let batches = start(&source, &run, &config);
        assert_eq!(checked(&batches, &run.2), (0..n_batches).collect::<Vec<_>>());
        assert!(batches.next_within(TIME).unwrap().unwrap().is_none(), "the end stays");
        drop(batches);
        wait_for_end(&run.2);
        assert_eq!(files_beside(&run.1), 1, "next uses are removed");
    }
}

#[test]
fn retained_rows_are_pulled_once() {
    let run = schedule();
    let read = |keep| {
        let batches = start(&source(u64::MAX), &run, &config(keep));
        checked(&batches, &run.2);
        batches.stats()
    };
    let oracle = read(Keep::Oracle);
    assert_eq!(oracle.capacity_rows, u64::from(N_NODES));
    assert_eq!(oracle.load.remote_rows + oracle.filled_rows, u64::from(N_NODES));
    // A set of all rows is pulled once, and the next one takes them over.
    let hot = read(Keep::Hot);
    assert_eq!(hot.capacity_rows, u64::from(N_NODES));
    assert_eq!((hot.filled_rows, hot.load.remote_rows), (u64::from(N_NODES), 0));
    let nothing = read(Keep::Nothing);
    assert_eq!((nothing.capacity_rows, nothing.filled_rows), (0, 0));
    let met = oracle.window.ready + oracle.window.waited + oracle.window.default_path;
    assert_eq!(met, u64::from(EPOCHS * run.2.n_batches(0)));
    assert!(nothing.load.remote_rows > oracle.load.remote_rows + oracle.filled_rows);
}

/// Rows that `frequency` finds, misses and pulls before epochs.
#[derive(Debug, PartialEq, Eq)]
struct HotRowCounts {
    hits: u64,
    misses: u64,
    ahead: u64,
}

/// Returns the remote nodes of a batch.
fn remote_of(schedule: &Schedule, loader: &BatchLoader, epoch: u32, position: u32) -> Vec<u32> {
    let nodes = schedule.get(0, epoch, position).unwrap().nodes;
    nodes.into_iter().filter(|&node| loader.is_remote(node)).map(|node| node.0).collect()
}

/// Replays the schedule's remote rows against `frequency`, as `lode cache-bench --ahead` does.
fn simulated(schedule: &Schedule, loader: &BatchLoader, n_hot: u32) -> HotRowCounts {
    let mut builder = TraceBuilder::default();
    for epoch in 0..EPOCHS {
        builder.begin_epoch();
        for position in 0..schedule.n_batches(0) {
            builder.push_batch(&remote_of(schedule, loader, epoch, position)).unwrap();
        }
    }
    let trace = builder.finish(Some(N_NODES));
    let ranking = |epoch| Arc::from(rank_by_frequency(trace.epoch_ids(epoch)));
    let rankings: Arc<[Arc<[u32]>]> = (0..EPOCHS as usize).map(ranking).collect();
    let spec = PolicySpec::Frequency(Arc::clone(&rankings[0]));
    let inputs = ReplayInputs { rankings: Some(rankings), ahead: true, ..ReplayInputs::default() };
    let mut replay = Replay::new(&trace, TierSizes::One(n_hot), &spec, inputs).unwrap();
    while !replay.is_done() {
        replay.advance_batch();
    }
    let stats = replay.stats();
    HotRowCounts { hits: stats.tier.hits, misses: stats.tier.misses, ahead: stats.n_ahead }
}

/// Loads all batches with hot sets of `n_hot` rows, each epoch once its set is there.
fn counted(
    (_, path, schedule): &(TempDir, PathBuf, Arc<Schedule>),
    loader: &BatchLoader,
    n_hot: u32,
) -> HotRowCounts {
    let mut load = LoadStats::default();
    let mut n_chosen = 0;
    let ahead = thread::scope(|scope| {
        let (keep, n_hot) = (Keep::Hot, n_hot as usize);
        let config = PlannedConfig { worker: 0, first: 0, keep, n_hot, fill_rows: 1 };
        let batches = PlannedBatches::start(scope, schedule, path, loader, config).unwrap();
        for index in 0..batches.n_batches() {
            let epoch = index / schedule.n_batches(0);
            if index.is_multiple_of(schedule.n_batches(0)) {
                let of_epoch = 0..schedule.n_batches(0);
                let remote = of_epoch.flat_map(|at| remote_of(schedule, loader, epoch, at));
                n_chosen += remote.collect::<BTreeSet<u32>>().len().min(n_hot) as u64;
                let start = Instant::now();
                let n_built = || batches.pulled_until(epoch).remote_rows + batches.kept().kept_rows;
                while n_built() < n_chosen {
                    assert!(start.elapsed() < TIME, "the hot set is not built");
                    thread::sleep(Duration::from_millis(1));
                }
            }
            let (batch, kept) = batches.batch(index).unwrap();
            let mut out = vec![0; batch.nodes.len() * ROW_BYTES];
            let mut of_batch = [(&batch.nodes[..], kept)];
            load += loader.clone().load_together(&mut of_batch, &mut out).unwrap()[0];
            assert_eq!(out, rows_of(&batch.nodes));
        }
        assert_eq!(batches.kept().late, 0);
        batches.pulled_until(EPOCHS).remote_rows
    });
    HotRowCounts { hits: load.hit_rows, misses: load.remote_rows, ahead }
}

#[test]
fn hot_sets_find_the_rows_that_the_simulated_policy_finds() {
    let run = schedule();
    let loader = loader(&source(u64::MAX));
    for n_hot in [1, 2, 5, 9, 14, 19, 20] {
        let simulated = simulated(&run.2, &loader, n_hot);
        assert_eq!(counted(&run, &loader, n_hot), simulated, "{n_hot} hot rows");
        assert!(simulated.hits > 0);
    }
}

#[test]
fn memory_bounds_the_retained_rows() {
    let run = schedule();
    for keep in [Keep::Oracle, Keep::Hot] {
        for memory_bytes in [0, 40, 400, 800] {
            let config = IterationConfig { memory_bytes, ..config(keep) };
            let batches = start(&source(u64::MAX), &run, &config);
            checked(&batches, &run.2);
            let stats = batches.stats();
            let n_sets = if keep == Keep::Hot { 2 } else { 1 };
            let kept_bytes = n_sets * stats.capacity_rows * ROW_BYTES as u64;
            assert!(kept_bytes <= memory_bytes, "{keep:?}, {memory_bytes}: {stats:?}");
        }
    }
}

#[test]
fn an_iteration_begins_at_any_batch() {
    let run = schedule();
    let n_batches = EPOCHS * run.2.n_batches(0);
    for keep in [Keep::Oracle, Keep::Hot] {
        for first in [1, run.2.n_batches(0), n_batches - 1, n_batches] {
            let config = IterationConfig { first, ..config(keep) };
            let batches = start(&source(u64::MAX), &run, &config);
            assert_eq!(checked(&batches, &run.2), (first..n_batches).collect::<Vec<_>>());
        }
    }
}

#[test]
fn the_first_rows_are_those_that_are_used_soonest() {
    let run = schedule();
    let is_remote = |node: NodeId| !node.0.is_multiple_of(3);
    let soonest = |n| soonest(&run.2, 0, 6, n, &is_remote).unwrap();
    let found = soonest(12);
    assert_eq!(found.len(), 12);
    assert!(found.is_sorted_by_key(|(_, number)| *number));
    let distinct: BTreeSet<NodeId> = found.iter().map(|(node, _)| *node).collect();
    assert_eq!(distinct.len(), 12);
    for (node, number) in &found {
        assert!(is_remote(*node));
        let nodes = |number| run.2.get(0, 1, 1 + number).unwrap().nodes;
        assert!(nodes(*number).contains(node));
        assert!((0..*number).all(|earlier| !nodes(earlier).contains(node)));
    }
    // Only the rest of the epoch counts.
    let all = soonest(usize::MAX);
    assert!(all.iter().all(|(_, number)| *number < run.2.n_batches(0) - 1));
}

#[test]
fn an_error_ends_the_iteration() {
    let run = schedule();
    // Each batch is pulled twice, and the fourth pull is the last good one.
    let config = IterationConfig { window: Window::one_by_one(1), ..config(Keep::Nothing) };
    let batches = start(&source(4), &run, &config);
    let found: Result<Vec<_>, _> =
        (0..EPOCHS * run.2.n_batches(0)).map(|_| batches.next_within(TIME)).collect();
    assert!(matches!(found, Err(ClientError::Panicked { .. })), "{found:?}");
    assert!(batches.next_within(TIME).unwrap().unwrap().is_none(), "the iteration has ended");
    wait_for_end(&run.2);
}

#[test]
fn a_dropped_iteration_ends_its_thread() {
    let run = schedule();
    for (taken, keep) in [(0, Keep::Oracle), (0, Keep::Hot), (2, Keep::Oracle), (2, Keep::Hot)] {
        let batches = start(&source(u64::MAX), &run, &config(keep));
        for _ in 0..taken {
            batches.next_within(TIME).unwrap().unwrap().unwrap();
        }
        drop(batches);
        wait_for_end(&run.2);
        assert_eq!(files_beside(&run.1), 1);
    }
}

#[test]
fn a_batch_that_is_not_ready_is_none() {
    let run = schedule();
    let source = Arc::new(TestSource::new(Duration::from_millis(300), u64::MAX));
    let batches = start(&source, &run, &config(Keep::Nothing));
    assert!(batches.next_within(Duration::from_millis(1)).unwrap().is_none());
    assert_eq!(batches.next_within(TIME).unwrap().unwrap().unwrap().index, 0);
}

#[test]
fn unknown_tensors_and_workers_are_refused() {
    let (dir, path, schedule) = schedule();
    let source: Arc<dyn RowSource> = source(u64::MAX);
    let start = |tensors: &[&str], worker| {
        let tensors: Vec<String> = tensors.iter().map(|name| (*name).to_owned()).collect();
        let config = IterationConfig { worker, ..config(Keep::Nothing) };
        ScheduledBatches::start(&source, Arc::clone(&schedule), &path, &tensors, &config).err()
    };
    assert!(start(&["x"], 0).is_none());
    for tensors in [["none", "x"], ["x", "none"]] {
        let error = start(&tensors, 0);
        assert!(matches!(error, Some(ClientError::UnknownTensor { .. })), "{error:?}");
    }
    assert!(matches!(start(&["x"], 1), Some(ClientError::Schedule(_))));
    drop(dir);
}

#[test]
fn an_unpinned_source_is_refused() {
    let (_dir, path, schedule) = schedule();
    let source: Arc<dyn RowSource> = TestSource::unpinned();
    for keep in [Keep::Oracle, Keep::Hot, Keep::Nothing] {
        let tensors = ["x".to_owned()];
        let config = config(keep);
        let schedule = Arc::clone(&schedule);
        let started = ScheduledBatches::start(&source, schedule, &path, &tensors, &config);
        let error = started.err();
        assert!(matches!(error, Some(ClientError::Unpinned { .. })), "{error:?}");
    }
}
