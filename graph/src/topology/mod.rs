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
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::edges::EdgeStream;
use crate::header::{FileKind, HEADER_BYTES, Header, Identity};
use crate::map::{FileMap, Section};
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
            let n_nodes = book.range(part).len();
            open_part(path, &Identity::of(book, part, uuid), n_nodes)
        });
        Ok(Self { parts: parts.collect::<Result<_, _>>()?, bounds: book.bounds().to_vec() })
    }

    /// Checks every byte of the file of one partition; gives its number of edges.
    pub fn check_file(
        path: &Path,
        book: &PartitionBook,
        part: PartId,
        uuid: [u8; 16],
    ) -> Result<u64, TopologyError> {
        let part_lists = open_part(path, &Identity::of(book, part, uuid), book.range(part).len())?;
        Ok(part_lists.neighbours.as_slice().len() as u64)
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

fn open_part(path: &Path, expected: &Identity, n_nodes: usize) -> Result<Part, TopologyError> {
    let path_of = || path.to_owned();
    let io = |action| move |source| TopologyError::Io { path: path.to_owned(), action, source };
    let file = File::open(path).map_err(io("open"))?;
    let map = Arc::new(FileMap::of(&file).map_err(io("map"))?);
    let header = Header::decode(map.bytes(), FileKind::Topology, expected)
        .map_err(|fault| TopologyError::Header { path: path_of(), fault })?;
    if header.n_nodes != n_nodes as u64 {
        let (expected, found) = (n_nodes as u64, header.n_nodes);
        return Err(TopologyError::NodeCount { path: path_of(), expected, found });
    }
    // At most 2³² − 1 owned nodes: this sum fits.
    let neighbours_at = HEADER_BYTES + 8 * (n_nodes + 1);
    let expected_bytes = header.n_edges.checked_mul(4);
    let expected_bytes = expected_bytes.and_then(|b| b.checked_add(neighbours_at as u64));
    let found_bytes = map.bytes().len() as u64;
    if expected_bytes != Some(found_bytes) {
        let expected_bytes = expected_bytes.unwrap_or(u64::MAX);
        return Err(TopologyError::Length { path: path_of(), expected_bytes, found_bytes });
    }
    let offsets =
        section(path, "offsets", &map, HEADER_BYTES..neighbours_at, header.section_crcs[0])?;
    let end = map.bytes().len();
    let neighbours = section(path, "neighbours", &map, neighbours_at..end, header.section_crcs[1])?;
    let part = Part { offsets, neighbours };
    check_content(&part, expected.graph_nodes)
        .map_err(|(section, entry)| TopologyError::Content { path: path_of(), section, entry })?;
    Ok(part)
}

fn section<T: bytemuck::Pod>(
    path: &Path,
    section: &'static str,
    map: &Arc<FileMap>,
    range: std::ops::Range<usize>,
    expected: u32,
) -> Result<Section<T>, TopologyError> {
    let (path, offset_bytes) = (path.to_owned(), range.start);
    let found = crc32fast::hash(map.bytes().get(range.clone()).unwrap_or_default());
    if found != expected {
        return Err(TopologyError::Checksum { path, section, offset_bytes, expected, found });
    }
    // Bounds are those of the file's length and starts are multiples of 8, so this is the rest.
    Section::mapped(map, range).ok_or(TopologyError::Content { path, section, entry: 0 })
}

/// Checks that offsets ascend from 0 to the end and that all neighbours are nodes; gives the first
/// entry that is wrong.
fn check_content(part: &Part, graph_nodes: u32) -> Result<(), (&'static str, usize)> {
    let (offsets, neighbours) = (part.offsets.as_slice(), part.neighbours.as_slice());
    if offsets.first() != Some(&0) {
        return Err(("offsets", 0));
    }
    if let Some(row) = offsets.windows(2).position(|pair| pair[1] < pair[0]) {
        return Err(("offsets", row + 1));
    }
    if offsets.last() != Some(&(neighbours.len() as u64)) {
        return Err(("offsets", offsets.len() - 1));
    }
    match neighbours.iter().position(|&id| id >= graph_nodes) {
        Some(entry) => Err(("neighbours", entry)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
