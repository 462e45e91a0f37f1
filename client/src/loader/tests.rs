use lodestore_cache::hot_set::HotSet;

use super::*;
use crate::hot_set_cache::HotRows;
use crate::source::TierRows;
use crate::testing::{ROW_BYTES, TestSource, loader, loader_in_memory, nodes, rows_of};
use proptest::prelude::*;
use std::time::Duration;

fn hot(ids: Vec<u32>) -> Arc<HotSet> {
    let set = HotSet::build(ids, ROW_BYTES, |ids, rows| {
        rows.copy_from_slice(&rows_of(&nodes(ids.iter().copied())));
        Ok::<_, lodestore_cache::hot_set::HotSetError>(())
    });
    Arc::new(set.unwrap())
}

fn remote() -> Arc<TestSource> {
    Arc::new(TestSource::new(Duration::ZERO, u64::MAX))
}

/// Returns the residency of a batch in a hot set.
fn kept(set: Arc<HotSet>) -> RowResidency {
    Some(Box::new(HotRows::new(set)))
}

proptest! {
    #[test]
    fn every_row_is_read_from_its_source_and_the_rest_by_one_pull(
        ids in prop::collection::vec(0u32..40, 0..60),
        hot_ids in prop::collection::btree_set(
            prop_oneof![0u32..10, 30u32..40], 0..12),
    ) {
        let remote = remote();
        let ids = nodes(ids);
        let mut out = vec![0xEE; ids.len() * ROW_BYTES];
        let set = hot(hot_ids.iter().copied().collect());
        let mut one = [(&ids[..], kept(set))];
        let stats = loader(&remote).load_together(&mut one, &mut out).unwrap()[0];
        prop_assert_eq!(out, rows_of(&ids));
        let is_local = |id: &&NodeId| (10..30).contains(&id.0);
        let local = ids.iter().filter(is_local).count() as u64;
        let hits = ids.iter().filter(|id| hot_ids.contains(&id.0)).count() as u64;
        let missing = ids.len() as u64 - local - hits;
        let found = (stats.local_rows, stats.hit_rows, stats.remote_rows);
        prop_assert_eq!(found, (local, hits, missing));
        prop_assert_eq!(stats.remote_bytes, missing * ROW_BYTES as u64);
        prop_assert_eq!(remote.n_pulls() as u64, u64::from(missing > 0));
        prop_assert_eq!(stats.pulls, u64::from(missing > 0));
        prop_assert_eq!(stats.found, TierRows::default());
        let parts = stats.lookup_seconds
            + stats.pull_seconds
            + stats.read_seconds
            + stats.copy_seconds;
        prop_assert!((parts - stats.seconds).abs() < 1e-6);
    }
}

proptest! {
    #[test]
    fn batches_loaded_together_pull_each_node_once(
        batches in prop::collection::vec(
            (prop::collection::vec(0u32..40, 0..30), prop::collection::btree_set(0u32..40, 0..9)),
            0..5,
        ),
    ) {
        let remote = remote();
        let ids: Vec<_> = batches.iter().map(|(ids, _)| nodes(ids.iter().copied())).collect();
        let kept = batches.iter().map(|(_, set)| kept(hot(set.iter().copied().collect())));
        let mut together: Vec<_> = ids.iter().map(|ids| &ids[..]).zip(kept).collect();
        let mut out = vec![0xEE; ids.iter().map(Vec::len).sum::<usize>() * ROW_BYTES];
        let stats = loader(&remote).load_together(&mut together, &mut out).unwrap();
        prop_assert_eq!(out, rows_of(&ids.concat()));
        let (mut seen, mut pulled) = (std::collections::BTreeSet::new(), 0);
        for (stats, (ids, set)) in stats.iter().zip(&batches) {
            let is_new = |id: &u32| {
                !(10..30).contains(id) && !set.contains(id)
                    && (seen.insert(*id) || batches.len() == 1)
            };
            let new = ids.iter().copied().filter(is_new).count() as u64;
            let n_local = ids.iter().filter(|id| (10..30).contains(*id)).count() as u64;
            let hits = ids.len() as u64 - n_local - new;
            let found = (stats.local_rows, stats.hit_rows, stats.remote_rows);
            prop_assert_eq!(found, (n_local, hits, new));
            pulled += new;
        }
        let of_remote: usize = remote.pulls.lock().unwrap().iter().map(|(ids, _)| ids.len()).sum();
        prop_assert_eq!(of_remote as u64, pulled);
        prop_assert!(remote.n_pulls() <= 1);
    }
}

/// A source whose rows are in transit: `work` runs before they arrive.
struct Travelling(Arc<TestSource>);

impl RowSource for Travelling {
    fn book(&self) -> &lodestore_graph::PartitionBook {
        self.0.book()
    }

    fn tensor(&self, name: &str) -> Result<crate::source::TensorInfo, ClientError> {
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
        out.fill(0xDD);
        work();
        self.0.pull(tensor, ids, out, kind)
    }
}

/// Returns a loader whose remote rows are in transit, and the source of own rows.
fn over_travelling(remote: &Arc<TestSource>) -> (BatchLoader, Arc<TestSource>) {
    let local = Arc::new(TestSource::new(Duration::ZERO, u64::MAX));
    let travelling = Arc::new(Travelling(Arc::clone(remote)));
    (BatchLoader::new(Arc::clone(&local) as _, travelling, "x", &[PartId(1)]).unwrap(), local)
}

