use lodestore_cache::device::TierShape;
use lodestore_cache::device::{Device, DeviceSettings};
use lodestore_cache::shared::SharedSettings;
use lodestore_cache::two_level::Inclusion;
use lodestore_cache::{DeviceTier, PolicyKind, PolicySpec, SharedTier};
use lodestore_store::Dtype;
use proptest::prelude::*;

use super::*;
use crate::source::TierRows;
use crate::source::memory::MemorySource;

const N_NODES: u32 = 50;
const ROW_BYTES: usize = 6;

fn rows(ids: &[NodeId]) -> Vec<u8> {
    ids.iter().flat_map(|id| [id.0 as u8 + 1; ROW_BYTES]).collect()
}

fn nodes(ids: &[u32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

fn source() -> MemorySource {
    let book = PartitionBook::new(vec![0, N_NODES]).unwrap();
    let mut source = MemorySource::new(book);
    let all = nodes(&(0..N_NODES).collect::<Vec<_>>());
    source.add("x", Dtype::U8, ROW_BYTES as u32, rows(&all)).unwrap();
    source.add("y", Dtype::U8, 1, vec![9; N_NODES as usize]).unwrap();
    source
}

fn tier(n_slots: u32, row_bytes: usize, kind: PolicyKind) -> TwoLevelTier {
    let spec = PolicySpec::try_from(kind).unwrap();
    // Staging of four rows, so that batches need several rounds.
    let settings = DeviceSettings { staging_bytes: 4 * row_bytes, ..DeviceSettings::default() };
    let device = DeviceTier::new(
        &Device::host(),
        TierShape { capacity_rows: n_slots, row_bytes, id_space: N_NODES },
        &spec,
        settings,
    );
    TwoLevelTier::new(device.unwrap())
}

proptest! {
    #[test]
    fn two_levels_give_the_right_rows_at_every_capacity(
        on_device in 0u32..30,
        on_host in 0u32..60,
        kind in prop::sample::select(PolicyKind::REACTIVE.to_vec()),
        inclusion in prop::sample::select(vec![Inclusion::Inclusive, Inclusion::Exclusive]),
        batches in prop::collection::vec(prop::collection::vec(0..N_NODES, 0..70), 1..10),
    ) {
        let spec = PolicySpec::try_from(kind).unwrap();
        let settings = SharedSettings::default();
        let host = SharedTier::of_slots(on_host, ROW_BYTES, N_NODES, &spec, settings).unwrap();
        let levels = tier(on_device, ROW_BYTES, kind).over(Arc::new(host), inclusion);
        let device = DeviceSource::new(Arc::new(source()), "x", levels).unwrap();
        let (mut n_pulled, mut found) = (0, TierRows::default());
        for ids in batches {
            let ids = nodes(&ids);
            let mut out = vec![0xee; ids.len() * ROW_BYTES];
            let pulled = device.pull("x", &ids, &mut out, PullKind::Sync).unwrap();
            n_pulled += pulled.rows;
            found += pulled.found;
            prop_assert!(out == rows(&ids));
        }
        let stats = device.stats();
        let below = stats.host;
        prop_assert_eq!(stats.device.misses, below.hits + below.misses);
        prop_assert_eq!(below.misses, n_pulled);
        let hits = (stats.device.hits, below.hits);
        prop_assert_eq!((found.device, found.host, found.buffer), (hits.0, hits.1, 0));
    }
}

#[test]
fn batches_stay_on_the_device_and_forgotten_rows_are_pulled_again() {
    let device = DeviceSource::new(Arc::new(source()), "x", tier(9, ROW_BYTES, PolicyKind::Lru));
    let device = device.unwrap();
    assert_eq!(device.device(), "host");
    let (ids, mut batch) = (nodes(&[3, 40, 7]), device.batch_tensor(3).unwrap());
    let mut gathered = || device.gather(&ids, &mut batch, PullKind::Sync).unwrap().rows;
    assert_eq!([gathered(), gathered()], [3, 0]);
    device.forget(&nodes(&[40, 41]), None);
    assert_eq!([gathered(), gathered()], [1, 0]);
    assert_eq!(batch.as_host(), Some(&rows(&ids)[..]));
}

/// A source that runs `work` at each pull, as if its rows were in transit.
struct Travelling(MemorySource);

impl RowSource for Travelling {
    fn book(&self) -> &PartitionBook {
        self.0.book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.0.tensor(name)
    }

    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        work();
        self.0.pull(tensor, ids, out, kind)
    }
}

#[test]
fn a_pull_in_several_pieces_runs_work_once() {
    let travelling = Arc::new(Travelling(source()));
    let device = DeviceSource::new(travelling, "x", tier(9, ROW_BYTES, PolicyKind::Lru)).unwrap();
    // In pieces of the four rows that fit into staging; without rows there is no piece.
    for (ids, expected) in [((0..24).collect::<Vec<_>>(), 1), ((24..50).collect(), 1), (vec![], 0)]
    {
        let (ids, mut n_calls) = (nodes(&ids), 0);
        let mut out = vec![0xee; ids.len() * ROW_BYTES];
        device.pull_overlapped("x", &ids, &mut out, PullKind::Sync, &mut || n_calls += 1).unwrap();
        assert!(out == rows(&ids));
        assert_eq!(n_calls, expected);
    }
}

#[test]
fn other_tensors_bypass_the_tier_and_failed_pulls_keep_nothing() {
    let device = DeviceSource::new(Arc::new(source()), "x", tier(9, ROW_BYTES, PolicyKind::Lru));
    let device = device.unwrap();
    let mut out = [0; 2];
    device.pull("y", &nodes(&[1, 2]), &mut out, PullKind::Sync).unwrap();
    assert_eq!((out, device.stats().device.misses), ([9; 2], 0));
    let mut out = vec![0; 2 * ROW_BYTES];
    let unknown = device.pull("x", &nodes(&[1, N_NODES]), &mut out, PullKind::Sync).unwrap_err();
    assert!(matches!(unknown, ClientError::UnknownNode { .. }), "{unknown}");
    let stats = device.pull("x", &nodes(&[1, 2]), &mut out, PullKind::Sync).unwrap();
    assert_eq!(stats.rows, 2, "a failed pull has left rows");
    let small =
        device.gather(&nodes(&[1, 2]), &mut device.batch_tensor(1).unwrap(), PullKind::Sync);
    assert!(matches!(small, Err(ClientError::Device(_))), "{small:?}");
    let other = DeviceSource::new(Arc::new(source()), "x", tier(4, 7, PolicyKind::Lru));
    assert!(matches!(other, Err(ClientError::TierWidth { .. })));
}
