use std::thread;

use lodestore_cache::bypass::BypassSettings;
use lodestore_cache::shared::SharedSettings;
use lodestore_cache::{PolicyKind, PolicySpec};
use lodestore_graph::PartitionBook;
use lodestore_store::Dtype;
use proptest::prelude::*;

use super::*;
use crate::source::memory::MemorySource;
use crate::testing::TestSource;

const N_NODES: u32 = 50;
const ROW_BYTES: usize = 6;

fn row(id: u32) -> [u8; ROW_BYTES] {
    std::array::from_fn(|column| (id * 5) as u8 + column as u8)
}

fn rows(ids: &[NodeId]) -> Vec<u8> {
    ids.iter().flat_map(|id| row(id.0)).collect()
}

fn source() -> MemorySource {
    let mut source = MemorySource::new(PartitionBook::from_counts(&[30, 20]).unwrap());
    let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    source.add("x", Dtype::U8, ROW_BYTES as u32, rows(&all)).unwrap();
    source.add("y", Dtype::U8, 1, vec![9; N_NODES as usize]).unwrap();
    source
}

fn tier_of(n_slots: u32, policy: PolicyKind) -> Arc<SharedTier> {
    let spec = PolicySpec::try_from(policy).unwrap();
    let settings = SharedSettings::default();
    Arc::new(SharedTier::of_slots(n_slots, ROW_BYTES, N_NODES, &spec, settings).unwrap())
}

fn tiered(n_slots: u32, policy: PolicyKind) -> TieredSource {
    let tier = tier_of(n_slots, policy);
    TieredSource::new(Arc::new(source()), "x", tier).unwrap()
}

fn nodes(ids: &[u32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

proptest! {
    #[test]
    fn rows_are_right_at_every_capacity_and_only_rows_that_the_tier_lacks_are_pulled(
        n_slots in 0u32..60,
        policy in prop::sample::select(PolicyKind::REACTIVE.to_vec()),
        batches in prop::collection::vec(prop::collection::vec(0..N_NODES, 0..70), 1..12),
    ) {
        let source = tiered(n_slots, policy);
        let (mut n_asked, mut n_pulled) = (0, 0);
        for ids in batches {
            let ids = nodes(&ids);
            let mut out = vec![0xee; ids.len() * ROW_BYTES];
            let stats = source.pull("x", &ids, &mut out, PullKind::Sync).unwrap();
            prop_assert!(out == rows(&ids));
            n_asked += ids.len() as u64;
            n_pulled += stats.rows;
        }
        let stats = source.tier().stats();
        prop_assert_eq!((stats.misses, stats.hits), (n_pulled, n_asked - n_pulled));
        prop_assert!(n_slots > 0 && policy != PolicyKind::None || stats.hits == 0);
    }
}

#[test]
fn pulled_rows_are_not_pulled_again_until_they_are_forgotten() {
    let source = tiered(10, PolicyKind::Lru);
    let ids = nodes(&[3, 40, 7]);
    let mut out = vec![0; ids.len() * ROW_BYTES];
    let mut pulled = || source.pull("x", &ids, &mut out, PullKind::Vector).unwrap().rows;
    assert_eq!([pulled(), pulled()], [3, 0]);
    source.forget(&nodes(&[40, 41]));
    assert_eq!([pulled(), pulled()], [1, 0]);
}

#[test]
fn rows_are_pulled_again_when_the_worker_that_is_ahead_finds_them_too_old() {
    let settings = SharedSettings { max_age: Some(2), ..SharedSettings::default() };
    let tier = SharedTier::of_slots(10, ROW_BYTES, N_NODES, &PolicySpec::Lru, settings).unwrap();
    let tier = Arc::new(tier);
    let [ahead, behind] =
        [0; 2].map(|_| TieredSource::new(Arc::new(source()), "x", Arc::clone(&tier)).unwrap());
    let ids = nodes(&[3, 40, 7]);
    let mut out = vec![0; ids.len() * ROW_BYTES];
    let mut pulled =
        |worker: &TieredSource| worker.pull("x", &ids, &mut out, PullKind::Sync).unwrap().rows;
    assert_eq!([0; 8].map(|_| pulled(&ahead)), [3, 0, 0, 3, 0, 0, 3, 0]);
    assert_eq!([0; 9].map(|_| pulled(&behind)), [0; 9], "no time passes until it is ahead");
    assert_eq!(pulled(&behind), 3);
    assert_eq!(tier.stats().stale, 9);
}

#[test]
fn a_tier_without_hits_is_left_alone_and_keeps_nothing_meanwhile() {
    let bypass = BypassSettings {
        round_batches: 2,
        patience_rounds: 1,
        rest_rounds: 1,
        ..BypassSettings::default()
    };
    let settings = SharedSettings { bypass: Some(bypass), ..SharedSettings::default() };
    let tier = SharedTier::of_slots(1, ROW_BYTES, N_NODES, &PolicySpec::Lru, settings).unwrap();
    let source = TieredSource::new(Arc::new(source()), "x", Arc::new(tier)).unwrap();
    let mut out = vec![0; 20 * ROW_BYTES];
    let mut pull = |first: u32| {
        let ids = nodes(&(first..first + 20).collect::<Vec<_>>());
        source.pull("x", &ids, &mut out, PullKind::Sync).unwrap();
        assert!(out == rows(&ids));
    };
    [0, 20, 0, 20, 0].into_iter().for_each(&mut pull);
    let stats = source.tier().stats();
    assert_eq!((stats.hits, stats.misses, stats.bypassed), (0, 60, 40), "two batches of five");
    assert_eq!(stats.admissions, 3);
}

#[test]
fn other_tensors_bypass_the_tier_and_failed_pulls_keep_nothing() {
    let source = tiered(10, PolicyKind::Lru);
    let mut out = [0; 2];
    source.pull("y", &nodes(&[1, 2]), &mut out, PullKind::Sync).unwrap();
    assert_eq!((out, source.tier().stats().misses), ([9; 2], 0));
    let mut out = vec![0; 2 * ROW_BYTES];
    let unknown = source.pull("x", &nodes(&[1, N_NODES]), &mut out, PullKind::Sync).unwrap_err();
    assert!(matches!(unknown, ClientError::UnknownNode { .. }), "{unknown}");
    let stats = source.pull("x", &nodes(&[1, 2]), &mut out, PullKind::Sync).unwrap();
    assert_eq!(stats.rows, 2, "a failed pull has left rows");
    let short = source.pull("x", &nodes(&[1]), &mut out, PullKind::Sync).unwrap_err();
    assert!(matches!(short, ClientError::BufferSize { .. }), "{short}");
}

#[test]
fn a_tier_for_rows_of_another_length_is_refused() {
    let settings = SharedSettings::default();
    let tier = SharedTier::of_slots(4, ROW_BYTES + 1, N_NODES, &PolicySpec::Lru, settings).unwrap();
    assert!(TieredSource::new(Arc::new(source()), "x", Arc::new(tier)).is_err());
}

/// A source that runs other code while a row is in transit.
struct Slow<F: Fn() + Send + Sync> {
    inner: MemorySource,
    work: F,
}

impl<F: Fn() + Send + Sync> RowSource for Slow<F> {
    fn book(&self) -> &PartitionBook {
        self.inner.book()
    }
    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.inner.tensor(name)
    }
    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        _work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        let pulled = self.inner.pull(tensor, ids, out, kind);
        (self.work)();
        pulled
    }
}

