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
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::book::PartitionBook;
use crate::file_check::{FileCheck, FileFault, FileKind, FilePartition};
use crate::file_error::FileError;
use crate::ids::{NodeId, PartId};
use crate::map::{map_file, numbers};

pub use write::{VisitHalo, find_halos, write_halos};

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
}

#[cfg(test)]
mod tests;
