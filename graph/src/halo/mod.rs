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

mod write;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::header::{FileKind, HEADER_BYTES, Header, HeaderFault, Identity};
use crate::map::FileMap;
use crate::{NodeId, PartId, PartitionBook};

pub use write::write_halos;

/// Bytes of one halo node in a file.
const NODE_BYTES: usize = 4 + 4 + 2;

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
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The file does not start with the header that is expected.
    #[error("{}: {fault}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: HeaderFault,
    },
    /// The file is longer or shorter than its header says.
    #[error("{}: expected {expected_bytes} bytes, found {found_bytes}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes that the header asks for; u64::MAX when they cannot be counted.
        expected_bytes: u64,
        /// Bytes there are.
        found_bytes: u64,
    },
    /// A section is damaged.
    #[error(
        "{}: section `{section}` is damaged: its checksum is {found:08x}, expected {expected:08x}",
        path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Which section.
        section: &'static str,
        /// Checksum in the header.
        expected: u32,
        /// Checksum of the bytes.
        found: u32,
    },
    /// The file is whole but its numbers make no sense.
    #[error("{}: halo node {entry} is out of order or owned, or R is out of range", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Position in the halo.
        entry: usize,
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
        let io = |action| move |e| HaloError::Io { path: path.to_owned(), action, source: e };
        let file = File::open(path).map_err(io("open"))?;
        let map = FileMap::of(&file).map_err(io("map"))?;
        let bytes = map.bytes();
        let header = Header::decode(bytes, FileKind::Halo, &Identity::of(book, part, uuid))
            .map_err(|fault| HaloError::Header { path: path.to_owned(), fault })?;
        let n_nodes = check_length(path, bytes.len(), header.n_nodes)?;
        let (ids, rest) = bytes[HEADER_BYTES..].split_at(4 * n_nodes);
        let (degrees, overlaps) = rest.split_at(4 * n_nodes);
        for ((section, bytes), expected) in
            [("ids", ids), ("degrees", degrees), ("overlaps", overlaps)]
                .into_iter()
                .zip(header.section_crcs)
        {
            let (path, found) = (path.to_owned(), crc32fast::hash(bytes));
            if found != expected {
                return Err(HaloError::Checksum { path, section, expected, found });
            }
        }
        // Maps start at pages, so that each section is aligned for its numbers.
        let halo = Self {
            ids: bytemuck::cast_slice(ids).to_vec(),
            overlap: bytemuck::cast_slice(overlaps).to_vec(),
            degree: bytemuck::cast_slice(degrees).to_vec(),
        };
        match halo.first_fault(book, part) {
            Some(entry) => Err(HaloError::Content { path: path.to_owned(), entry }),
            None => Ok(halo),
        }
    }

    /// The first node that is out of order, owned, unknown, or in an impossible number of halos.
    fn first_fault(&self, book: &PartitionBook, part: PartId) -> Option<usize> {
        let (owned, n_parts) = (book.range(part), book.n_parts());
        (0..self.ids.len()).find(|&i| {
            let (id, overlap) = (self.ids[i], self.overlap[i]);
            let ascending = i == 0 || self.ids[i - 1] < id;
            let foreign = id.0 < book.n_nodes() && !owned.contains(&id.0);
            !ascending || !foreign || overlap == 0 || overlap >= n_parts
        })
    }
}

/// The number of halo nodes, once the file is known to hold exactly so many.
fn check_length(path: &Path, found_bytes: usize, n_nodes: u64) -> Result<usize, HaloError> {
    let expected_bytes = n_nodes
        .checked_mul(NODE_BYTES as u64)
        .and_then(|bytes| bytes.checked_add(HEADER_BYTES as u64));
    if expected_bytes != Some(found_bytes as u64) {
        return Err(HaloError::Length {
            path: path.to_owned(),
            expected_bytes: expected_bytes.unwrap_or(u64::MAX),
            found_bytes: found_bytes as u64,
        });
    }
    Ok((found_bytes - HEADER_BYTES) / NODE_BYTES)
}

#[cfg(test)]
mod tests;
