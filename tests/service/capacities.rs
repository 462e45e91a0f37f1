//! One batch that is larger than the cache, at every capacity: it is served, and right.
//!
//! 163 000 rows before a cache of 100 000 are what other feature stores are known to wait for for
//! ever.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lodestore_cache::device::TierShape;
use lodestore_cache::device::{Device, DeviceSettings};
use lodestore_cache::shared::SharedSettings;
use lodestore_cache::two_level::Inclusion;
use lodestore_cache::{DeviceTier, PolicyKind, PolicySpec, SharedTier, TwoLevelTier};
use lodestore_client::source::device::DeviceSource;
use lodestore_client::{Client, ClientConfig, PullKind, RowSource, TieredSource};
use lodestore_graph::NodeId;
use lodestore_store::EmbeddedStore;
use tempfile::TempDir;

use testing::Numbers;
use testing::process::{Serving, lode_line};

const N_NODES: u32 = 200_000;
const BATCH: u32 = 163_000;
const CACHE: u32 = 100_000;
/// Four f32.
const ROW_BYTES: usize = 16;

/// A graph, a batch of different nodes in random order, and its rows.
struct Asked {
    _dir: TempDir,
    graph: PathBuf,
    ids: Vec<NodeId>,
    rows: Vec<u8>,
}

impl Asked {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (raw, graph) = (dir.path().join("raw"), dir.path().join("graph"));
        let generate = format!(
            "generate --nodes {N_NODES} --degree 2 --dim 4 --classes 2 --seed 3 --out {}",
            raw.display()
        );
        lode_line(&generate).succeeded();
        let import = format!(
            "import --edges {raw}/edges.npy --tensor feat={raw}/features.npy --parts 2 \
             --partitioner range --out {}",
            graph.display(),
            raw = raw.display()
        );
        lode_line(&import).succeeded();
        let mut ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
        let mut numbers = Numbers(5);
        for n in (1..ids.len()).rev() {
            ids.swap(n, numbers.below(n as u32 + 1) as usize);
        }
        ids.truncate(BATCH as usize);
        let store = EmbeddedStore::open(&graph, None).unwrap();
        let mut rows = vec![0; ids.len() * ROW_BYTES];
        store.gather("feat", &ids, &mut rows).unwrap();
        Self { _dir: dir, graph, ids, rows }
    }

    fn serve(&self, more: &str) -> Serving {
        Serving::start(&self.graph, &format!("--listen 127.0.0.1:0 --shards 2 {more}"))
    }

    /// Checks the batch three times; the last may hit rows that the others left.
    fn check(&self, source: &dyn RowSource, what: &str) {
        let mut out = vec![0xee; self.rows.len()];
        for turn in 0..3 {
            out.fill(0xee);
            source.pull("feat", &self.ids, &mut out, PullKind::Sync).unwrap();
            assert!(out == self.rows, "{what}, turn {turn}");
        }
    }
}

fn client(serving: &Serving) -> Client {
    let deadline = Duration::from_secs(60);
    Client::connect(
        std::slice::from_ref(&serving.address),
        ClientConfig { deadline, ..Default::default() },
    )
    .unwrap()
}

#[test]
fn a_server_serves_a_batch_that_is_larger_than_its_tier() {
    let asked = Asked::new();
    let bytes = |n_rows: u32| format!("--memory {}", n_rows as usize * (ROW_BYTES + 40));
    for memory in [0, 1, 1000, CACHE, BATCH, N_NODES].map(bytes) {
        let serving = asked.serve(&memory);
        asked.check(&client(&serving), &memory);
        serving.stop();
    }
    for policy in PolicyKind::REACTIVE.iter().filter(|kind| PolicySpec::try_from(**kind).is_ok()) {
        let more = format!("{} --policy {policy}", bytes(CACHE));
        let serving = asked.serve(&more);
        asked.check(&client(&serving), &more);
        serving.stop();
    }
}

#[test]
fn a_trainers_tiers_serve_a_batch_that_is_larger_than_they_are() {
    let asked = Asked::new();
    let serving = asked.serve("--memory 0");
    let client: Arc<dyn RowSource> = Arc::new(client(&serving));
    let specs: Vec<PolicySpec> =
        PolicyKind::REACTIVE.iter().map(|&kind| PolicySpec::try_from(kind).unwrap()).collect();
    for (n_slots, spec) in [0, 1, 1000, CACHE, BATCH - 1, BATCH, N_NODES]
        .into_iter()
        .flat_map(|n_slots| specs.iter().map(move |spec| (n_slots, spec)))
    {
        let settings = SharedSettings::default();
        let host = SharedTier::of_slots(n_slots, ROW_BYTES, N_NODES, spec, settings).unwrap();
        let source = TieredSource::new(Arc::clone(&client), "feat", Arc::new(host)).unwrap();
        let what = format!("{n_slots} rows under {}", spec.kind());
        asked.check(&source, &what);
        // The second and third turn; a tier that keeps nothing is right, too, but of no use.
        let hits = source.tier().stats().hits;
        let keeps = spec.kind() != PolicyKind::None;
        assert!(!keeps || n_slots < 1000 || hits > 0, "{what}: no hit");
        let all = if keeps { 2 * u64::from(BATCH) } else { 0 };
        assert!(n_slots < N_NODES || hits == all, "{what}: {hits} hits");
    }
    for (inclusion, device_rows, host_rows) in [
        (Inclusion::Inclusive, CACHE, 0),
        (Inclusion::Inclusive, 1000, CACHE),
        (Inclusion::Exclusive, CACHE / 2, CACHE / 2),
        (Inclusion::Exclusive, 1, BATCH - 2),
    ] {
        let (settings, spec) = (SharedSettings::default(), &PolicySpec::Lru);
        let host = SharedTier::of_slots(host_rows, ROW_BYTES, N_NODES, spec, settings).unwrap();
        let device = DeviceTier::new(
            &Device::host(),
            TierShape { capacity_rows: device_rows, row_bytes: ROW_BYTES, id_space: N_NODES },
            spec,
            DeviceSettings { staging_bytes: 1 << 18, ..DeviceSettings::default() },
        );
        let levels = TwoLevelTier::new(device.unwrap()).over(Arc::new(host), inclusion);
        let source = DeviceSource::new(Arc::clone(&client), "feat", levels).unwrap();
        let what = format!("{inclusion:?}, {device_rows} over {host_rows}");
        asked.check(&source, &what);
        let stats = source.stats();
        // The host sees the batch in pieces, which `lru` cannot keep all of.
        assert!(stats.device.hits > 0, "{what}: no hit on the device");
    }
    serving.stop();
}
