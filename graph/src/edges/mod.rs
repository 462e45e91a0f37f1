//! Edge streams: edges are seen in passes, chunk by chunk, and never held.

mod npy;

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::npy::{NpyError, NpyType};

pub use npy::NpyEdges;

/// Edges of one chunk: 1 MiB of 64-bit pairs, small enough to stay in a core's cache.
const CHUNK_EDGES: usize = 1 << 16;

/// What is done with each chunk of edges.
pub type VisitChunk<'a> = dyn FnMut(&[[u32; 2]]) -> Result<(), EdgeError> + 'a;

/// A list of edges `[source, destination]` that can be read again and again, front to back.
pub trait EdgeStream {
    /// Number of edges of one pass.
    fn n_edges(&self) -> u64;

    /// Number of nodes; every id in every chunk is below it.
    fn n_nodes(&self) -> u32;

    /// One pass: calls `f` with consecutive chunks; stops at the first error.
    fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError>;
}

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
    /// The file can no longer be read.
    #[error("{}: cannot read edge {edge}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// First edge of the chunk that failed.
        edge: u64,
        /// The system's reason.
        source: io::Error,
    },
}

/// Edges in memory, for tests and small graphs.
#[derive(Clone, Debug, Default)]
pub struct MemoryEdges {
    edges: Vec<[u32; 2]>,
    n_nodes: u32,
}

impl MemoryEdges {
    /// Takes edges over as many nodes as their largest id asks for; no id may be 2³² − 1.
    pub fn new(edges: Vec<[u32; 2]>) -> Result<Self, EdgeError> {
        let n_nodes = edges.as_flattened().iter().max().map_or(0, |max| max.saturating_add(1));
        if let Some(edge) = edges.iter().position(|edge| edge.contains(&u32::MAX)) {
            return Err(EdgeError::OutOfRange {
                origin: "edges in memory".to_owned(),
                edge: edge as u64,
                found: i128::from(u32::MAX),
                n_nodes,
            });
        }
        Ok(Self { edges, n_nodes })
    }
}

impl EdgeStream for MemoryEdges {
    fn n_edges(&self) -> u64 {
        self.edges.len() as u64
    }

    fn n_nodes(&self) -> u32 {
        self.n_nodes
    }

    fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        self.edges.chunks(CHUNK_EDGES).try_for_each(f)
    }
}

#[cfg(test)]
mod tests;
