//! Everything that can go wrong with a schedule.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::batch::BatchError;
use crate::file_error::FileError;
use crate::header::hex;
use crate::ids::NodeId;

/// Why a schedule could not be written, opened or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A number of the specification that makes no sense.
    #[error("the number of {name} must be from 1 to {most}, found {found}")]
    Spec {
        /// Which number.
        name: &'static str,
        /// Largest that is allowed.
        most: u64,
        /// Number found.
        found: u64,
    },
    /// A training root that is no node.
    #[error("training root {position} is node {found}, but the graph has {n_nodes} nodes")]
    Root {
        /// Position in the list of roots.
        position: usize,
        /// The root.
        found: NodeId,
        /// Nodes of the graph.
        n_nodes: u32,
    },
    /// The book and the topology belong to different graphs.
    #[error("the partition book has {book} nodes, the topology {topology}")]
    Book {
        /// Nodes of the book.
        book: u32,
        /// Nodes of the topology.
        topology: u32,
    },
    /// A batch that no block can hold.
    #[error(
        "batch {batch} of worker {worker} in epoch {epoch} takes {found_bytes} bytes or more, over \
         the {most_bytes} of a block; use smaller batches or fan-outs"
    )]
    TooLarge {
        /// Epoch of the batch.
        epoch: u32,
        /// Worker of the batch.
        worker: u32,
        /// Batch within worker and epoch.
        batch: u32,
        /// Bytes of a block at most.
        most_bytes: u64,
        /// Bytes that the batch takes, or the blocks of it that were counted.
        found_bytes: u64,
    },
    /// The system failed.
    #[error(transparent)]
    Io(#[from] FileError),
    /// Another process, or thread, writes the same schedule.
    #[error("{}: is being written already; wait for that to end, or give another name", path.display())]
    Busy {
        /// The unfinished file.
        path: PathBuf,
    },
    /// Not a schedule, or one of another release.
    #[error("{}: {what}: expected {expected}, found {found}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Which part of the file.
        what: &'static str,
        /// The expected value.
        expected: String,
        /// The found value.
        found: String,
    },
    /// Bytes that changed since they were written.
    #[error(
        "{}: the {what} at byte {offset} is damaged: its checksum is {found:08x}, expected \
         {expected:08x}; write the schedule again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which part of the file.
        what: &'static str,
        /// Where the part starts.
        offset: u64,
        /// Checksum in the file.
        expected: u32,
        /// Checksum of the bytes.
        found: u32,
    },
    /// A block that does not hold the batch that it should.
    #[error(
        "{}: the block at byte {offset} (epoch {epoch}, worker {worker}, batch {batch}) {fault}",
        path.display()
    )]
    Block {
        /// The file.
        path: PathBuf,
        /// Where the block starts.
        offset: u64,
        /// Epoch of the batch that should be there.
        epoch: u32,
        /// Worker of the batch that should be there.
        worker: u32,
        /// Batch that should be there.
        batch: u32,
        /// The fault.
        fault: BlockFault,
    },
    /// The schedule has no such batch.
    #[error("there is no batch {batch} of worker {worker} in epoch {epoch}")]
    NoSuchBatch {
        /// Epoch asked for.
        epoch: u32,
        /// Worker asked for.
        worker: u32,
        /// Batch asked for.
        batch: u32,
    },
    /// The schedule was made for another graph.
    #[error(
        "{}: made for graph {} of {found_nodes} nodes, not for {} of {expected_nodes} nodes",
        path.display(), hex(found), hex(expected)
    )]
    Graph {
        /// The file.
        path: PathBuf,
        /// Identity of the graph in use.
        expected: [u8; 16],
        /// Its nodes.
        expected_nodes: u32,
        /// Identity of the graph in the schedule.
        found: [u8; 16],
        /// Its nodes.
        found_nodes: u32,
    },
}

impl ScheduleError {
    /// Returns the error of a file that has something else than a schedule of this release.
    pub(super) fn format(
        path: &Path,
        what: &'static str,
        expected: impl Into<String>,
        found: impl Display,
    ) -> Self {
        let (path, expected, found) = (path.to_owned(), expected.into(), found.to_string());
        Self::Format { path, what, expected, found }
    }

    /// Checks that the checksum of a part of a file is the one that the file has of it.
    pub(super) fn check_crc(
        path: &Path,
        what: &'static str,
        offset: u64,
        expected: u32,
        found: u32,
    ) -> Result<(), Self> {
        if expected == found {
            return Ok(());
        }
        Err(Self::Damaged { path: path.to_owned(), what, offset, expected, found })
    }
}

/// The fault of one block.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BlockFault {
    /// Changed since it was written.
    #[error("is damaged: its checksum is {found:08x}, expected {expected:08x}")]
    Checksum {
        /// Checksum in the block.
        expected: u32,
        /// Checksum of its bytes.
        found: u32,
    },
    /// The block of another batch.
    #[error("holds batch {found:?} (epoch, worker, batch)")]
    Place {
        /// Epoch, worker and batch found.
        found: (u32, u32, u32),
    },
    /// Lengths that contradict each other.
    #[error("says that it holds {promised} {what}, but there are {found}")]
    Length {
        /// The counted things.
        what: &'static str,
        /// Count promised.
        promised: u64,
        /// Count found.
        found: u64,
    },
    /// Bytes that do not decompress.
    #[error("does not decompress: {0}")]
    Codec(String),
    /// A batch that breaks an invariant.
    #[error("holds no batch: {0}")]
    Batch(#[from] BatchError),
}
