//! Prefetchers, tiers and steady caches, whose threads, turns and locks a child does not have.

use std::sync::Arc;
use std::thread;

use lodestore_cache::shared::SharedSettings;
use lodestore_cache::{PolicySpec, SharedTier, Tier};
use lodestore_client::halo_buffer::HaloBuffer;
use lodestore_client::hot_set_cache::HotSetCache;
use lodestore_client::loader::RowResidency;
use lodestore_client::oracle_tier::OracleTier;
use lodestore_client::prefetch::{BatchSource, PreparedBatch, Window};
use lodestore_client::{
    BatchLoader, ClientError, EmbeddedSource, Prefetcher, PullKind, RowSource, TieredSource,
};
use lodestore_graph::NodeId;
use lodestore_graph::batch::Batch;
use lodestore_store::EmbeddedStore;

use testing::fork::fork;
use testing::graph::Source;

const N_NODES: u32 = 600;
const N_BATCHES: u32 = 400;
const ROW_BYTES: usize = 13 * 4;

/// Batch i is 50 nodes from i on.
struct Batches;

fn nodes(index: u32) -> Vec<NodeId> {
    (0..50).map(|at| NodeId((index + at * 7) % N_NODES)).collect()
}

impl BatchSource for Batches {
    fn n_batches(&self) -> u32 {
        N_BATCHES
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        Ok((Batch { nodes: nodes(index), ..Batch::default() }, None))
    }

    fn end_of_epoch(&self, _index: u32) -> u32 {
        N_BATCHES
    }
}

fn is_forked<T>(refused: Result<T, ClientError>, what: &str) {
    let error = refused.map(drop).unwrap_err();
    assert!(matches!(error, ClientError::Forked { .. }), "{error}");
    assert!(error.to_string().contains(what), "{error}");
}

pub(crate) fn forks_while_batches_come() {
    let source = Source::random(N_NODES, 900);
    let dir = source.import("graph", 2, "range");
    let open = || {
        let live = Arc::clone(EmbeddedStore::open(&dir, None).unwrap().live());
        let version = live.version();
        Arc::new(EmbeddedSource::at(live, version).unwrap())
    };
    let rows = open();
    let loader = BatchLoader::new(rows.clone(), rows.clone(), "feat", &[]).unwrap();
    let (policy, settings) = (PolicySpec::S3Fifo, SharedSettings::default());
    let tier = SharedTier::new(1 << 20, ROW_BYTES, N_NODES, &policy, settings).unwrap();
    let tiered = TieredSource::new(rows.clone(), "feat", Arc::new(tier)).unwrap();
    let lru = Tier::of_slots(100, ROW_BYTES, N_NODES, &PolicySpec::Lru).unwrap();
    let (buffer, _) = HaloBuffer::new(rows.clone(), "feat", lru).unwrap();
    let planned = Arc::new(OracleTier::new(100, ROW_BYTES, N_NODES, &(0..N_BATCHES)).unwrap());
    let load_planned = |index| {
        let mut turn = planned.turn(index);
        turn.announce(vec![index + 1; 50]);
        let mut out = vec![0; 50 * ROW_BYTES];
        let kept: RowResidency = Some(Box::new(turn));
        let batch = &mut [(&nodes(index)[..], kept)];
        loader.clone().load_together(batch, &mut out).map(|_| out)
    };
    let pull = |source: &dyn RowSource, index| {
        let mut out = vec![0; 50 * ROW_BYTES];
        source.pull("feat", &nodes(index), &mut out, PullKind::Sync).map(|_| out)
    };
    let check = |prepared: &PreparedBatch, index: u32| {
        assert_eq!(prepared.batch.nodes, nodes(index));
        assert_eq!(prepared.rows.bytes(), pull(&*rows, index).unwrap(), "batch {index}");
    };
    thread::scope(|scope| {
        let window = Window::joined(8);
        let mut prefetcher =
            Some(Prefetcher::start(scope, Arc::new(Batches), loader.clone(), window, 0));
        let choose = |epoch: u32| Ok((epoch..epoch + 60).map(NodeId).collect());
        let mut steady = Some(HotSetCache::start(scope, &loader, 0..50, Arc::new(choose)).unwrap());
        let next = |prefetcher: &mut Option<Prefetcher<'_>>| {
            prefetcher.as_mut().unwrap().next_batch().unwrap().unwrap()
        };
        for index in 0..20 {
            let mut held = Some(next(&mut prefetcher));
            check(held.as_ref().unwrap(), index);
            assert_eq!(pull(&tiered, index).unwrap(), pull(&*rows, index).unwrap());
            assert_eq!(pull(&buffer, index).unwrap(), pull(&*rows, index).unwrap());
            assert_eq!(load_planned(index).unwrap(), pull(&*rows, index).unwrap());
            steady.as_ref().unwrap().for_epoch(index).unwrap();
            let child = fork(|| {
                let (mut prefetcher, steady) = (prefetcher.take().unwrap(), steady.take().unwrap());
                is_forked(prefetcher.next_batch(), "prefetcher");
                is_forked(steady.for_epoch(index + 1), "steady cache");
                is_forked(pull(&tiered, index), "tier");
                is_forked(pull(&buffer, index), "buffer");
                is_forked(load_planned(index + 1), "planned tier");
                let _ = (buffer.stats(), buffer.n_slots(), planned.held_bytes());
                let _ = (prefetcher.stats(), steady.stats(), steady.pulled_until(index));
                // The rows that have come are the child's too.
                check(held.as_ref().unwrap(), index);
                drop((held.take(), steady, prefetcher));
                // Another one works.
                let again = BatchLoader::new(open(), open(), "feat", &[]).unwrap();
                thread::scope(|scope| {
                    let mut own = Prefetcher::start(scope, Arc::new(Batches), again, window, 7);
                    for index in 7..12 {
                        check(&own.next_batch().unwrap().unwrap(), index);
                    }
                });
            });
            child.ends_well();
        }
        for index in 20..30 {
            check(&next(&mut prefetcher), index);
        }
    });
}
