//! The store in the process of the trainer.

use std::sync::Arc;

use lodestore_graph::{NodeId, PartitionBook};
use lodestore_store::{EmbeddedStore, GraphHandle, View};

use crate::error::ClientError;
use crate::source::{PullKind, PullStats, RowSource, TensorInfo, VersionTag};

/// Rows directly from the store's files, without a server or a copy over a wire.
#[derive(Debug)]
pub struct EmbeddedSource {
    store: EmbeddedStore,
    /// Pinned version, or `None` for the latest.
    pinned: Option<VersionTag>,
}

impl EmbeddedSource {
    /// Serves rows of the open partitions of `store`. If the store reads the latest version, a
    /// caller must not cache these rows across a commit.
    #[must_use]
    pub fn new(store: EmbeddedStore) -> Self {
        Self { store, pinned: None }
    }

    /// Serves rows of one committed version of the open partitions.
    ///
    /// # Errors
    /// [`lodestore_store::StoreError::NoVersion`] if the version is not committed, or was compacted
    /// into a later one.
    pub fn at(graph: Arc<GraphHandle>, version: u32) -> Result<Self, ClientError> {
        let pinned = Self::version_of(&graph, version)?;
        let store = EmbeddedStore::from_handle(graph, View::At(version))?;
        Ok(Self { store, pinned: Some(pinned) })
    }

    /// Returns a version of open files with its commit, if all partitions have recorded one.
    ///
    /// # Errors
    /// [`lodestore_store::StoreError::HistoriesDiffer`] if two partitions have made it by different
    /// commits.
    pub fn version_of(graph: &GraphHandle, version: u32) -> Result<VersionTag, ClientError> {
        Ok(VersionTag { number: version, tag: graph.common_commit(version)?.tag() })
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &EmbeddedStore {
        &self.store
    }

    /// Returns the stats of a gather of these rows.
    fn stats_of(&self, tensor: &str, ids: &[NodeId]) -> Result<PullStats, ClientError> {
        let (rows, requests) = (ids.len() as u64, u64::from(!ids.is_empty()));
        let bytes = rows * self.store.tensor(tensor)?.spec().row_bytes() as u64;
        Ok(PullStats { rows, bytes, requests, ..PullStats::default() })
    }
}

impl RowSource for EmbeddedSource {
    fn book(&self) -> &PartitionBook {
        self.store.graph().book()
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        Ok(self.store.tensor(name)?.spec().clone())
    }

    fn pinned_version(&self) -> Option<VersionTag> {
        self.pinned
    }

    fn pull_in_memory(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
    ) -> Result<bool, ClientError> {
        let is_mapped = self.store.is_mapped(tensor)?;
        if is_mapped {
            self.store.gather(tensor, ids, out)?;
        }
        Ok(is_mapped)
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

    /// Gathers all rows of a batch under one plan for each partition, which reads adjacent rows
    /// together.
    fn pull_at(
        &self,
        tensor: &str,
        ids: &[NodeId],
        at: &[u32],
        out: &mut [u8],
        _kind: PullKind,
        _work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        self.store.gather_at(tensor, ids, at, out)?;
        self.stats_of(tensor, ids)
    }
}
