//! Halos: the nodes that a partition needs and does not own.
//!
//! File `halo.bin` of a partition, after the header page:
//!
//! | section | content |
//! |---|---|
//! | ids | u32 × halo nodes: global internal ids, ascending |
//! | degrees | u32 × halo nodes: in-degree in the whole graph |
//! | overlaps | u16 × halo nodes: overlap ratio R(v) |
//!
//! The file ends with its last overlap ratio. The header counts halo nodes as nodes, and holds the
//! CRC-32 of the three sections.

pub mod part_graph;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::book::PartitionBook;
use crate::file_check::{FileCheck, FileFault, FileKind, FilePartition};
use crate::file_error::FileError;
use crate::header::{EdgeColumns, Header, Identity};
use crate::ids::{NodeId, PartId};
use crate::map::{map_file, numbers};
use crate::topology::Topology;

/// The halo of one partition; the three lists run side by side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Halo {
    /// In-neighbours of owned nodes that the partition does not own, ascending.
    pub ids: Vec<NodeId>,
    /// Overlap ratio R(v): in the halos of how many partitions the node is (CaPGNN, Eq. 2).
    pub overlap: Vec<u16>,
    /// In-degree of the node in the whole graph.
    pub degree: Vec<u32>,
}

/// Why a halo could not be written or opened.
#[derive(Debug, Error)]
pub enum HaloError {
    /// Topology and partition book are of different graphs.
    #[error("the topology has {found} nodes, but the partition book has {expected}")]
    Nodes {
        /// Nodes of the book.
        expected: u32,
        /// Nodes of the topology.
        found: u32,
    },
    /// The file cannot be opened, mapped or written.
    #[error(transparent)]
    Io(#[from] FileError),
    /// The file is not sound, or belongs elsewhere.
    #[error("{}: {fault}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The fault of it.
        fault: FileFault,
    },
}

impl Halo {
    /// Reads the halo of `part` and checks every byte of its file.
    pub fn open(
        path: &Path,
        book: &PartitionBook,
        part: PartId,
        uuid: [u8; 16],
    ) -> Result<Self, HaloError> {
        let file = File::open(path).map_err(FileError::at(path, "open"))?;
        let map = map_file(&file).map_err(FileError::at(path, "map"))?;
        Self::from_bytes(&map, book, part, uuid)
            .map_err(|fault| HaloError::File { path: path.to_owned(), fault })
    }

    /// Does as [`Halo::open`], from the bytes of the file.
    pub fn from_bytes(
        file: &[u8],
        book: &PartitionBook,
        part: PartId,
        uuid: [u8; 16],
    ) -> Result<Self, FileFault> {
        let check = FileCheck::new(
            FileKind::Halo,
            file,
            file.len() as u64,
            FilePartition { book, part, uuid },
        )?;
        check.check_all(file)?;
        let section = |i| &file[check.section_bytes(i)];
        Ok(Self {
            ids: numbers(section(0)),
            degree: numbers(section(1)),
            overlap: numbers(section(2)),
        })
    }

    /// Returns the bytes of the `halo.bin` of partition `part`.
    #[must_use]
    pub fn to_bytes(&self, book: &PartitionBook, part: PartId, uuid: [u8; 16]) -> Vec<u8> {
        let sections: [&[u8]; 3] = [
            bytemuck::cast_slice(&self.ids),
            bytemuck::cast_slice(&self.degree),
            bytemuck::cast_slice(&self.overlap),
        ];
        let header = Header {
            kind: FileKind::Halo,
            identity: Identity::of(book, part, uuid),
            n_nodes: self.ids.len() as u64,
            n_edges: 0,
            columns: EdgeColumns::default(),
            section_crcs: [
                crc32fast::hash(sections[0]),
                crc32fast::hash(sections[1]),
                crc32fast::hash(sections[2]),
                0,
            ],
        };
        [header.encode().as_slice(), sections[0], sections[1], sections[2]].concat()
    }
}

/// Writes `halo.bin` of every partition to `path_of(partition)`, syncs it, and returns the number
/// of halo nodes of each.
///
/// Memory: 2 bytes and 1 bit per node, and the largest halo twice.
pub fn write_halos(
    topology: &Topology,
    book: &PartitionBook,
    uuid: [u8; 16],
    path_of: &dyn Fn(PartId) -> PathBuf,
) -> Result<Vec<u64>, HaloError> {
    let mut n_halo = Vec::new();
    find_halos(topology, book, &mut |part, halo| {
        n_halo.push(halo.ids.len() as u64);
        let (path, bytes) = (path_of(part), halo.to_bytes(book, part, uuid));
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        Ok(written.map_err(FileError::at(&path, "write"))?)
    })?;
    Ok(n_halo)
}

/// Calls `f` with the halo of every partition.
///
/// Memory: 2 bytes and 1 bit per node, and the largest halo.
pub fn find_halos(
    topology: &Topology,
    book: &PartitionBook,
    f: &mut dyn FnMut(PartId, Halo) -> Result<(), HaloError>,
) -> Result<(), HaloError> {
    let (expected, found) = (book.n_nodes(), topology.n_nodes());
    if expected != found {
        return Err(HaloError::Nodes { expected, found });
    }
    let mut overlaps = vec![0u16; expected as usize];
    let mut needed = BitSet::new(expected);
    for part in book.parts() {
        needed.fill_with_halo(topology, book, part);
        needed.for_each(|id| overlaps[id.index()] += 1);
    }
    for part in book.parts() {
        needed.fill_with_halo(topology, book, part);
        let mut halo = Halo::default();
        needed.for_each(|id| {
            halo.ids.push(id);
            halo.overlap.push(overlaps[id.index()]);
            halo.degree.push(topology.in_degree(id));
        });
        f(part, halo)?;
    }
    Ok(())
}

/// A set of nodes, one bit each.
struct BitSet {
    words: Vec<u64>,
}

impl BitSet {
    fn new(n_nodes: u32) -> Self {
        Self { words: vec![0; (n_nodes as usize).div_ceil(64)] }
    }

    fn fill_with_halo(&mut self, topology: &Topology, book: &PartitionBook, part: PartId) {
        self.words.fill(0);
        let owned = book.range(part);
        for node in owned.clone() {
            for &id in topology.in_neighbours(NodeId(node)) {
                let foreign = u64::from(!owned.contains(&id));
                self.words[id as usize / 64] |= foreign << (id % 64);
            }
        }
    }

    fn for_each(&self, mut f: impl FnMut(NodeId)) {
        for (i, &word) in self.words.iter().enumerate() {
            let mut left = word;
            while left != 0 {
                f(NodeId(i as u32 * 64 + left.trailing_zeros()));
                left &= left - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
