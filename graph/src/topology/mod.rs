//! Topology: for every node the sorted list of its in-neighbours, as compressed sparse rows.
//!
//! File `topology.csr` of a partition, after the header page:
//!
//! | section | content |
//! |---|---|
//! | offsets | u64 × (owned nodes + 1): where the list of each owned node starts, in ids |
//! | neighbours | u32 × edges: in-neighbours, global internal ids, ascending in each list |
//!
//! The file ends with its last neighbour. The header counts nodes and edges, and holds the CRC-32
//! of both sections. Repeated edges are stored once; self loops are kept.

mod error;
mod lists;
mod write;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::check::{FileCheck, FileFault, FileKind};
use crate::edges::EdgeStream;
use crate::map::{FileMap, Section, numbers};
use crate::relabel::Relabelling;
use crate::{NodeId, PartId, PartitionBook};

pub use error::TopologyError;
pub use write::{TopologySummary, scratch_topology, write_topologies};

/// The in-neighbour lists of a whole graph, mapped from the files of its partitions or in memory.
#[derive(Debug)]
pub struct Topology {
    /// First node of each partition, then the number of nodes of the graph.
    bounds: Vec<u32>,
    parts: Vec<Part>,
}

/// Lists of consecutive nodes.
#[derive(Debug)]
struct Part {
    offsets: Section<u64>,
    neighbours: Section<u32>,
}

/// The lists of consecutive nodes, at least one.
#[derive(Clone, Copy)]
pub(crate) struct Slab<'a> {
    /// The first node.
    pub(crate) first: u32,
    /// Where each list starts, then where the last one ends.
    pub(crate) offsets: &'a [u64],
    pub(crate) neighbours: &'a [u32],
}

impl Topology {
    /// Maps the files of all partitions, in order, and checks every byte of them.
    pub fn open(
        paths: &[PathBuf],
        book: &PartitionBook,
        uuid: [u8; 16],
    ) -> Result<Self, TopologyError> {
        if paths.len() != usize::from(book.n_parts()) {
            return Err(TopologyError::Files { expected: book.n_parts(), found: paths.len() });
        }
        let parts = book.parts().zip(paths).map(|(part, path)| open_part(path, book, part, uuid));
        Ok(Self { parts: parts.collect::<Result<_, _>>()?, bounds: book.bounds().to_vec() })
    }

    /// As [`Topology::open`], from the bytes of the files.
    pub fn from_bytes(
        files: Vec<Vec<u8>>,
        book: &PartitionBook,
        uuid: [u8; 16],
    ) -> Result<Self, TopologyError> {
        if files.len() != usize::from(book.n_parts()) {
            return Err(TopologyError::Files { expected: book.n_parts(), found: files.len() });
        }
        let parts = book.parts().zip(files).map(|(part, file)| {
            let path = PathBuf::from(format!("topology of partition {part}"));
            owned_part(&file, book, part, uuid).map_err(|fault| TopologyError::File { path, fault })
        });
        Ok(Self { parts: parts.collect::<Result<_, _>>()?, bounds: book.bounds().to_vec() })
    }

    /// Takes lists that are in memory already: where each starts, and the in-neighbours. Offsets
    /// must ascend from 0 to the number of neighbours, and neighbours be nodes; the neighbours of
    /// one node should be distinct, and are not checked for that.
    pub fn from_lists(offsets: Vec<u64>, neighbours: Vec<u32>) -> Result<Self, TopologyError> {
        let fault = |section, entry: usize| {
            let path = PathBuf::from("lists in memory");
            let fault = FileFault::Content { section, entry: entry as u64 };
            Err(TopologyError::File { path, fault })
        };
        let n_nodes = offsets.len().checked_sub(1).and_then(|n| u32::try_from(n).ok());
        let Some(n_nodes) = n_nodes.filter(|&n| n < u32::MAX) else {
            return fault("offsets", offsets.len());
        };
        if offsets[0] != 0 || offsets[n_nodes as usize] != neighbours.len() as u64 {
            return fault("offsets", if offsets[0] == 0 { n_nodes as usize } else { 0 });
        }
        let follows = |ends: &[u64]| ends[0] <= ends[1] && ends[1] - ends[0] < u32::MAX.into();
        if let Some(node) = offsets.windows(2).position(|ends| !follows(ends)) {
            return fault("offsets", node + 1);
        }
        if let Some(edge) = neighbours.iter().position(|&id| id >= n_nodes) {
            return fault("neighbours", edge);
        }
        let (offsets, neighbours) = (Section::Owned(offsets), Section::Owned(neighbours));
        Ok(Self { bounds: vec![0, n_nodes], parts: vec![Part { offsets, neighbours }] })
    }

