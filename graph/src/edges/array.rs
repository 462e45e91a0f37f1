//! Edges as an array of pairs of numbers in a file, read in place.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{CHUNK_EDGES, EdgeError, EdgeStream, VisitChunk, believed_nodes};
use crate::file_error::FileError;
use crate::npy::{NpyType, open_checked};

/// Edges in a `.npy` file of shape (E, 2), read in chunks; every id of every pass is checked.
#[derive(Debug)]
pub struct NpyEdges(PairArray);

/// Edges as bare little-endian pairs of u32 or u64 in a file, read in chunks; every id of every
/// pass is checked.
#[derive(Debug)]
pub struct RawEdges(PairArray);

/// Pairs of node ids in a file, as an array of fixed width.
///
/// The file is read rather than mapped: a pass adds nothing to the process's resident memory, and a
/// file that shrinks meanwhile is an error.
#[derive(Debug)]
struct PairArray {
    path: PathBuf,
    file: File,
    data_offset: u64,
    n_edges: u64,
    dtype: NpyType,
    n_nodes: u32,
}

impl NpyEdges {
    /// Opens `path`; without `n_nodes` a first pass finds the largest id.
    ///
    /// Fails when the file is no (E, 2) array of integers. Without `n_nodes` it also fails when an
    /// id is negative or above 2³² − 2, or implies a thousand nodes per edge. One damaged id must
    /// not cost memory for nodes that do not exist. With `n_nodes` the ids are checked by the
    /// passes.
    pub fn open(path: &Path, n_nodes: Option<u32>) -> Result<Self, EdgeError> {
        let (file, header) = open_checked(path)?;
        let found = header.dtype;
        if !matches!(found, NpyType::U32 | NpyType::I32 | NpyType::U64 | NpyType::I64) {
            return Err(EdgeError::Type { path: path.to_owned(), found });
        }
        if !matches!(header.shape.as_slice(), [_, 2]) {
            return Err(EdgeError::Shape { path: path.to_owned(), found: header.shape });
        }
        let array = PairArray {
            path: path.to_owned(),
            file,
            data_offset: header.data_offset as u64,
            n_edges: header.n_rows(),
            dtype: header.dtype,
            n_nodes: u32::MAX,
        };
        Ok(Self(array.over(n_nodes)?))
    }
}

/// Width of the ids in a file without a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdWidth {
    /// 4 bytes, little-endian.
    U32,
    /// 8 bytes, little-endian.
    U64,
}

impl RawEdges {
    /// Opens a file of pairs; for the rest see [`NpyEdges::open`].
    ///
    /// Fails also when the file does not hold a whole number of pairs.
    pub fn open(path: &Path, width: IdWidth, n_nodes: Option<u32>) -> Result<Self, EdgeError> {
        let file = File::open(path).map_err(FileError::at(path, "open"))?;
        let found_bytes = file.metadata().map_err(FileError::at(path, "open"))?.len();
        let dtype = match width {
            IdWidth::U32 => NpyType::U32,
            IdWidth::U64 => NpyType::U64,
        };
        let edge_bytes = 2 * dtype.size_bytes() as u64;
        if !found_bytes.is_multiple_of(edge_bytes) {
            return Err(EdgeError::Length { path: path.to_owned(), edge_bytes, found_bytes });
        }
        let (path, n_edges) = (path.to_owned(), found_bytes / edge_bytes);
        let array = PairArray { path, file, data_offset: 0, n_edges, dtype, n_nodes: u32::MAX };
        Ok(Self(array.over(n_nodes)?))
    }
}

impl PairArray {
    /// Returns the same over `n_nodes` nodes, or over as many as the largest id asks for.
    fn over(mut self, n_nodes: Option<u32>) -> Result<Self, EdgeError> {
        self.n_nodes = match n_nodes {
            Some(n_nodes) => n_nodes,
            None => {
                let mut bound = 0;
                self.for_each_chunk(&mut |chunk| {
                    let max = chunk.as_flattened().iter().max();
                    bound = bound.max(max.map_or(0, |&id| id + 1));
                    Ok(())
                })?;
                believed_nodes(&self.path, bound, self.n_edges)?
            }
        };
        Ok(self)
    }

    fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        if self.dtype.size_bytes() == 4 { self.narrow_chunks(f) } else { self.wide_chunks(f) }
    }

    /// Makes one pass over ids of 32 bits, which are read in place.
    fn narrow_chunks(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        let mut chunk = vec![[0u32; 2]; self.chunk_len(0)];
        // A negative i32 is 2³¹ or more when read as u32.
        let end = if self.dtype == NpyType::I32 { 1 << 31 } else { u32::MAX };
        let bound = self.n_nodes.min(end);
        let mut first = 0;
        while first < self.n_edges {
            chunk.truncate(self.chunk_len(first));
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

    /// Makes one pass over ids of 64 bits, which are narrowed after they are checked.
    fn wide_chunks(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        let mut wide = vec![[0u64; 2]; self.chunk_len(0)];
        let mut chunk = Vec::with_capacity(wide.len());
        let bound = u64::from(self.n_nodes);
        let mut first = 0;
        while first < self.n_edges {
            wide.truncate(self.chunk_len(first));
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

    /// Returns the number of edges of the chunk that starts at edge `first`.
    fn chunk_len(&self, first: u64) -> usize {
        usize::try_from(self.n_edges - first).map_or(CHUNK_EDGES, |left| left.min(CHUNK_EDGES))
    }

    fn read_at(&self, edge: u64, bytes: &mut [u8]) -> Result<(), EdgeError> {
        let edge_bytes = 2 * self.dtype.size_bytes() as u64;
        let offset = self.data_offset + edge * edge_bytes;
        let read = self.file.read_exact_at(bytes, offset);
        read.map_err(|e| FileError::at(&self.path, format!("read edge {edge}"))(e).into())
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
                found: match self.dtype {
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
        self.0.n_edges
    }

    fn n_nodes(&self) -> u32 {
        self.0.n_nodes
    }

    fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        self.0.for_each_chunk(f)
    }
}

impl EdgeStream for RawEdges {
    fn n_edges(&self) -> u64 {
        self.0.n_edges
    }

    fn n_nodes(&self) -> u32 {
        self.0.n_nodes
    }

    fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        self.0.for_each_chunk(f)
    }
}

/// Copies `edges` to a new file at `path` as pairs of u32, 8 bytes an edge, and opens that file.
/// Later passes then need not parse or decompress text.
pub fn spool(edges: &dyn EdgeStream, path: &Path) -> Result<RawEdges, EdgeError> {
    let mut file = File::create_new(path).map_err(FileError::at(path, "write"))?;
    edges.for_each_chunk(&mut |chunk| {
        let written = file.write_all(bytemuck::cast_slice(chunk));
        Ok(written.map_err(FileError::at(path, "write"))?)
    })?;
    RawEdges::open(path, IdWidth::U32, Some(edges.n_nodes()))
}
