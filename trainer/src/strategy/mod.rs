//! Where a worker's batches and rows come from: the roots by mode, the rows by the way to fetch.

pub(crate) mod full;
pub mod hop;
mod ondemand;
mod random;
mod rapid;
pub(crate) mod sdt;

pub(crate) use ondemand::Ondemand;
pub(crate) use random::RandomBatches;
pub(crate) use rapid::{Planned, Rapid};

use lodestore_graph::{
    NodeId,
    sampler::{RootPlan, epoch_order},
};

/// One worker's share of the training nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share<'a> {
    pub(crate) worker: u32,
    pub(crate) plan: RootPlan<'a>,
    pub(crate) train: &'a [NodeId],
}

impl Share<'_> {
    /// Returns the roots of each batch of an epoch, of which any may be none.
    pub(crate) fn batches(&self, epoch: u32) -> Vec<Vec<NodeId>> {
        self.plan.batches(&epoch_order(self.plan.seed, epoch, self.train), self.worker)
    }
}
