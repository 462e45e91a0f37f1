//! The strategies: where a worker's batches and rows come from. What is computed is the same.

mod ondemand;
mod rapid;

pub(crate) use ondemand::Ondemand;
pub(crate) use rapid::{Planned, Rapid};

use lodestore_graph::{
    NodeId, PartitionBook,
    sampler::{batch_seed, epoch_order, worker_batches},
};

use crate::{Roots, TrainConfig};

/// One worker's share of the training nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share<'a> {
    pub(crate) worker: u32,
    pub(crate) config: &'a TrainConfig,
    pub(crate) book: &'a PartitionBook,
    pub(crate) train: &'a [NodeId],
}

impl Share<'_> {
    /// Returns the roots of each batch of an epoch, of which any may be none.
    pub(crate) fn batches(&self, epoch: u32) -> Vec<Vec<NodeId>> {
        let Self { worker, config, book, train } = *self;
        let (seed, workers, batch_size) = (config.seed, config.workers, config.batch_size);
        match config.roots {
            Roots::Owned => worker_batches(seed, epoch, worker, workers, book, train, batch_size),
            Roots::Global => {
                let order = epoch_order(seed, epoch, train);
                let batches = order.chunks(batch_size.saturating_mul(workers as usize));
                let dealt = |batch: &[NodeId]| {
                    batch.iter().skip(worker as usize).step_by(workers as usize).copied().collect()
                };
                batches.map(dealt).collect()
            }
        }
    }
}

/// Returns the seed of a worker's batch. Batches that are parts of a global one have its seed, so that
/// each node draws the same neighbours in whichever part it is.
pub(crate) fn seed_of_batch(config: &TrainConfig, worker: u32, epoch: u32, batch: u32) -> u64 {
    let worker = match config.roots {
        Roots::Owned => worker,
        Roots::Global => 0,
    };
    batch_seed(config.seed, worker, epoch, batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn global_batches_are_dealt_to_all_workers_and_some_have_none() {
        let book = PartitionBook::from_counts(&[20, 3, 30]).unwrap();
        let train: Vec<NodeId> = (0..50).filter(|id| id % 4 != 1).map(NodeId).collect();
        for (workers, batch_size) in [(1, 7), (2, 4), (3, 5), (5, 3), (60, 1)] {
            let roots = Roots::Global;
            let config = TrainConfig { workers, batch_size, roots, ..TrainConfig::default() };
            let of = |worker| Share { worker, config: &config, book: &book, train: &train };
            let order = epoch_order(config.seed, 3, &train);
            let mut dealt: Vec<Vec<NodeId>> = vec![Vec::new(); order.len()];
            for worker in 0..workers {
                let batches = of(worker).batches(3);
                assert_eq!(batches.len(), order.len().div_ceil(batch_size * workers as usize));
                for (batch, roots) in batches.into_iter().enumerate() {
                    assert!(roots.len() <= batch_size);
                    dealt[batch].extend(roots);
                }
            }
            for (batch, expected) in order.chunks(batch_size * workers as usize).enumerate() {
                let (mut found, mut expected) = (dealt[batch].clone(), expected.to_vec());
                found.sort_unstable();
                expected.sort_unstable();
                assert_eq!(found, expected, "{workers} workers, batch {batch}");
            }
            assert_eq!(seed_of_batch(&config, 0, 1, 2), seed_of_batch(&config, 4, 1, 2));
        }
        let owned = TrainConfig::default();
        assert_ne!(seed_of_batch(&owned, 0, 1, 2), seed_of_batch(&owned, 4, 1, 2));
    }
}
