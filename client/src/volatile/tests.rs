use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lodestore_cache::device::TierShape;
use lodestore_cache::device::{Device, DeviceSettings};
use lodestore_cache::shared::SharedSettings;
use lodestore_cache::volatile::VolatileError;
use lodestore_cache::{DeviceTier, PolicySpec, SharedTier};
use lodestore_graph::PartitionBook;
use lodestore_store::Dtype;
use proptest::prelude::*;

use super::*;

const N_NODES: u32 = 48;
const WIDTH: u32 = 24;
const ROW_BYTES: usize = WIDTH as usize;
/// Bounds the age of no row, so that stamps are kept.
const ANY_AGE: Option<u32> = Some(u32::MAX);

fn row_of(node: u32, stamp: Stamp) -> Vec<u8> {
    let mut row: Vec<u8> = (0..WIDTH).map(|i| (node * 31 + stamp * 7 + i) as u8).collect();
    row[..4].copy_from_slice(&stamp.to_le_bytes());
    row
}

fn rows_of(ids: &[NodeId], stamp: Stamp) -> Vec<u8> {
    ids.iter().flat_map(|id| row_of(id.0, stamp)).collect()
}

fn memory() -> Arc<EmbeddedVolatile> {
    let book = PartitionBook::new(vec![0, N_NODES / 2, N_NODES]).unwrap();
    let memory = EmbeddedVolatile::new(&book, 1 << 20);
    let tensor = TensorInfo { name: "h1".into(), dtype: Dtype::U8, width: WIDTH };
    memory.declare(&VolatileInfo { tensor, range_rows: 0 }).unwrap();
    Arc::new(memory)
}

fn tier(n_slots: u32, max_age: Option<u32>) -> Arc<SharedTier> {
    let settings = SharedSettings { max_age, ..SharedSettings::default() };
    let tier = SharedTier::of_slots(n_slots, ROW_BYTES, N_NODES, &PolicySpec::Clock, settings);
    Arc::new(tier.unwrap())
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % bound
    }

    fn ids(&mut self, n: usize) -> Vec<NodeId> {
        (0..n).map(|_| NodeId(self.below(N_NODES))).collect()
    }
}

fn check(ids: &[NodeId], rows: &[u8], pulled: &VolatilePulled, min_stamp: Stamp) {
    for ((id, row), &stamp) in ids.iter().zip(rows.chunks_exact(ROW_BYTES)).zip(&pulled.stamps) {
        if stamp == NO_STAMP {
            assert!(row.iter().all(|&byte| byte == 0), "what is lacking has no bytes");
            continue;
        }
        assert!(stamp >= min_stamp, "node {id}: {stamp} is older than {min_stamp}");
        assert!(row == row_of(id.0, stamp), "node {id}: not the row of stamp {stamp}");
    }
}

#[test]
fn no_interleaving_has_a_tier_serve_a_row_that_is_older_than_asked() {
    const LAST: Stamp = 3_000;
    let memory = memory();
    let tier = tier(20, ANY_AGE);
    let newest = [AtomicU32::new(0), AtomicU32::new(0)];
    let (begun, n_publishing) = (Instant::now(), AtomicU32::new(2));
    // On a busy machine pulls come between few of the first publications.
    let is_enough = || tier.stats().stale > 100 || begun.elapsed() > Duration::from_secs(60);
    std::thread::scope(|scope| {
        for part in 0..2u32 {
            let (memory, newest) = (&memory, &newest[part as usize]);
            let (is_enough, n_publishing) = (&is_enough, &n_publishing);
            scope.spawn(move || {
                let range = part * N_NODES / 2..(part + 1) * N_NODES / 2;
                let ids: Vec<NodeId> = range.clone().map(NodeId).collect();
                let mut publisher = memory.publisher();
                publisher.claim("h1", &[range]).unwrap();
                for stamp in 1.. {
                    publisher.publish("h1", &ids, &rows_of(&ids, stamp), stamp).unwrap();
                    newest.store(stamp, Ordering::Release);
                    if stamp >= LAST && is_enough() {
                        break;
                    }
                }
                n_publishing.fetch_sub(1, Ordering::Release);
            });
        }
        for worker in 0..3 {
            let source: Arc<dyn VolatileSource> = memory.clone();
            let source = TieredVolatile::new(source, "h1", Arc::clone(&tier)).unwrap();
            let (newest, n_publishing) = (&newest, &n_publishing);
            scope.spawn(move || {
                let mut numbers = Numbers(worker);
                let (mut out, mut n_turns) = (vec![0; 12 * ROW_BYTES], 0);
                loop {
                    let all = newest.iter().map(|of| of.load(Ordering::Acquire)).min().unwrap();
                    // What all have published, or a little before that.
                    let min_stamp = all.saturating_sub(numbers.below(4)).max(1);
                    let ids = numbers.ids(12);
                    let wanted = StampWanted::awaited(min_stamp);
                    let pulled = source.pull_volatile("h1", &ids, wanted, &mut out).unwrap();
                    assert!(pulled.is_whole());
                    check(&ids, &out, &pulled, min_stamp);
                    n_turns += 1;
                    if n_publishing.load(Ordering::Acquire) == 0 && n_turns > 2_000 {
                        return;
                    }
                }
            });
        }
    });
    let stats = tier.stats();
    assert!(stats.hits > 1000 && stats.stale > 100, "the tier was at work: {stats:?}");
}

