//! Edge streams: edges are seen in passes, chunk by chunk, and never held.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::npy::{NpyError, NpyHeader, NpyType, open_checked};

/// Edges of one chunk: 1 MiB of 64-bit pairs, small enough to stay in a core's cache.
const CHUNK_EDGES: usize = 1 << 16;

/// A list of edges `[source, destination]` that can be read again and again, front to back.
pub trait EdgeStream {
    /// Number of edges of one pass.
    fn n_edges(&self) -> u64;

    /// Number of nodes; every id in every chunk is below it.
    fn n_nodes(&self) -> u32;

    /// One pass: calls `f` with consecutive chunks; stops at the first error.
    fn for_each_chunk(
        &self,
        f: &mut dyn FnMut(&[[u32; 2]]) -> Result<(), EdgeError>,
    ) -> Result<(), EdgeError>;
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
    /// is negative or above 2³² − 2. With `n_nodes` the ids are checked by the passes.
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
            edges.n_nodes = bound;
        }
        Ok(edges)
    }

    /// One pass over ids of 32 bits, which are read in place.
    fn narrow_chunks(
        &self,
        f: &mut dyn FnMut(&[[u32; 2]]) -> Result<(), EdgeError>,
    ) -> Result<(), EdgeError> {
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
    fn wide_chunks(
        &self,
        f: &mut dyn FnMut(&[[u32; 2]]) -> Result<(), EdgeError>,
    ) -> Result<(), EdgeError> {
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
        self.file
            .read_exact_at(bytes, offset)
            .map_err(|source| EdgeError::Io { path: self.path.clone(), edge, source })
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

    fn for_each_chunk(
        &self,
        f: &mut dyn FnMut(&[[u32; 2]]) -> Result<(), EdgeError>,
    ) -> Result<(), EdgeError> {
        if self.header.dtype.size_bytes() == 4 { self.narrow_chunks(f) } else { self.wide_chunks(f) }
    }
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

    fn for_each_chunk(
        &self,
        f: &mut dyn FnMut(&[[u32; 2]]) -> Result<(), EdgeError>,
    ) -> Result<(), EdgeError> {
        self.edges.chunks(CHUNK_EDGES).try_for_each(f)
    }
}

fn chunk_len(n_edges: u64, first: u64) -> usize {
    usize::try_from(n_edges - first).map_or(CHUNK_EDGES, |left| left.min(CHUNK_EDGES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npy::NpyWriter;
    use tempfile::TempDir;

    fn all(edges: &dyn EdgeStream) -> Result<Vec<[u32; 2]>, EdgeError> {
        let mut out = Vec::new();
        edges.for_each_chunk(&mut |chunk| {
            out.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(out)
    }

    fn npy(dir: &TempDir, dtype: NpyType, ids: &[i64]) -> PathBuf {
        let path = dir.path().join("edges.npy");
        let mut writer = NpyWriter::create(&path, dtype, &[ids.len() as u64 / 2, 2]).unwrap();
        for id in ids {
            writer.write_all(&id.to_le_bytes()[..dtype.size_bytes()]).unwrap();
        }
        writer.finish().unwrap();
        path
    }

    #[test]
    fn all_integer_types_give_the_same_edges_across_chunks() {
        let dir = tempfile::tempdir().unwrap();
        let ids: Vec<i64> = (0..2 * CHUNK_EDGES as i64 + 6).collect();
        let expected: Vec<[u32; 2]> = ids.chunks(2).map(|e| [e[0] as u32, e[1] as u32]).collect();
        for dtype in [NpyType::U32, NpyType::I32, NpyType::U64, NpyType::I64] {
            let edges = NpyEdges::open(&npy(&dir, dtype, &ids), None).unwrap();
            assert_eq!(edges.n_nodes(), ids.len() as u32);
            assert_eq!(edges.n_edges(), expected.len() as u64);
            assert_eq!(all(&edges).unwrap(), expected, "{dtype}");
        }
        assert_eq!(all(&MemoryEdges::new(expected.clone()).unwrap()).unwrap(), expected);
    }

    #[test]
    fn ids_out_of_range_name_edge_and_id() {
        let dir = tempfile::tempdir().unwrap();
        let mut ids = vec![0; 2 * CHUNK_EDGES + 8];
        ids[2 * CHUNK_EDGES + 5] = 7;
        for dtype in [NpyType::U32, NpyType::I32, NpyType::U64, NpyType::I64] {
            let path = npy(&dir, dtype, &ids);
            assert!(all(&NpyEdges::open(&path, Some(8)).unwrap()).is_ok());
            let error = all(&NpyEdges::open(&path, Some(7)).unwrap()).unwrap_err().to_string();
            assert!(error.contains("edge 65538 names node 7"), "{error}");
            assert!(all(&NpyEdges::open(&path, Some(0)).unwrap()).is_err());
        }
    }

    #[test]
    fn negative_and_huge_ids_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let found = |dtype, id| match NpyEdges::open(&npy(&dir, dtype, &[0, id]), None) {
            Err(EdgeError::OutOfRange { found, edge: 0, .. }) => found,
            other => panic!("{other:?}"),
        };
        assert_eq!(found(NpyType::I32, -1), -1);
        assert_eq!(found(NpyType::I64, -1), -1);
        assert_eq!(found(NpyType::U64, -1), i128::from(u64::MAX));
        assert_eq!(found(NpyType::U32, i64::from(u32::MAX)), i128::from(u32::MAX));
        assert_eq!(found(NpyType::I64, 1 << 32), 1 << 32);
        let last = npy(&dir, NpyType::U32, &[0, i64::from(u32::MAX) - 1]);
        assert_eq!(NpyEdges::open(&last, None).unwrap().n_nodes(), u32::MAX);
        let negative = npy(&dir, NpyType::I32, &[0, -1]);
        assert!(all(&NpyEdges::open(&negative, Some(u32::MAX)).unwrap()).is_err());
        assert!(MemoryEdges::new(vec![[0, u32::MAX]]).is_err());
    }

    #[test]
    fn other_types_and_shapes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let float = npy(&dir, NpyType::F32, &[1, 2]);
        assert!(matches!(NpyEdges::open(&float, None), Err(EdgeError::Type { .. })));
        let path = dir.path().join("wide.npy");
        NpyWriter::create(&path, NpyType::U32, &[2, 0]).unwrap().finish().unwrap();
        let error = NpyEdges::open(&path, None).unwrap_err().to_string();
        assert!(error.contains("(E, 2), found [2, 0]"), "{error}");
    }

    #[test]
    fn no_edges_are_no_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let edges = NpyEdges::open(&npy(&dir, NpyType::I64, &[]), None).unwrap();
        assert_eq!((edges.n_edges(), edges.n_nodes()), (0, 0));
        assert!(all(&edges).unwrap().is_empty());
        assert_eq!(NpyEdges::open(&npy(&dir, NpyType::I64, &[]), Some(5)).unwrap().n_nodes(), 5);
    }

    #[test]
    fn a_file_that_shrinks_between_passes_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = npy(&dir, NpyType::U32, &[0, 1, 1, 0]);
        let edges = NpyEdges::open(&path, None).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(130).unwrap();
        assert!(matches!(all(&edges), Err(EdgeError::Io { edge: 0, .. })));
    }
}
