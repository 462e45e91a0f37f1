//! Topology: for every node the sorted list of its in-neighbours, as compressed sparse rows.
//!
//! File `topology.csr` of a partition, after the header page:
//!
//! | section | content |
//! |---|---|
//! | offsets | u64 × (owned nodes + 1): where the list of each owned node starts, in ids |
//! | neighbours | u32 × edges: in-neighbours, global internal ids, ascending in each list |
//! | edge ids | if there are any, u64 × edges: position of each edge in the input |
//! | weights | if there are any, f32 × edges, finite |
//!
//! The file ends with its last section. The header counts nodes and edges, says which sections
//! there are, and holds the CRC-32 of each. Repeated edges are stored once and self loops kept,
//! unless the file was written with other options.

mod error;
mod lists;
mod options;
mod write;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::book::PartitionBook;
use crate::edges::EdgeStream;
use crate::file_check::{EdgeColumns, FileCheck, FileFault, FileKind, FilePartition};
use crate::file_error::FileError;
use crate::ids::{NodeId, PartId};
use crate::map::{FileMap, Section, numbers};
use crate::relabel::Relabelling;
use lists::ListInput;

pub use error::TopologyError;
pub use options::{Direction, EdgePolicy, TopologyOptions};
pub use write::{TopologySummary, scratch_topology, write_topologies, write_topologies_with};

/// The in-neighbour lists of a whole graph, mapped from the files of its partitions or in memory.
#[derive(Debug)]
pub struct Topology {
    /// First node of each partition, then the number of nodes of the graph.
    bounds: Vec<u32>,
    parts: Vec<PartLists>,
}

/// Lists of consecutive nodes.
#[derive(Debug)]
struct PartLists {
    offsets: Section<u64>,
    neighbours: Section<u32>,
    edge_ids: Option<Section<EdgeId>>,
    weights: Option<Section<f32>>,
}

/// Position of an edge in the input; in files it starts at any multiple of 4.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct EdgeId([u32; 2]);

impl EdgeId {
    /// Returns the position, counted from 0.
    #[must_use]
    pub fn get(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1]) << 32
    }
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
        let parts = book.parts().zip(paths).map(|(part, path)| {
            let part = open_part(path, book, part, uuid);
            part.map(|part| (path.clone(), part))
        });
        Self::of_parts(parts, book)
    }

    /// Does as [`Topology::open`], from the bytes of the files.
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
            match owned_part(&file, book, part, uuid) {
                Ok(part) => Ok((path, part)),
                Err(fault) => Err(TopologyError::File { path, fault }),
            }
        });
        Self::of_parts(parts, book)
    }

    /// Returns the parts, all of which must have the same columns.
    fn of_parts(
        parts: impl Iterator<Item = Result<(PathBuf, PartLists), TopologyError>>,
        book: &PartitionBook,
    ) -> Result<Self, TopologyError> {
        let mut all: Vec<PartLists> = Vec::new();
        for part in parts {
            let (path, part) = part?;
            let (expected, found) = (all.first().unwrap_or(&part).columns(), part.columns());
            if found != expected {
                return Err(TopologyError::Columns { path, expected, found });
            }
            all.push(part);
        }
        Ok(Self { parts: all, bounds: book.bounds().to_vec() })
    }

    /// Takes lists that are in memory already: where each starts, and the in-neighbours. Offsets
    /// must ascend from 0 to the number of neighbours, and neighbours be nodes. The neighbours of
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
        Ok(Self { bounds: vec![0, n_nodes], parts: vec![PartLists::of(offsets, neighbours)] })
    }

    /// Builds the lists in memory.
    pub fn from_edges(
        edges: &dyn EdgeStream,
        relabelling: &Relabelling,
        direction: Direction,
    ) -> Result<Self, TopologyError> {
        let (mut offsets, mut neighbours) = (vec![0u64], Vec::new());
        let options = TopologyOptions::usual(direction);
        let input = ListInput { edges, relabelling, options: &options };
        lists::for_each(input, &mut |_, list| {
            neighbours.extend_from_slice(list);
            offsets.push(neighbours.len() as u64);
            Ok(())
        })?;
        let bounds = vec![0, relabelling.book.n_nodes()];
        let (offsets, neighbours) = (Section::Owned(offsets), Section::Owned(neighbours));
        Ok(Self { bounds, parts: vec![PartLists::of(offsets, neighbours)] })
    }

    /// Sources of the edges into `node`, ascending, and distinct unless the graph keeps repeated
    /// edges; none past the last node.
    #[must_use]
    pub fn in_neighbours(&self, node: NodeId) -> &[u32] {
        self.list(node).unwrap_or_default()
    }

    /// Returns the position in the input of each edge of [`Topology::in_neighbours`]; none where
    /// the topology was written without them.
    #[must_use]
    pub fn in_edge_ids(&self, node: NodeId) -> Option<&[EdgeId]> {
        let Some((part, edges)) = self.place(node) else {
            return self.parts.first()?.edge_ids.as_ref().map(|_| [].as_slice());
        };
        part.edge_ids.as_ref()?.as_slice().get(edges)
    }

    /// Returns the weight of each edge of [`Topology::in_neighbours`]; none where the topology was
    /// written without them.
    #[must_use]
    pub fn in_edge_weights(&self, node: NodeId) -> Option<&[f32]> {
        let Some((part, edges)) = self.place(node) else {
            return self.parts.first()?.weights.as_ref().map(|_| [].as_slice());
        };
        part.weights.as_ref()?.as_slice().get(edges)
    }

    /// Returns the number of edges into `node`; 0 past the last node.
    #[must_use]
    pub fn in_degree(&self, node: NodeId) -> u32 {
        self.in_neighbours(node).len() as u32
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn n_nodes(&self) -> u32 {
        self.bounds.last().copied().unwrap_or(0)
    }

    /// Returns the number of edges, each direction of an undirected one counted.
    #[must_use]
    pub fn n_edges(&self) -> u64 {
        self.parts.iter().map(|part| part.neighbours.as_slice().len() as u64).sum()
    }

    /// Returns the lists of consecutive nodes, in order.
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
        let (part, edges) = self.place(node)?;
        part.neighbours.as_slice().get(edges)
    }

    /// Returns the part of `node`, and where its edges lie in it.
    #[inline]
    fn place(&self, node: NodeId) -> Option<(&PartLists, Range<usize>)> {
        let part = match self.parts.len() {
            1 => 0,
            _ => self.bounds.partition_point(|&bound| bound <= node.0).checked_sub(1)?,
        };
        let (first, part) = (*self.bounds.get(part)?, self.parts.get(part)?);
        let row = (node.0 - first) as usize;
        let ends = part.offsets.as_slice().get(row..row + 2)?;
        Some((part, ends[0] as usize..ends[1] as usize))
    }
}