proptest! {
    /// Both tiers, one before the other, against what was published last.
    #[test]
    fn tiers_serve_what_will_do_and_pull_the_rest(
        steps in prop::collection::vec((any::<bool>(), 0u32..1000, 0u32..4), 1..120),
    ) {
        let memory = memory();
        let host = tier(16, ANY_AGE);
        let source = TieredVolatile::new(memory.clone(), "h1", Arc::clone(&host)).unwrap();
        let settings = DeviceSettings { max_age: ANY_AGE, ..DeviceSettings::default() };
        let device = Device::host();
        let on_device =
            DeviceTier::new(&device, TierShape { capacity_rows: 8, row_bytes: ROW_BYTES, id_space: N_NODES }, &PolicySpec::Lru, settings).unwrap();
        let on_device = DeviceVolatile::new(Arc::new(source), "h1", on_device).unwrap();
        let mut batch = on_device.batch_tensor(6).unwrap();
        let mut publisher = memory.publisher();
        publisher.claim("h1", &[0..N_NODES]).unwrap();
        let mut stamps = vec![None::<Stamp>; N_NODES as usize];
        let mut now = 0;
        for (publishes, seed, back) in steps {
            let ids = Numbers(seed.into()).ids(6);
            if publishes {
                now += 1;
                publisher.publish("h1", &ids, &rows_of(&ids, now), now).unwrap();
                ids.iter().for_each(|id| stamps[id.0 as usize] = Some(now));
                continue;
            }
            let min_stamp = now.saturating_sub(back);
            let known = |id: &NodeId| stamps[id.0 as usize].filter(|&stamp| stamp >= min_stamp);
            let n_lacking = ids.iter().filter(|id| known(id).is_none()).count();
            match on_device.gather(&ids, StampWanted::now(min_stamp), &mut batch) {
                Ok(()) => {
                    prop_assert_eq!(n_lacking, 0);
                    let mut rows = vec![0; ids.len() * ROW_BYTES];
                    batch.read(&mut rows).unwrap();
                    for (id, row) in ids.iter().zip(rows.chunks_exact(ROW_BYTES)) {
                        let stamp = Stamp::from_le_bytes(row[..4].try_into().unwrap());
                        prop_assert!(stamp >= min_stamp && Some(stamp) <= known(id));
                        prop_assert_eq!(row, &row_of(id.0, stamp)[..]);
                    }
                }
                Err(ClientError::Lacking { n_lacking: found, .. }) => {
                    prop_assert!(found > 0 && found <= n_lacking);
                }
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }
}

#[test]
fn a_row_that_will_do_is_not_pulled_again_and_a_forgotten_one_is() {
    let memory = memory();
    let source = TieredVolatile::new(memory.clone(), "h1", tier(N_NODES, ANY_AGE)).unwrap();
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut publisher = source.publisher();
    publisher.claim("h1", &[0..N_NODES]).unwrap();
    publisher.publish("h1", &ids, &rows_of(&ids, 5), 5).unwrap();
    let mut out = vec![0; ids.len() * ROW_BYTES];
    let mut pull = |min_stamp| {
        let wanted = StampWanted::now(min_stamp);
        let pulled = source.pull_volatile("h1", &ids, wanted, &mut out).unwrap();
        check(&ids, &out, &pulled, min_stamp);
        (pulled.n_found, pulled.oldest(), pulled.lacking().len())
    };
    assert_eq!(pull(2), (0, Some(5), 0));
    // By the stamp that it had, not by the one that was asked for.
    assert_eq!(pull(5), (48, Some(5), 0));
    assert_eq!(pull(6), (0, None, 48));
    publisher.publish("h1", &ids[..10], &rows_of(&ids[..10], 7), 7).unwrap();
    assert_eq!(pull(6), (0, Some(7), 38));
    assert_eq!(pull(5), (48, Some(5), 0), "ten of them were written over");
    // A claim begins again, and the tier forgets its rows.
    publisher.claim("h1", &[0..N_NODES]).unwrap();
    source.forget(&ids);
    assert_eq!(pull(0), (0, None, 48));
}

#[test]
fn rows_are_waited_for_and_missing_ones_are_reported() {
    let memory = memory();
    let ids = [NodeId(3), NodeId(30), NodeId(4)];
    let mut out = vec![7; 3 * ROW_BYTES];
    std::thread::scope(|scope| {
        let (memory, ids) = (&memory, &ids);
        scope.spawn(move || {
            let mut publisher = memory.publisher();
            publisher.claim("h1", &[0..N_NODES / 2]).unwrap();
            publisher.publish("h1", &[NodeId(3)], &row_of(3, 2), 2).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            publisher
                .publish("h1", &[NodeId(4), NodeId(3)], &rows_of(&[NodeId(4), NodeId(3)], 3), 3)
                .unwrap();
            // The claim ends, and the rows stay.
        });
        let begun = Instant::now();
        let two = [ids[0], ids[2]];
        let wanted = StampWanted::awaited(3);
        let pulled = memory.pull_volatile("h1", &two, wanted, &mut out[..2 * ROW_BYTES]).unwrap();
        assert_eq!((pulled.oldest(), pulled.is_whole()), (Some(3), true));
        assert!(begun.elapsed() >= Duration::from_millis(40), "{:?}", begun.elapsed());
        let begun = Instant::now();
        let wanted = StampWanted { min_stamp: 1, wait: Duration::from_millis(60) };
        let pulled = memory.pull_volatile("h1", ids, wanted, &mut out).unwrap();
        assert_eq!((pulled.lacking(), pulled.oldest()), (vec![1], Some(3)));
        check(ids, &out, &pulled, 1);
        assert!(begun.elapsed() >= Duration::from_millis(60), "{:?}", begun.elapsed());
    });
}

#[test]
fn what_is_wrong_is_said() {
    let memory = memory();
    let text = |error: ClientError| error.to_string();
    let info = memory.volatile("h1").unwrap();
    assert!(text(memory.volatile("h2").unwrap_err()).contains("it has: h1"));
    let other = TensorInfo { width: 3, ..info.tensor.clone() };
    let other = VolatileInfo { tensor: other, range_rows: 0 };
    let told = text(memory.declare(&other).unwrap_err());
    assert!(told.contains("24xu8") && told.contains("3xu8"), "{told}");
    let large = TensorInfo { name: "h3".into(), dtype: Dtype::F64, width: 1 << 20 };
    let told = text(memory.declare(&VolatileInfo { tensor: large, range_rows: 0 }).unwrap_err());
    assert!(told.contains("1048576 for rows in memory"), "{told}");
    let (mut first, mut second) = (memory.publisher(), memory.publisher());
    first.claim("h1", &[0..24]).unwrap();
    let held = second.claim("h1", &[0..48]).unwrap_err();
    assert!(matches!(held, ClientError::Volatile(VolatileError::Held { .. })), "{held}");
    let row = row_of(24, 1);
    let error = first.publish("h1", &[NodeId(24)], &row, 1).unwrap_err();
    assert!(matches!(error, ClientError::Volatile(VolatileError::NotOwned { id: 24 })), "{error}");
    first.publish("h1", &[NodeId(1)], &row, 9).unwrap();
    let error = first.publish("h1", &[NodeId(1)], &row, 8).unwrap_err();
    assert!(matches!(error, ClientError::Volatile(VolatileError::Older { .. })), "{error}");
    let error = first.publish("h1", &[NodeId(1)], &row, STAMP_MAX + 1).unwrap_err();
    assert!(matches!(error, ClientError::Volatile(VolatileError::Stamp { .. })), "{error}");
    let error = first.publish("h1", &[NodeId(1)], &row[1..], 9).unwrap_err();
    assert!(matches!(error, ClientError::BufferSize { .. }), "{error}");
    let source: Arc<dyn VolatileSource> = memory.clone();
    let error = TieredVolatile::new(source, "h1", tier(4, None)).err().unwrap();
    assert!(text(error).contains("max_age"));
    drop(first);
    second.claim("h1", &[0..48]).unwrap();
}
