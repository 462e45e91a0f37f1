//! The store in the trainer's own process.

use lodestore_graph::{NodeId, PartitionBook};
use lodestore_store::EmbeddedStore;

use crate::error::ClientError;
use crate::source::{PullKind, PullStats, RowSource, TensorInfo};

/// Rows straight from the store's files: no server and no copy over a wire.
#[derive(Debug)]
pub struct EmbeddedSource {
    store: EmbeddedStore,
}

impl EmbeddedSource {
    /// Serves rows of the partitions that `store` has open.
    #[must_use]
    pub fn new(store: EmbeddedStore) -> Self {
        Self { store }
    }

    /// Returns the stats of a gather of these rows.
    fn stats_of(&self, tensor: &str, ids: &[NodeId]) -> Result<PullStats, ClientError> {
        let (rows, requests) = (ids.len() as u64, u64::from(!ids.is_empty()));
        let bytes = rows * self.store.tensor(tensor)?.row_bytes() as u64;
        Ok(PullStats { rows, bytes, requests, ..PullStats::default() })
    }
}

impl RowSource for EmbeddedSource {
    fn book(&self) -> &PartitionBook {
        self.store.graph().book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        Ok(self.store.tensor(name)?.clone())
    }

    fn is_in_memory(&self, tensor: &str) -> Result<bool, ClientError> {
        Ok(self.store.is_mapped(tensor)?)
    }

    fn places_rows(&self, _tensor: &str) -> bool {
        true
    }

    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        _kind: PullKind,
        _work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        self.store.gather(tensor, ids, out)?;
        self.stats_of(tensor, ids)
    }

    /// Returns all rows of a batch in one plan for each partition, which reads neighbours together.
    fn pull_at(
        &self,
        tensor: &str,
        ids: &[NodeId],
        at: &[u32],
        out: &mut [u8],
        _kind: PullKind,
    ) -> Result<PullStats, ClientError> {
        self.store.gather_at(tensor, ids, at, out)?;
        self.stats_of(tensor, ids)
    }
}
