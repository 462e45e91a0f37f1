//! Edges as an array of pairs of numbers in a file, read in place.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{CHUNK_EDGES, EdgeError, EdgeStream, VisitChunk, believed_nodes};
use crate::file_error::FileError;
use crate::npy::{NpyType, open_checked};

/// Edges as an array of pairs of node ids in a file, a `.npy` array or bare numbers. They are read
/// in chunks, and every id of every pass is checked.
///
/// The file is read rather than mapped: a pass adds nothing to the process's resident memory, and a
/// file that shrinks meanwhile is an error.
#[derive(Debug)]
pub struct ArrayEdges {
    path: PathBuf,
    file: File,
    data_offset: u64,
    n_edges: u64,
    dtype: NpyType,
    n_nodes: u32,
}

impl ArrayEdges {
    /// Opens a `.npy` file of shape (E, 2); without `n_nodes` a first pass finds the largest id.
    ///
    /// Fails when the file is no (E, 2) array of integers. Without `n_nodes` it also fails when an
    /// id is negative or above 2³² − 2, or implies a thousand nodes per edge. One damaged id must
    /// not cost memory for nodes that do not exist. With `n_nodes` the ids are checked by the
    /// passes.
    pub fn open_npy(path: &Path, n_nodes: Option<u32>) -> Result<Self, EdgeError> {
        let (file, header) = open_checked(path)?;
        let dtype = header.dtype;
        if !matches!(dtype, NpyType::U32 | NpyType::I32 | NpyType::U64 | NpyType::I64) {
            return Err(EdgeError::Type { path: path.to_owned(), found: dtype });
        }
        if !matches!(header.shape.as_slice(), [_, 2]) {
            return Err(EdgeError::Shape { path: path.to_owned(), found: header.shape });
        }
        let (data_offset, n_edges) = (header.data_offset as u64, header.n_rows());
        let path = path.to_owned();
        Self { path, file, data_offset, n_edges, dtype, n_nodes: u32::MAX }.over(n_nodes)
    }

    /// Opens a file of bare little-endian pairs of `width`; for the rest see
    /// [`ArrayEdges::open_npy`].
    ///
    /// Fails also when the file does not hold a whole number of pairs.
    pub fn open_raw(path: &Path, width: IdWidth, n_nodes: Option<u32>) -> Result<Self, EdgeError> {
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
        Self { path, file, data_offset: 0, n_edges, dtype, n_nodes: u32::MAX }.over(n_nodes)
    }

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

    /// Checks that ids, those from edge `first` on, are below `bound`.
    fn check<T>(&self, first: u64, ids: &[T], bound: u32) -> Result<(), EdgeError>
    where
        T: Copy + Ord + Default + Into<u64>,
    {
        let bound = u64::from(bound);
        // No branch for each id.
        let most: u64 = ids.iter().fold(T::default(), |most, &id| most.max(id)).into();
        if most < bound {
            return Ok(());
        }
        let mut wide = ids.iter().map(|&id| -> u64 { id.into() }).enumerate();
        match wide.find(|&(_, id)| id >= bound) {
            None => Ok(()),
            Some((position, id)) => Err(EdgeError::OutOfRange {
                origin: self.path.display().to_string(),
                edge: first + position as u64 / 2,
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

impl EdgeStream for ArrayEdges {
    fn n_edges(&self) -> u64 {
        self.n_edges
    }

    fn n_nodes(&self) -> u32 {
        self.n_nodes
    }

    /// Makes one pass: ids of 32 bits are read in place, those of 64 are narrowed once checked.
    fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        let is_wide = self.dtype.size_bytes() == size_of::<u64>();
        let mut chunk = vec![[0u32; 2]; self.chunk_len(0)];
        let mut wide = vec![[0u64; 2]; if is_wide { chunk.len() } else { 0 }];
        // A negative i32 is 2³¹ or more when read as u32, an i64 2⁶³ or more when read as u64.
        let is_i32 = self.dtype == NpyType::I32;
        let bound = if is_i32 { self.n_nodes.min(1 << 31) } else { self.n_nodes };
        let mut first = 0;
        while first < self.n_edges {
            chunk.truncate(self.chunk_len(first));
            if is_wide {
                wide.truncate(chunk.len());
                self.read_at(first, bytemuck::cast_slice_mut(&mut wide))?;
                self.check(first, wide.as_flattened(), bound)?;
                for (narrow, wide) in chunk.iter_mut().zip(&wide) {
                    *narrow = wide.map(|id| id as u32);
                }
            } else {
                self.read_at(first, bytemuck::cast_slice_mut(&mut chunk))?;
                self.check(first, chunk.as_flattened(), bound)?;
            }
            f(&chunk)?;
            first += chunk.len() as u64;
        }
        Ok(())
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

/// Copies `edges` to a new file at `path` as pairs of u32, 8 bytes an edge, and opens that file.
/// Later passes then need not parse or decompress text.
pub fn spool(edges: &dyn EdgeStream, path: &Path) -> Result<ArrayEdges, EdgeError> {
    let mut file = File::create_new(path).map_err(FileError::at(path, "write"))?;
    edges.for_each_chunk(&mut |chunk| {
        let written = file.write_all(bytemuck::cast_slice(chunk));
        Ok(written.map_err(FileError::at(path, "write"))?)
    })?;
    ArrayEdges::open_raw(path, IdWidth::U32, Some(edges.n_nodes()))
}
