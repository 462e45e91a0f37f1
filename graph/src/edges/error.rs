//! Errors of edges.

use std::path::PathBuf;

use thiserror::Error;

use super::{EdgeTextError, EdgeTextFault};
use crate::file_error::FileError;
use crate::npy::{NpyError, NpyType};

/// Why a stream of edges could not be read.
#[derive(Debug, Error)]
pub enum EdgeError {
    /// The file is no `.npy` array.
    #[error(transparent)]
    Npy(#[from] NpyError),
    /// The array holds no integers of 32 or 64 bits.
    #[error("{}: edges must be u32, i32, u64 or i64, found {found}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// Element type found.
        found: NpyType,
    },
    /// The array is not a list of pairs.
    #[error(
        "{}: edges must have shape (E, 2), found {found:?}; transpose an array of shape (2, E)",
        path.display()
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// Shape found.
        found: Vec<u64>,
    },
    /// A file of bare pairs ends inside a pair.
    #[error(
        "{}: {found_bytes} bytes are no whole number of edges of {edge_bytes} bytes; the file is \
         cut short or of another format",
        path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes of one edge.
        edge_bytes: u64,
        /// Bytes of the file.
        found_bytes: u64,
    },
    /// The file's name has no known suffix, and no format was given.
    #[error(
        "{}: cannot tell the format of the edges from the name; say whether it is npy, u32, u64 \
         or text",
        path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A file that is not compressed as its name says.
    #[error("{}: not compressed as its name says; give it the name of what it is", path.display())]
    NotCompressed {
        /// The file.
        path: PathBuf,
    },
    /// A pipe or a device.
    #[error(
        "{}: a pipe or a device; edges are read several times: save them to a file", path.display()
    )]
    Stream {
        /// The path.
        path: PathBuf,
    },
    /// A compressed file of a format that is read in place.
    #[error("{}: only text may be compressed; decompress the file first", path.display())]
    Compressed {
        /// The file.
        path: PathBuf,
    },
    /// A line of text that is no edge.
    #[error("{}: {error}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Which line, and what is wrong with it.
        error: EdgeTextError,
    },
    /// A node id past the last node.
    #[error("{origin}: edge {edge} names node {found}, but ids must be from 0 to below {n_nodes}")]
    OutOfRange {
        /// The file, or that the edges were in memory.
        origin: String,
        /// The edge, counted from 0.
        edge: u64,
        /// The id found; negative where the file says so.
        found: i128,
        /// Number of nodes.
        n_nodes: u32,
    },
    /// An id so large that memory for all nodes below it would hardly be used.
    #[error(
        "{}: the largest id makes {found} nodes of {n_edges} edges, which looks like damage; \
         if it is right, give the number of nodes",
        path.display()
    )]
    Sparse {
        /// The file.
        path: PathBuf,
        /// Nodes that the largest id asks for.
        found: u32,
        /// Edges in the file.
        n_edges: u64,
    },
    /// A file cannot be opened, read on or decompressed, or edges cannot be kept for later passes.
    #[error(transparent)]
    Io(#[from] FileError),
    /// A pass saw other edges than the first one.
    #[error("{}: {found} edges where there were {expected}; it changed while it was read",
        path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// Edges of the first pass.
        expected: u64,
        /// Edges of this one.
        found: u64,
    },
    /// The reader of the edges stopped before their end.
    #[error("the edges were not read to their end")]
    Stopped,
}

impl EdgeError {
    /// Returns whether an edge names a node that is not below the number of nodes.
    #[must_use]
    pub fn is_out_of_range(&self) -> bool {
        match self {
            Self::OutOfRange { .. } => true,
            Self::Text { error, .. } => matches!(error.fault, EdgeTextFault::OutOfRange { .. }),
            _ => false,
        }
    }
}
