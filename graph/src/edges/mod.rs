//! Edge streams: edges are seen in passes, chunk by chunk, and never held.

mod array;
mod error;
mod file;
mod files;
mod read_ahead;
mod text;

use std::path::Path;

pub use array::{ArrayEdges, IdWidth, spool};
pub use error::EdgeError;
pub use file::{EdgeFile, EdgeFormat, EdgeFormatError};
pub use files::EdgeFiles;
pub use read_ahead::ReadAhead;
pub use text::{
    EdgeParser, EdgeTextError, EdgeTextFault, ExtraColumns, MAX_LINE_BYTES, TextEdges, parse_edges,
};

/// Edges of one chunk: 1 MiB of 64-bit pairs, small enough to stay in a core's cache.
pub(crate) const CHUNK_EDGES: usize = 1 << 16;
/// More nodes than this many times the edges are not believed on the word of one id.
const MAX_NODES_PER_EDGE: u64 = 1000;
/// This many nodes are always believed; they cost little.
const MIN_BELIEVED: u64 = 1 << 20;

/// Callback for each chunk of edges.
pub type VisitChunk<'a> = dyn FnMut(&[[u32; 2]]) -> Result<(), EdgeError> + 'a;

/// A list of edges `[source, destination]` that can be read again and again, front to back.
pub trait EdgeStream {
    /// Returns the number of edges of one pass.
    fn n_edges(&self) -> u64;

    /// Returns the number of nodes; every id in every chunk is below it.
    fn n_nodes(&self) -> u32;

    /// Makes one pass: calls `f` with consecutive chunks, and stops at the first error.
    fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError>;
}

/// Makes one pass over every edge that is no loop.
pub(crate) fn for_each_edge(
    edges: &dyn EdgeStream,
    mut f: impl FnMut(u32, u32),
) -> Result<(), EdgeError> {
    edges.for_each_chunk(&mut |chunk| {
        for &[u, v] in chunk {
            if u != v {
                f(u, v);
            }
        }
        Ok(())
    })
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

/// Returns the number of nodes that the ids of a file ask for, if it is in proportion to its edges.
fn believed_nodes(path: &Path, found: u32, n_edges: u64) -> Result<u32, EdgeError> {
    if u64::from(found) > MAX_NODES_PER_EDGE.saturating_mul(n_edges).max(MIN_BELIEVED) {
        return Err(EdgeError::Sparse { path: path.to_owned(), found, n_edges });
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
