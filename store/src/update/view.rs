//! The version that a gather of one tensor of one partition reads: the newest committed version, or
//! a given one.

use std::sync::Arc;

use lodestore_graph::PartId;

use super::{GraphHandle, TensorHandle, TensorVersion};
use crate::error::StoreError;

/// Which rows a reader sees. Rows that were put and are not committed are seen by no reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// The newest committed version of each partition, looked up by each gather.
    #[default]
    Latest,
    /// A committed version, whatever is put, committed or compacted meanwhile.
    At(u32),
}

/// A view of one tensor of one partition.
#[derive(Clone, Debug)]
pub enum TensorView {
    /// The newest committed version of each moment.
    Latest(Arc<TensorHandle>),
    /// One version, whose files stay while the view lives.
    At(Arc<TensorVersion>),
}

impl TensorView {
    /// Returns the version that a gather reads which begins now.
    #[must_use]
    pub fn version(&self) -> Arc<TensorVersion> {
        match self {
            Self::Latest(tensor) => tensor.current(),
            Self::At(version) => Arc::clone(version),
        }
    }
}

/// All open partitions of a graph at one version, whose files stay while it lives.
#[derive(Debug)]
pub struct GraphVersion {
    version: u32,
    /// By partition and position of the tensor; no tensors for a partition that was not open.
    tensors: Vec<Vec<Arc<TensorVersion>>>,
}

impl GraphVersion {
    /// Returns the version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the tensor at `position` of the graph's description in a partition that was open.
    #[must_use]
    pub fn tensor(&self, part: PartId, position: usize) -> Option<&Arc<TensorVersion>> {
        self.tensors.get(part.index())?.get(position)
    }
}

impl GraphHandle {
    /// Pins a committed version of all open partitions.
    ///
    /// Fails with [`StoreError::NoVersion`] for a version that is not committed, and for one whose
    /// layers were folded into later ones.
    pub fn pin(&self, version: u32) -> Result<GraphVersion, StoreError> {
        let parts = self.now();
        let mut tensors = vec![Vec::new(); parts.len()];
        for (pinned, part) in tensors.iter_mut().zip(parts.iter()) {
            for tensor in part.iter().flat_map(|part| part.tensors.iter()) {
                pinned.push(tensor.at(version).ok_or_else(|| self.no_version(version))?);
            }
        }
        Ok(GraphVersion { version, tensors })
    }
}
