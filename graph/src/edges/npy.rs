//! Edges in a `.npy` file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{CHUNK_EDGES, EdgeError, EdgeStream, VisitChunk};
use crate::npy::{NpyHeader, NpyType, open_checked};

/// More nodes than this many times the edges are not believed on the word of one id.
const MAX_NODES_PER_EDGE: u64 = 1000;
/// So many nodes are always believed; they cost little.
const MIN_BELIEVED: u64 = 1 << 20;

/// Edges in a `.npy` file of shape (E, 2), read in chunks; every id of every pass is checked.
///
/// The file is read rather than mapped, so that a pass over it adds nothing to the process's
/// resident memory and a file that shrinks meanwhile is an error.
#[derive(Debug)]
pub struct NpyEdges {
    path: PathBuf,
    file: File,
    header: NpyHeader,
    n_nodes: u32,
}

impl NpyEdges {
    /// Opens `path`; without `n_nodes` a first pass finds the largest id.
    ///
    /// Fails when the file is no (E, 2) array of integers, and without `n_nodes` also when an id
    /// is negative or above 2³² − 2, or so large that there would be a thousand nodes to an edge:
    /// one damaged id must not cost memory for nodes that nobody has. With `n_nodes` the ids are
    /// checked by the passes.
    pub fn open(path: &Path, n_nodes: Option<u32>) -> Result<Self, EdgeError> {
        let (file, header) = open_checked(path)?;
        let found = header.dtype;
        if !matches!(found, NpyType::U32 | NpyType::I32 | NpyType::U64 | NpyType::I64) {
            return Err(EdgeError::Type { path: path.to_owned(), found });
        }
        if !matches!(header.shape.as_slice(), [_, 2]) {
            return Err(EdgeError::Shape { path: path.to_owned(), found: header.shape });
        }
        let mut edges =
            Self { path: path.to_owned(), file, header, n_nodes: n_nodes.unwrap_or(u32::MAX) };
        if n_nodes.is_none() {
            let mut bound = 0;
            edges.for_each_chunk(&mut |chunk| {
                bound = bound.max(chunk.as_flattened().iter().max().map_or(0, |&id| id + 1));
                Ok(())
            })?;
            let believed = MAX_NODES_PER_EDGE.saturating_mul(edges.n_edges()).max(MIN_BELIEVED);
            if u64::from(bound) > believed {
                let (path, n_edges) = (path.to_owned(), edges.n_edges());
                return Err(EdgeError::Sparse { path, found: bound, n_edges });
            }
            edges.n_nodes = bound;
        }
        Ok(edges)
    }

    /// One pass over ids of 32 bits, which are read in place.
    fn narrow_chunks(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        let mut chunk = vec![[0u32; 2]; chunk_len(self.n_edges(), 0)];
        // A negative i32 is 2³¹ or more when read as u32.
        let end = if self.header.dtype == NpyType::I32 { 1 << 31 } else { u32::MAX };
        let bound = self.n_nodes.min(end);
        let mut first = 0;
        while first < self.n_edges() {
            chunk.truncate(chunk_len(self.n_edges(), first));
            self.read_at(first, bytemuck::cast_slice_mut(&mut chunk))?;
            if chunk.as_flattened().iter().fold(0, |max, &id| max.max(id)) >= bound {
                let ids = chunk.as_flattened();
                self.check(first, ids.iter().map(|&id| u64::from(id)), u64::from(bound))?;
            }
            f(&chunk)?;
            first += chunk.len() as u64;
        }
        Ok(())
    }

    /// One pass over ids of 64 bits, which are narrowed once they have been checked.
    fn wide_chunks(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        let mut wide = vec![[0u64; 2]; chunk_len(self.n_edges(), 0)];
        let mut chunk = Vec::with_capacity(wide.len());
        let bound = u64::from(self.n_nodes);
        let mut first = 0;
        while first < self.n_edges() {
            wide.truncate(chunk_len(self.n_edges(), first));
            self.read_at(first, bytemuck::cast_slice_mut(&mut wide))?;
            // A negative i64 is 2⁶³ or more when read as u64.
            if wide.as_flattened().iter().fold(0, |max, &id| max.max(id)) >= bound {
                self.check(first, wide.as_flattened().iter().copied(), bound)?;
            }
            chunk.clear();
            chunk.extend(wide.iter().map(|&[u, v]| [u as u32, v as u32]));
            f(&chunk)?;
            first += chunk.len() as u64;
        }
        Ok(())
    }

    fn read_at(&self, edge: u64, bytes: &mut [u8]) -> Result<(), EdgeError> {
        let edge_bytes = 2 * self.header.dtype.size_bytes() as u64;
        let offset = self.header.data_offset as u64 + edge * edge_bytes;
        self.file.read_exact_at(bytes, offset).map_err(|source| EdgeError::Io {
            path: self.path.clone(),
            edge,
            source,
        })
    }

    #[cold]
    fn check(
        &self,
        first_edge: u64,
        mut ids: impl Iterator<Item = u64>,
        bound: u64,
    ) -> Result<(), EdgeError> {
        match ids.by_ref().enumerate().find(|&(_, id)| id >= bound) {
            None => Ok(()),
            Some((position, id)) => Err(EdgeError::OutOfRange {
                origin: self.path.display().to_string(),
                edge: first_edge + position as u64 / 2,
                found: match self.header.dtype {
                    NpyType::I32 => i128::from(id as u32 as i32),
                    NpyType::I64 => i128::from(id as i64),
                    _ => i128::from(id),
                },
                n_nodes: self.n_nodes,
            }),
        }
    }
}

impl EdgeStream for NpyEdges {
    fn n_edges(&self) -> u64 {
        self.header.n_rows()
    }

    fn n_nodes(&self) -> u32 {
        self.n_nodes
    }

    fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        if self.header.dtype.size_bytes() == 4 {
            self.narrow_chunks(f)
        } else {
            self.wide_chunks(f)
        }
    }
}

fn chunk_len(n_edges: u64, first: u64) -> usize {
    usize::try_from(n_edges - first).map_or(CHUNK_EDGES, |left| left.min(CHUNK_EDGES))
}