impl PartLists {
    fn of(offsets: Section<u64>, neighbours: Section<u32>) -> Self {
        Self { offsets, neighbours, edge_ids: None, weights: None }
    }

    fn columns(&self) -> EdgeColumns {
        EdgeColumns { ids: self.edge_ids.is_some(), weights: self.weights.is_some() }
    }
}

/// Maps the file of one partition and checks every byte of it.
fn open_part(
    path: &Path,
    book: &PartitionBook,
    part: PartId,
    uuid: [u8; 16],
) -> Result<PartLists, TopologyError> {
    let file = File::open(path).map_err(FileError::at(path, "open"))?;
    let map = Arc::new(FileMap::of(&file).map_err(FileError::at(path, "map"))?);
    let part = check(map.bytes(), book, part, uuid).and_then(|places| {
        // Maps start at pages, so that sections are aligned for their numbers.
        Ok(PartLists {
            offsets: Section::mapped(&map, places.offsets).ok_or(UNALIGNED)?,
            neighbours: Section::mapped(&map, places.neighbours).ok_or(UNALIGNED)?,
            edge_ids: mapped_column(&map, places.edge_ids)?,
            weights: mapped_column(&map, places.weights)?,
        })
    });
    part.map_err(|fault| TopologyError::File { path: path.to_owned(), fault })
}

fn mapped_column<T: Pod>(
    map: &Arc<FileMap>,
    place: Option<Range<usize>>,
) -> Result<Option<Section<T>>, FileFault> {
    place.map(|place| Section::mapped(map, place).ok_or(UNALIGNED)).transpose()
}

fn owned_part(
    file: &[u8],
    book: &PartitionBook,
    part: PartId,
    uuid: [u8; 16],
) -> Result<PartLists, FileFault> {
    let places = check(file, book, part, uuid)?;
    Ok(PartLists {
        offsets: Section::Owned(numbers(&file[places.offsets])),
        neighbours: Section::Owned(numbers(&file[places.neighbours])),
        edge_ids: places.edge_ids.map(|place| Section::Owned(numbers(&file[place]))),
        weights: places.weights.map(|place| Section::Owned(numbers(&file[place]))),
    })
}

/// Where the sections of a file lie in it.
struct Places {
    offsets: Range<usize>,
    neighbours: Range<usize>,
    edge_ids: Option<Range<usize>>,
    weights: Option<Range<usize>>,
}

/// Checks the bytes of a file; returns where its sections lie.
fn check(
    file: &[u8],
    book: &PartitionBook,
    part: PartId,
    uuid: [u8; 16],
) -> Result<Places, FileFault> {
    let check = FileCheck::new(
        FileKind::Topology,
        file,
        file.len() as u64,
        FilePartition { book, part, uuid },
    )?;
    check.check_all(file)?;
    let columns = check.columns();
    Ok(Places {
        offsets: check.section_bytes(0),
        neighbours: check.section_bytes(1),
        edge_ids: columns.ids.then(|| check.section_bytes(2)),
        weights: columns.weights.then(|| check.section_bytes(2 + usize::from(columns.ids))),
    })
}

/// A section out of bounds or not aligned in its map, which the check has ruled out.
const UNALIGNED: FileFault = FileFault::Content { section: "offsets", entry: 0 };

#[cfg(test)]
mod tests;