/// MassiveGNN, Eq. 2.
#[test]
fn own_rows_are_gathered_while_others_are_in_transit() {
    let remote = remote();
    let (mut loader, local) = over_travelling(&remote);
    // The place of the last own row is where the pulled rows are received.
    let ids = nodes([12, 13, 3, 14, 35, 15]);
    let mut out = vec![0xEE; ids.len() * ROW_BYTES];
    let stats = loader.load(&ids, &mut out).unwrap();
    assert_eq!(out, rows_of(&ids));
    assert_eq!((stats.local_rows, stats.remote_rows), (4, 2));
    let pulls: Vec<Vec<NodeId>> =
        local.pulls.lock().unwrap().iter().map(|(ids, _)| ids.clone()).collect();
    assert_eq!(pulls, [nodes([12, 13, 14]), nodes([15])]);
}

proptest! {
    #[test]
    fn rows_are_in_place_whatever_is_gathered_during_the_pull(
        ids in prop::collection::vec(0u32..40, 0..90), hot_ids in prop::collection::btree_set(0u32..40, 0..9),
    ) {
        let (n, ids, set) = (ids.len(), nodes(ids), hot(hot_ids.into_iter().collect()));
        let mut out = vec![0xEE; ids.len() * ROW_BYTES];
        let mut one = [(&ids[..], kept(set))];
        let (mut loader, _) = over_travelling(&remote());
        let stats = loader.load_together(&mut one, &mut out).unwrap()[0];
        prop_assert!(out == rows_of(&ids));
        let n_local = ids.iter().filter(|id| (10..30).contains(&id.0)).count() as u64;
        prop_assert_eq!((stats.local_rows, stats.hit_rows + stats.remote_rows), (n_local, n as u64 - n_local));
        let parts = stats.lookup_seconds
            + stats.pull_seconds
            + stats.read_seconds
            + stats.copy_seconds;
        prop_assert!((parts - stats.seconds).abs() < 1e-6);
    }
}

#[test]
fn a_slow_source_counts_as_pull_time() {
    let slow = Arc::new(TestSource::new(Duration::from_millis(200), u64::MAX));
    let mut out = vec![0; 3 * ROW_BYTES];
    let stats = loader(&slow).load(&nodes([3, 12, 35]), &mut out).unwrap();
    assert!(stats.pull_seconds >= 0.2, "{stats:?}");
    assert!(stats.lookup_seconds + stats.read_seconds + stats.copy_seconds < 0.2, "{stats:?}");
}

#[test]
fn many_local_rows_are_in_place() {
    let ids: Vec<NodeId> = (0..1 << 19).map(|i: u32| NodeId(10 + i * 7 % 20)).collect();
    let mut out = vec![0; ids.len() * ROW_BYTES];
    loader(&remote()).load(&ids, &mut out).unwrap();
    assert!(out == rows_of(&ids));
}

#[test]
fn a_node_past_the_last_and_a_wrong_buffer_are_errors() {
    let mut loader = loader(&remote());
    let found = loader.load(&nodes([40]), &mut [0; ROW_BYTES]);
    assert!(matches!(found, Err(ClientError::UnknownNode { node: NodeId(40), n_nodes: 40 })));
    let found = loader.load(&nodes([3]), &mut [0; 3]);
    assert!(matches!(found, Err(ClientError::BufferSize { expected: 4, found: 3, .. })));
}

#[test]
fn sources_with_different_rows_are_refused() {
    let book = lodestore_graph::PartitionBook::from_counts(&[40]).unwrap();
    let mut other = crate::source::memory::MemorySource::new(book);
    other.add("x", lodestore_store::Dtype::U8, 1, vec![0; 40]).unwrap();
    let found = BatchLoader::new(remote(), Arc::new(other), "x", &[]);
    assert!(matches!(found, Err(ClientError::SourcesDiffer { local: 4, remote: 1, .. })));
}

proptest! {
    #[test]
    fn pieces_are_the_rows_in_order_where_all_are_own_and_in_memory(
        ids in prop::collection::vec(8u32..30, 0..200),
        n_rows in 0usize..30,
    ) {
        let (loader, ids) = (loader_in_memory(), nodes(ids));
        let pieces = loader.load_in_pieces(&ids, n_rows, <[u8]>::to_vec).unwrap();
        if ids.iter().any(|&id| loader.is_remote(id)) {
            prop_assert!(pieces.is_none());
            return Ok(());
        }
        let (pieces, stats) = pieces.unwrap();
        prop_assert!(pieces.iter().all(|piece| piece.len() <= n_rows.max(1) * ROW_BYTES));
        prop_assert_eq!(pieces.concat(), rows_of(&ids));
        let found = (stats.local_rows, stats.hit_rows, stats.remote_rows, stats.pulls);
        prop_assert_eq!(found, (ids.len() as u64, 0, 0, 0));
    }
}

#[test]
fn rows_that_are_not_in_memory_are_not_loaded_in_pieces() {
    let ids = nodes(10..20);
    let pieces = loader(&remote()).load_in_pieces(&ids, 4, <[u8]>::to_vec).unwrap();
    assert!(pieces.is_none());
    let unknown = loader_in_memory().load_in_pieces(&nodes([10, 99]), 4, <[u8]>::to_vec).unwrap();
    assert!(unknown.is_none(), "a node outside of the graph is not this worker's");
}