#[test]
fn a_row_that_changed_while_it_was_in_transit_is_not_kept() {
    let cell = Arc::new(std::sync::OnceLock::<Arc<TieredSource>>::new());
    let tiered = Arc::clone(&cell);
    let work = move || {
        if let Some(source) = tiered.get() {
            source.forget(&nodes(&[5]));
        }
    };
    let tier = tier_of(4, PolicyKind::Lru);
    let slow = Slow { inner: source(), work };
    let source = Arc::new(TieredSource::new(Arc::new(slow), "x", tier).unwrap());
    assert!(cell.set(Arc::clone(&source)).is_ok());
    let mut out = [0; ROW_BYTES];
    for _ in 0..2 {
        let stats = source.pull("x", &nodes(&[5]), &mut out, PullKind::Sync).unwrap();
        assert_eq!(stats.rows, 1, "the old row was kept");
    }
}

#[test]
fn many_threads_get_right_rows() {
    let source = tiered(12, PolicyKind::Sieve);
    thread::scope(|scope| {
        for seed in 0..4u32 {
            let source = &source;
            scope.spawn(move || {
                for turn in 0..500 {
                    let ids: Vec<u32> =
                        (0..20).map(|i| (i * i * (seed + 3) + turn) % N_NODES).collect();
                    let ids = nodes(&ids);
                    let mut out = vec![0; ids.len() * ROW_BYTES];
                    source.pull("x", &ids, &mut out, PullKind::Sync).unwrap();
                    assert!(out == rows(&ids));
                }
            });
        }
    });
}

#[test]
fn tiers_of_several_tensors_share_a_budget() {
    let ids: Vec<u32> = (0..N_NODES).collect();
    // The memory of a tier without slots.
    let n_empty = TieredTensors::new(Arc::new(source()), &["x", "y"], 0).unwrap().bytes() as u64;
    assert!(n_empty < 200, "{n_empty}");
    for memory_bytes in [0, 1000, 1 << 20] {
        let tiered = TieredTensors::new(Arc::new(source()), &["x", "y"], memory_bytes).unwrap();
        let n_bytes = tiered.bytes() as u64;
        assert!(n_bytes <= memory_bytes + n_empty, "{n_bytes} of {memory_bytes}");
        for _ in 0..2 {
            let mut out = vec![0; ids.len() * ROW_BYTES];
            tiered.source().pull("x", &nodes(&ids), &mut out, PullKind::Sync).unwrap();
            assert!(out == rows(&nodes(&ids)));
            let mut out = vec![0; ids.len()];
            tiered.source().pull("y", &nodes(&ids), &mut out, PullKind::Sync).unwrap();
            assert!(out == vec![9; ids.len()]);
        }
        let n = u64::from(N_NODES);
        let (hits, misses) = tiered.hits_and_misses();
        assert_eq!(hits + misses, 4 * n);
        match memory_bytes {
            0 => assert_eq!(hits, 0),
            1000 => assert!(hits < 2 * n, "the budget is too small for all rows"),
            _ => assert_eq!(hits, 2 * n),
        }
    }
    assert!(TieredTensors::new(Arc::new(source()), &["x", "z"], 400).is_err());
}

#[test]
fn tiers_hold_no_rows_of_an_unpinned_source() {
    let unpinned = TestSource::unpinned();
    let error = TieredTensors::new(unpinned, &["x"], 1 << 20).err();
    assert!(matches!(error, Some(ClientError::Unpinned { .. })), "{error:?}");
}
