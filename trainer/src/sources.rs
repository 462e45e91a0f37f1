//! The graph of a run, and where its workers' rows come from.

use std::sync::Arc;

use lodestore_client::source::PullStats;
use lodestore_client::{BatchLoader, ClientError, RowSource};
use lodestore_graph::{PartId, PartitionBook, topology::Topology};

use crate::report::RowsFrom;

/// The graph to train on; rows are not part of it.
#[derive(Clone, Copy, Debug)]
pub struct TrainGraph<'a> {
    /// In-neighbours of all nodes.
    pub topology: &'a Topology,
    /// Which partition owns which node.
    pub book: &'a PartitionBook,
    /// Identity of the graph, which a schedule is bound to.
    pub uuid: [u8; 16],
    /// Description of the remote sources, for the report.
    pub rows_from: RowsFrom,
}

/// Sources of one worker's rows.
#[derive(Clone)]
pub struct WorkerSources {
    /// Rows of the worker's own partitions.
    pub local: Arc<dyn RowSource>,
    /// All other rows; only these count as communication. For `massive` a
    /// [`lodestore_client::halo_buffer::HaloBuffer`], for others any tier or none.
    pub remote: Arc<dyn RowSource>,
    /// The same rows without any tier that `remote` has: measuring accuracy reads all of them once,
    /// and would sweep it.
    pub untiered: Arc<dyn RowSource>,
    /// Pulls into `remote` before the run, such as the first fill of a buffer: the first epoch of
    /// the process counts them.
    pub filled: PullStats,
}

impl WorkerSources {
    /// Returns a loader of `tensor` for a worker that owns `owned`.
    pub(crate) fn loader(
        &self,
        tensor: &str,
        owned: &[PartId],
    ) -> Result<BatchLoader, ClientError> {
        BatchLoader::new(Arc::clone(&self.local), Arc::clone(&self.remote), tensor, owned)
    }

    /// Returns whether rows of others pass through a tier.
    pub(crate) fn has_tier(&self) -> bool {
        !std::ptr::addr_eq(Arc::as_ptr(&self.remote), Arc::as_ptr(&self.untiered))
    }

    /// Does as [`Self::loader`], past any tier.
    pub(crate) fn untiered_loader(
        &self,
        tensor: &str,
        owned: &[PartId],
    ) -> Result<BatchLoader, ClientError> {
        BatchLoader::new(Arc::clone(&self.local), Arc::clone(&self.untiered), tensor, owned)
    }
}
