//! Errors of topology.

use std::path::PathBuf;

use thiserror::Error;

use crate::edges::EdgeError;
use crate::file_check::{EdgeColumns, FileFault};
use crate::file_error::FileError;

/// Why topology could not be built, written or opened.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// The edges could not be read.
    #[error(transparent)]
    Edges(#[from] EdgeError),
    /// The edges name nodes that the relabelling does not know.
    #[error("the edges name {found} nodes, but the relabelling has {expected}")]
    Nodes {
        /// Nodes of the relabelling.
        expected: usize,
        /// Nodes of the edge stream.
        found: u32,
    },
    /// A node with more edges than a list can count.
    #[error("node {node} (external id) has 2^32 - 1 in-edges or more; remove repeated edges")]
    Degree {
        /// External id.
        node: u32,
    },
    /// Two passes over the same edges saw different ones.
    #[error(
        "the edges changed while they were read; import again from files that stay as they are"
    )]
    EdgesChanged,
    /// Not one weight for each edge.
    #[error("{found} weights for {expected} edges; there must be one for each, in their order")]
    Weights {
        /// Edges of the stream.
        expected: u64,
        /// Weights given.
        found: u64,
    },
    /// A weight that is no number to compute with.
    #[error("the weight of edge {edge} is {found}; weights must be finite")]
    Weight {
        /// Position of the edge in the stream.
        edge: u64,
        /// The weight.
        found: f32,
    },
    /// Partitions of one graph whose files hold different columns.
    #[error("{}: holds {found} of its edges, the files before it {expected}", path.display())]
    Columns {
        /// The file.
        path: PathBuf,
        /// Columns of the first partition.
        expected: EdgeColumns,
        /// Columns of this one.
        found: EdgeColumns,
    },
    /// A file cannot be opened, mapped or written.
    #[error(transparent)]
    Io(#[from] FileError),
    /// A file is not sound, or belongs elsewhere.
    #[error("{}: {fault}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The fault of it.
        fault: FileFault,
    },
    /// Other files than one for each partition.
    #[error("expected one file for each of {expected} partitions, found {found}")]
    Files {
        /// Partitions of the book.
        expected: u16,
        /// Files given.
        found: usize,
    },
}