    /// Builds the lists in memory. `undirected` adds the reverse of every edge.
    pub fn from_edges(
        edges: &dyn EdgeStream,
        relabelling: &Relabelling,
        undirected: bool,
    ) -> Result<Self, TopologyError> {
        let (mut offsets, mut neighbours) = (vec![0u64], Vec::new());
        lists::for_each(edges, relabelling, undirected, lists::WINDOW_EDGES, &mut |_, list| {
            neighbours.extend_from_slice(list);
            offsets.push(neighbours.len() as u64);
            Ok(())
        })?;
        let bounds = vec![0, relabelling.book.n_nodes()];
        let (offsets, neighbours) = (Section::Owned(offsets), Section::Owned(neighbours));
        Ok(Self { bounds, parts: vec![Part { offsets, neighbours }] })
    }

    /// Sources of the edges into `node`, ascending and distinct; none past the last node.
    #[must_use]
    pub fn in_neighbours(&self, node: NodeId) -> &[u32] {
        self.list(node).unwrap_or_default()
    }

    /// Number of distinct edges into `node`; 0 past the last node.
    #[must_use]
    pub fn in_degree(&self, node: NodeId) -> u32 {
        self.in_neighbours(node).len() as u32
    }

    /// Number of nodes.
    #[must_use]
    pub fn n_nodes(&self) -> u32 {
        self.bounds.last().copied().unwrap_or(0)
    }

    /// Number of edges, each direction of an undirected one counted.
    #[must_use]
    pub fn n_edges(&self) -> u64 {
        self.parts.iter().map(|part| part.neighbours.as_slice().len() as u64).sum()
    }

    /// The lists of consecutive nodes, in order.
    pub(crate) fn slabs(&self) -> Vec<Slab<'_>> {
        let slabs = self.bounds.iter().zip(&self.parts).map(|(&first, part)| Slab {
            first,
            offsets: part.offsets.as_slice(),
            neighbours: part.neighbours.as_slice(),
        });
        slabs.filter(|slab| slab.offsets.len() > 1).collect()
    }

    #[inline]
    fn list(&self, node: NodeId) -> Option<&[u32]> {
        let part = match self.parts.len() {
            1 => 0,
            _ => self.bounds.partition_point(|&bound| bound <= node.0).checked_sub(1)?,
        };
        let (first, part) = (*self.bounds.get(part)?, self.parts.get(part)?);
        let row = (node.0 - first) as usize;
        let ends = part.offsets.as_slice().get(row..row + 2)?;
        part.neighbours.as_slice().get(ends[0] as usize..ends[1] as usize)
    }
}

/// Maps the file of one partition and checks every byte of it.
fn open_part(
    path: &Path,
    book: &PartitionBook,
    part: PartId,
    uuid: [u8; 16],
) -> Result<Part, TopologyError> {
    let io = |action| move |source| TopologyError::Io { path: path.to_owned(), action, source };
    let file = File::open(path).map_err(io("open"))?;
    let map = Arc::new(FileMap::of(&file).map_err(io("map"))?);
    let sections = check(map.bytes(), book, part, uuid);
    let mapped = sections.and_then(|[offsets, neighbours]| {
        // Maps start at pages, so that sections are aligned for their numbers.
        let offsets = Section::mapped(&map, offsets).ok_or(UNALIGNED)?;
        Ok(Part { offsets, neighbours: Section::mapped(&map, neighbours).ok_or(UNALIGNED)? })
    });
    mapped.map_err(|fault| TopologyError::File { path: path.to_owned(), fault })
}

fn owned_part(
    file: &[u8],
    book: &PartitionBook,
    part: PartId,
    uuid: [u8; 16],
) -> Result<Part, FileFault> {
    let [offsets, neighbours] = check(file, book, part, uuid)?;
    let offsets = Section::Owned(numbers(&file[offsets]));
    Ok(Part { offsets, neighbours: Section::Owned(numbers(&file[neighbours])) })
}

/// Checks the bytes of a file; gives where offsets and neighbours lie in it.
fn check(
    file: &[u8],
    book: &PartitionBook,
    part: PartId,
    uuid: [u8; 16],
) -> Result<[Range<usize>; 2], FileFault> {
    let check = FileCheck::new(FileKind::Topology, file, file.len() as u64, book, part, uuid)?;
    check.check_all(file)?;
    Ok([0, 1].map(|section| check.section_bytes(section)))
}

/// A section out of bounds or not aligned in its map, which the check has ruled out.
const UNALIGNED: FileFault = FileFault::Content { section: "offsets", entry: 0 };

#[cfg(test)]
mod tests;
