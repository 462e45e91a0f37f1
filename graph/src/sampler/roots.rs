//! Order of roots in training, and their workers.

use serde::Serialize;

use crate::book::PartitionBook;
use crate::ids::NodeId;
use crate::sampler::stream::{RandomStream, batch_seed, epoch_seed};

/// Returns all roots in the order of one epoch: one shuffle for all workers (Fisher–Yates) from the
/// run's seed and the epoch.
#[must_use]
pub fn epoch_order(s0: u64, epoch: u32, roots: &[NodeId]) -> Vec<NodeId> {
    let mut order = roots.to_vec();
    let mut stream = RandomStream::new(epoch_seed(s0, epoch));
    for n in (2..=order.len()).rev() {
        // As many roots as nodes at most, unless they repeat: their number fits.
        let other = stream.below(u32::try_from(n).unwrap_or(u32::MAX)) as usize;
        order.swap(n - 1, other);
    }
    order
}

/// Returns whether `worker` of `n_workers` owns `node`: partition p belongs to worker p mod
/// `n_workers`. A node past the last one has no owner.
#[must_use]
pub fn is_local(book: &PartitionBook, worker: u32, n_workers: u32, node: NodeId) -> bool {
    book.part_of(node).is_some_and(|part| u32::from(part.0) % n_workers == worker)
}

/// Which worker has which root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Deal {
    /// Each worker has batches of its own: the roots of its partitions, in the order of the epoch.
    #[default]
    Owned,
    /// Global batches, of `batch_size` roots for each worker, whose roots are dealt by turns.
    Turns,
    /// The same global batches, in which each root is its owner's (HopGNN, section 5.1).
    Home,
}

/// How the training nodes of a run become batches of roots.
#[derive(Clone, Copy, Debug)]
pub struct RootPlan<'a> {
    /// Root seed of the run.
    pub seed: u64,
    /// Which worker has which root.
    pub deal: Deal,
    /// Number of workers, at least 1; partition p is local to worker p mod workers.
    pub workers: u32,
    /// Roots per batch and worker, at least 1.
    pub batch_size: usize,
    /// Which partition owns which node.
    pub book: &'a PartitionBook,
}

impl RootPlan<'_> {
    /// Returns the batches of `worker` in an epoch of this order. Under [`Deal::Owned`] the last
    /// one may be shorter; of a global batch a worker may have no root.
    ///
    /// # Panics
    ///
    /// When there are no workers, or no roots per batch.
    #[must_use]
    pub fn batches(&self, order: &[NodeId], worker: u32) -> Vec<Vec<NodeId>> {
        assert!(self.workers > 0, "there must be a worker");
        let is_own = |&root: &NodeId| self.owner_of(root) == Some(worker);
        match self.deal {
            Deal::Owned => {
                let own: Vec<NodeId> = order.iter().copied().filter(is_own).collect();
                own.chunks(self.batch_size).map(<[NodeId]>::to_vec).collect()
            }
            Deal::Turns => {
                let turns = |batch: &[NodeId]| -> Vec<NodeId> {
                    let roots = batch.iter().copied();
                    roots.skip(worker as usize).step_by(self.workers as usize).collect()
                };
                self.global_batches(order).map(turns).collect()
            }
            Deal::Home => {
                let own = |batch: &[NodeId]| batch.iter().copied().filter(is_own).collect();
                self.global_batches(order).map(own).collect()
            }
        }
    }

    /// Returns the worker that owns `node`; `None` for one past the last.
    #[must_use]
    pub fn owner_of(&self, node: NodeId) -> Option<u32> {
        self.book.part_of(node).map(|part| u32::from(part.0) % self.workers)
    }

    /// Returns the batches of all workers together, of an epoch of this order.
    pub fn global_batches<'o>(
        &self,
        order: &'o [NodeId],
    ) -> impl Iterator<Item = &'o [NodeId]> + use<'o> {
        order.chunks(self.batch_size.saturating_mul(self.workers as usize))
    }

    /// Returns the seed of a worker's batch. The parts of a global batch have one seed, so that
    /// each node draws the same neighbours in whichever part it is.
    #[must_use]
    pub fn seed_of(&self, worker: u32, epoch: u32, batch: u32) -> u64 {
        let worker = if self.deal == Deal::Owned { worker } else { 0 };
        batch_seed(self.seed, worker, epoch, batch)
    }
}

/// One worker's share of the training nodes of a run.
#[derive(Clone, Copy, Debug)]
pub struct RootShare<'a> {
    /// The worker.
    pub worker: u32,
    /// How training nodes become batches.
    pub plan: RootPlan<'a>,
    /// The training nodes of all workers.
    pub train: &'a [NodeId],
}

impl RootShare<'_> {
    /// Returns the roots of each batch of an epoch; a batch may have none.
    #[must_use]
    pub fn batches(&self, epoch: u32) -> Vec<Vec<NodeId>> {
        self.plan.batches(&epoch_order(self.plan.seed, epoch, self.train), self.worker)
    }

    /// Returns the seed of a batch of an epoch.
    #[must_use]
    pub fn seed_of(&self, epoch: u32, batch: u32) -> u64 {
        self.plan.seed_of(self.worker, epoch, batch)
    }
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
            let (seed, deal, workers) = (7, Deal::Owned, n_workers);
            let plan = RootPlan { seed, deal, workers, batch_size, book: &book };
            let mut seen = Vec::new();
            for worker in 0..n_workers {
                let batches = plan.batches(&order, worker);
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

    #[test]
    fn global_batches_are_dealt_to_all_workers_and_some_have_none() {
        let book = PartitionBook::from_counts(&[20, 3, 30]).unwrap();
        let roots = nodes((0..50).filter(|id| id % 4 != 1));
        let order = epoch_order(5, 3, &roots);
        for (workers, batch_size) in [(1, 7), (2, 4), (3, 5), (5, 3), (60, 1)] {
            for deal in [Deal::Turns, Deal::Home] {
                let plan = RootPlan { seed: 5, deal, workers, batch_size, book: &book };
                let mut dealt =
                    vec![Vec::new(); order.len().div_ceil(batch_size * workers as usize)];
                for worker in 0..workers {
                    let batches = plan.batches(&order, worker);
                    assert_eq!(batches.len(), dealt.len());
                    for (roots, all) in batches.into_iter().zip(&mut dealt) {
                        let is_home = |&root| is_local(&book, worker, workers, root);
                        match deal {
                            Deal::Home => assert!(roots.iter().all(is_home)),
                            _ => assert!(roots.len() <= batch_size),
                        }
                        all.extend(roots);
                    }
                }
                for (mut found, expected) in dealt.into_iter().zip(plan.global_batches(&order)) {
                    let mut expected = expected.to_vec();
                    found.sort_unstable();
                    expected.sort_unstable();
                    assert_eq!(found, expected, "{workers} workers, {deal:?}");
                }
                assert_eq!(plan.seed_of(0, 1, 2), plan.seed_of(4, 1, 2));
            }
        }
        let (seed, deal, workers, batch_size) = (5, Deal::Owned, 5, 3);
        let owned = RootPlan { seed, deal, workers, batch_size, book: &book };
        assert_ne!(owned.seed_of(0, 1, 2), owned.seed_of(4, 1, 2));
    }
}
