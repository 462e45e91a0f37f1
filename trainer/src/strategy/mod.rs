//! The strategies: where a worker's batches and rows come from. What is computed is the same.

mod ondemand;
mod rapid;

pub(crate) use ondemand::Ondemand;
pub(crate) use rapid::{Planned, Rapid};

use lodestore_graph::{NodeId, PartitionBook, sampler::worker_batches};

use crate::TrainConfig;

/// One worker's share of the training nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share<'a> {
    pub(crate) worker: u32,
    pub(crate) config: &'a TrainConfig,
    pub(crate) book: &'a PartitionBook,
    pub(crate) train: &'a [NodeId],
}

impl Share<'_> {
    /// The roots of each batch of an epoch.
    pub(crate) fn batches(&self, epoch: u32) -> Vec<Vec<NodeId>> {
        let config = self.config;
        worker_batches(
            config.seed,
            epoch,
            self.worker,
            config.workers,
            self.book,
            self.train,
            config.batch_size,
        )
    }
}
