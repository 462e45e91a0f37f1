//! Reasons why an import fails.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use lodestore_graph::edges::EdgeError;
use lodestore_graph::halo::HaloError;
use lodestore_graph::npy::NpyError;
use lodestore_graph::partition::PartitionError;
use lodestore_graph::relabel::RelabelError;
use lodestore_graph::topology::TopologyError;
use lodestore_store::StoreError;
use lodestore_store::import::ImportError;
use lodestore_store::source::SourceError;
use thiserror::Error;

use crate::memory::MemoryError;

/// Reason for a failed import. Nothing is left behind.
#[derive(Debug, Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// File or folder concerned.
        path: PathBuf,
        /// The operation.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The observer ended it.
    #[error("the import was cancelled")]
    Cancelled,
    /// There are no nodes.
    #[error("{files}: no edges, so the number of nodes is unknown; give that number or a tensor")]
    NoNodes {
        /// Files of edges.
        files: String,
    },
    /// More partitions than nodes.
    #[error(
        "{n_parts} partitions of {n_nodes} nodes: most would be empty; ask for {n_nodes} at most"
    )]
    FewNodes {
        /// Partitions asked for.
        n_parts: u16,
        /// Nodes of the graph.
        n_nodes: u32,
    },
    /// Edges of nodes that the first tensor, which says how many there are, has no rows of.
    #[error("{source}; {} has {rows} rows, one for each node", file.display())]
    FewRows {
        /// File of the tensor.
        file: PathBuf,
        /// Its rows.
        rows: u64,
        /// The edge.
        source: Box<EdgeError>,
    },
    /// Weights of edges in another form.
    #[error("{}: {reason}", file.display())]
    Weights {
        /// File concerned.
        file: PathBuf,
        /// Expected and found.
        reason: String,
    },
    /// A file or folder that is not as it must be.
    #[error("{}: {reason}", path.display())]
    Input {
        /// File or folder concerned.
        path: PathBuf,
        /// Expected, found, and what to do.
        reason: String,
    },
    /// A tensor cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The edges cannot be read.
    #[error(transparent)]
    Edges(#[from] EdgeError),
    /// An array cannot be read or written.
    #[error(transparent)]
    Npy(#[from] NpyError),
    /// The partitioner needs more memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The partitioner failed.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// Nodes cannot be numbered.
    #[error(transparent)]
    Relabel(#[from] RelabelError),
    /// The topology cannot be written.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The halos cannot be written.
    #[error(transparent)]
    Halo(#[from] HaloError),
    /// The graph cannot be written.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    /// Returns a mapping of the system's reason to an error about `path`.
    pub(crate) fn io(
        path: impl Into<PathBuf>,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, action, source }
    }
}

/// Returns an error about a file or folder of the input.
pub(crate) fn refused(path: &Path, reason: impl Into<String>) -> Error {
    Error::Input { path: path.to_owned(), reason: reason.into() }
}

/// Returns the number of nodes that a file has, if a graph can have that number.
pub(crate) fn node_count<T>(path: &Path, found: T, what: &str) -> Result<u32, Error>
where
    T: Copy + Display + TryInto<u32>,
{
    let n_nodes = found.try_into().ok().filter(|&n| n < u32::MAX);
    n_nodes
        .ok_or_else(|| refused(path, format!("{found} {what}; a graph has up to 2^32 - 2 nodes")))
}
