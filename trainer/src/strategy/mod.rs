//! Where a worker's batches and rows come from: the roots by mode, the rows by the way to fetch.

mod ondemand;
mod rapid;

pub(crate) use ondemand::Ondemand;
pub(crate) use rapid::{Planned, Rapid};

use lodestore_graph::{
    NodeId, PartitionBook,
    sampler::{batch_seed, epoch_order, is_local, worker_batches},
};

use crate::{Mode, Roots, TrainConfig};

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
        if !has_global_batches(config) {
            return worker_batches(seed, epoch, worker, workers, book, train, batch_size);
        }
        let order = epoch_order(seed, epoch, train);
        let batches = order.chunks(batch_size.saturating_mul(workers as usize));
        let own = |batch: &[NodeId]| -> Vec<NodeId> {
            let roots = batch.iter().copied();
            match config.strategy.mode() {
                Mode::MiniBatch => roots.skip(worker as usize).step_by(workers as usize).collect(),
                Mode::Hop => roots.filter(|&root| is_local(book, worker, workers, root)).collect(),
            }
        };
        batches.map(own).collect()
    }
}

/// Returns the seed of a worker's batch. Batches that are parts of a global one have its seed, so
/// that each node draws the same neighbours in whichever part it is.
pub(crate) fn seed_of_batch(config: &TrainConfig, worker: u32, epoch: u32, batch: u32) -> u64 {
    let worker = if has_global_batches(config) { 0 } else { worker };
    batch_seed(config.seed, worker, epoch, batch)
}

/// Returns whether the batches of all workers in a step are parts of one.
fn has_global_batches(config: &TrainConfig) -> bool {
    config.strategy.mode() == Mode::Hop || config.roots == Roots::Global
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Strategy;

    /// Every root of a global batch has one worker: by turns, or under `hop` its owner.
    #[test]
    fn global_batches_are_dealt_to_all_workers_and_some_have_none() {
        let book = PartitionBook::from_counts(&[20, 3, 30]).unwrap();
        let train: Vec<NodeId> = (0..50).filter(|id| id % 4 != 1).map(NodeId).collect();
        let sizes = [(1, 7), (2, 4), (3, 5), (5, 3), (60, 1)];
        let ways = [(Strategy::Ondemand, Roots::Global), (Strategy::Hop, Roots::Owned)];
        for ((workers, batch_size), (strategy, roots)) in
            sizes.into_iter().flat_map(|sizes| ways.map(|way| (sizes, way)))
        {
            let usual = TrainConfig::default();
            let config = TrainConfig { strategy, workers, batch_size, roots, ..usual };
            let of = |worker| Share { worker, config: &config, book: &book, train: &train };
            let order = epoch_order(config.seed, 3, &train);
            let mut dealt: Vec<Vec<NodeId>> = vec![Vec::new(); order.len()];
            for worker in 0..workers {
                let batches = of(worker).batches(3);
                assert_eq!(batches.len(), order.len().div_ceil(batch_size * workers as usize));
                for (batch, roots) in batches.into_iter().enumerate() {
                    match strategy {
                        Strategy::Hop => {
                            let is_home = |&root| is_local(&book, worker, workers, root);
                            assert!(roots.iter().all(is_home));
                        }
                        _ => assert!(roots.len() <= batch_size),
                    }
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
