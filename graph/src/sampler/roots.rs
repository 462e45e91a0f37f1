//! Which roots train when, and by whom.

use crate::sampler::stream::{Stream, epoch_seed};
use crate::{NodeId, PartitionBook};

/// All roots in the order of one epoch: one shuffle for all workers (Fisher–Yates) from the run's
/// seed and the epoch.
#[must_use]
pub fn epoch_order(s0: u64, epoch: u32, roots: &[NodeId]) -> Vec<NodeId> {
    let mut order = roots.to_vec();
    let mut stream = Stream::new(epoch_seed(s0, epoch));
    for n in (2..=order.len()).rev() {
        // As many roots as nodes at most, unless they repeat: their number fits.
        let other = stream.below(u32::try_from(n).unwrap_or(u32::MAX)) as usize;
        order.swap(n - 1, other);
    }
    order
}

/// Whether `worker` of `n_workers` owns `node`: partition p belongs to worker p mod `n_workers`.
/// Nobody owns a node past the last one.
#[must_use]
pub fn is_local(book: &PartitionBook, worker: u32, n_workers: u32, node: NodeId) -> bool {
    book.part_of(node).is_some_and(|part| u32::from(part.0) % n_workers == worker)
}

/// The batches of roots of one worker in one epoch: those of the epoch's order that the worker
/// owns, cut every `batch_size`; the last one may be shorter, and is kept.
///
/// # Panics
///
/// When `n_workers` or `batch_size` is 0.
#[must_use]
pub fn worker_batches(
    s0: u64,
    epoch: u32,
    worker: u32,
    n_workers: u32,
    book: &PartitionBook,
    train_roots: &[NodeId],
    batch_size: usize,
) -> Vec<Vec<NodeId>> {
    let order = epoch_order(s0, epoch, train_roots);
    batches_of(&order, worker, n_workers, book, batch_size)
}

/// The same from an epoch's order that is known already.
pub(crate) fn batches_of(
    order: &[NodeId],
    worker: u32,
    n_workers: u32,
    book: &PartitionBook,
    batch_size: usize,
) -> Vec<Vec<NodeId>> {
    assert!(n_workers > 0, "there must be a worker");
    let own = order.iter().copied().filter(|&root| is_local(book, worker, n_workers, root));
    own.collect::<Vec<_>>().chunks(batch_size).map(<[NodeId]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nodes(ids: impl IntoIterator<Item = u32>) -> Vec<NodeId> {
        ids.into_iter().map(NodeId).collect()
    }

    #[test]
    fn the_order_is_pinned_and_changes_with_seed_and_epoch() {
        let roots = nodes(0..8);
        assert_eq!(epoch_order(1, 0, &roots), nodes([1, 5, 0, 7, 6, 4, 3, 2]));
        assert_ne!(epoch_order(1, 0, &roots), epoch_order(1, 1, &roots));
        assert_ne!(epoch_order(1, 0, &roots), epoch_order(2, 0, &roots));
        assert!(epoch_order(1, 0, &[]).is_empty());
    }

    #[test]
    fn every_root_comes_first_equally_often() {
        let roots = nodes(0..10);
        let mut counts = [0u32; 10];
        for epoch in 0..10_000 {
            counts[epoch_order(3, epoch, &roots)[0].index()] += 1;
        }
        // 1000 ± 5 standard deviations of 30.
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn workers_share_out_every_root_once_in_the_order_of_the_epoch(
            counts in prop::collection::vec(0u32..20, 1..6),
            n_workers in 1u32..5,
            batch_size in 1usize..9,
            epoch in 0u32..3,
        ) {
            let book = PartitionBook::from_counts(&counts).unwrap();
            let roots = nodes((0..book.n_nodes()).filter(|id| id % 3 != 0));
            let order = epoch_order(7, epoch, &roots);
            let mut seen = Vec::new();
            for worker in 0..n_workers {
                let batches =
                    worker_batches(7, epoch, worker, n_workers, &book, &roots, batch_size);
                if let Some((last, full)) = batches.split_last() {
                    prop_assert!(full.iter().all(|batch| batch.len() == batch_size));
                    prop_assert!((1..=batch_size).contains(&last.len()));
                }
                let own = batches.concat();
                let place = |node| order.iter().position(|&other| other == node);
                prop_assert!(own.is_sorted_by_key(|&node| place(node)));
                prop_assert!(own.iter().all(|&node| is_local(&book, worker, n_workers, node)));
                seen.extend(own);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, roots);
        }
    }
}
