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
mod write;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use memmap2::Mmap;

use crate::book::PartitionBook;
use crate::edges::EdgeStream;
use crate::file_check::{EdgeColumns, FileCheck, FileFault, FileKind, FilePartition};
use crate::file_error::FileError;
use crate::ids::{NodeId, PartId};
use crate::map::{Section, map_file, numbers};
use crate::relabel::Relabelling;
use lists::ListInput;

pub use error::TopologyError;
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
            match part_lists(&Source::Memory(file), book, part, uuid) {
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
        let list = self.place(node).and_then(|(part, edges)| part.neighbours.as_slice().get(edges));
        list.unwrap_or_default()
    }

    /// Returns the position in the input of each edge of [`Topology::in_neighbours`]; none where
    /// the topology was written without them.
    #[must_use]
    pub fn in_edge_ids(&self, node: NodeId) -> Option<&[EdgeId]> {
        self.column(node, |part| part.edge_ids.as_ref())
    }

    /// Returns the weight of each edge of [`Topology::in_neighbours`]; none where the topology was
    /// written without them.
    #[must_use]
    pub fn in_edge_weights(&self, node: NodeId) -> Option<&[f32]> {
        self.column(node, |part| part.weights.as_ref())
    }

    /// Returns what a column has for the edges into `node`: nothing past the last node.
    fn column<T: Pod>(
        &self,
        node: NodeId,
        of: impl Fn(&PartLists) -> Option<&Section<T>>,
    ) -> Option<&[T]> {
        match self.place(node) {
            Some((part, edges)) => of(part)?.as_slice().get(edges),
            None => of(self.parts.first()?).map(|_| [].as_slice()),
        }
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

/// Whether edges of some kind are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgePolicy {
    /// They are edges as all others.
    Keep,
    /// They are counted and left out.
    Drop,
}

/// Whether an edge can be followed against its direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Edges are as given.
    #[default]
    Directed,
    /// The reverse of every edge is an edge too.
    Undirected,
}

impl From<bool> for Direction {
    /// Returns the direction of edges that are undirected, or are not.
    fn from(undirected: bool) -> Self {
        if undirected { Self::Undirected } else { Self::Directed }
    }
}

/// How a topology is made of edges.
#[derive(Clone, Copy, Debug)]
pub struct TopologyOptions<'a> {
    /// Whether the reverse of every edge that is no self loop is added.
    pub direction: Direction,
    /// Edges from a node to itself; kept by default.
    pub self_loops: EdgePolicy,
    /// Directed edges with the same ends as an earlier one; dropped by default. Where they are kept
    /// a node has the same neighbour several times, and sampling may draw each.
    pub duplicates: EdgePolicy,
    /// Whether files hold the number of each edge in the stream; that of the first one where
    /// repeated edges are dropped.
    pub edge_ids: bool,
    /// A finite weight for each edge of the stream, in its order, for files to hold.
    pub weights: Option<&'a [f32]>,
    /// Bytes of edges that are gathered in one pass over the stream; 256 MiB by default.
    pub window_bytes: usize,
}

impl Default for TopologyOptions<'_> {
    fn default() -> Self {
        Self {
            direction: Direction::Directed,
            self_loops: EdgePolicy::Keep,
            duplicates: EdgePolicy::Drop,
            edge_ids: false,
            weights: None,
            window_bytes: 256 << 20,
        }
    }
}

impl TopologyOptions<'_> {
    /// Returns the usual ones, for edges of one direction or of both.
    #[must_use]
    pub fn usual(direction: Direction) -> Self {
        Self { direction, ..Self::default() }
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
    let map = Arc::new(map_file(&file).map_err(FileError::at(path, "map"))?);
    part_lists(&Source::Map(map), book, part, uuid)
        .map_err(|fault| TopologyError::File { path: path.to_owned(), fault })
}

/// The bytes of a file.
enum Source {
    Map(Arc<Mmap>),
    Memory(Vec<u8>),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Map(map) => map,
            Self::Memory(file) => file,
        }
    }

    fn section<T: Pod>(&self, place: Range<usize>) -> Result<Section<T>, FileFault> {
        match self {
            // Maps start at pages, so that sections are aligned for their numbers.
            Self::Map(map) => Section::mapped(map, place).ok_or(UNALIGNED),
            Self::Memory(file) => Ok(Section::Owned(numbers(&file[place]))),
        }
    }
}

/// Returns the lists in a file, once every byte of it is checked.
fn part_lists(
    source: &Source,
    book: &PartitionBook,
    part: PartId,
    uuid: [u8; 16],
) -> Result<PartLists, FileFault> {
    let (file, partition) = (source.bytes(), FilePartition { book, part, uuid });
    let check = FileCheck::new(FileKind::Topology, file, file.len() as u64, partition)?;
    check.check_all(file)?;
    let EdgeColumns { ids, weights } = check.columns();
    let weights_at = 2 + usize::from(ids);
    Ok(PartLists {
        offsets: source.section(check.section_bytes(0))?,
        neighbours: source.section(check.section_bytes(1))?,
        edge_ids: ids.then(|| source.section(check.section_bytes(2))).transpose()?,
        weights: weights.then(|| source.section(check.section_bytes(weights_at))).transpose()?,
    })
}

/// A section out of bounds or not aligned in its map, which the check has ruled out.
const UNALIGNED: FileFault = FileFault::Content { section: "offsets", entry: 0 };

#[cfg(test)]
mod tests;
