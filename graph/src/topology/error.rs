//! What can go wrong with topology.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::edges::EdgeError;
use crate::header::HeaderFault;

/// Why topology could not be built, written or opened.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// The edges could not be read.
    #[error(transparent)]
    Edges(#[from] EdgeError),
    /// The edges name nodes that the relabelling does not know.
    #[error("the edges name {found} nodes, but the relabelling has {expected}")]
    Nodes {
        /// Nodes of the relabelling.
        expected: usize,
        /// Nodes of the edge stream.
        found: u32,
    },
    /// A node with more edges than a list can count.
    #[error("node {node} (external id) has 2^32 - 1 in-edges or more; remove repeated edges")]
    Degree {
        /// External id.
        node: u32,
    },
    /// Two passes over the same edges saw different ones.
    #[error(
        "the edges changed while they were read; import again from files that stay as they are"
    )]
    EdgesChanged,
    /// A file cannot be opened, mapped or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A file does not start with the header that is expected.
    #[error("{}: {fault}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: HeaderFault,
    },
    /// A file is longer or shorter than its header says.
    #[error("{}: expected {expected_bytes} bytes, found {found_bytes}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes that the header asks for; u64::MAX when they cannot be counted.
        expected_bytes: u64,
        /// Bytes there are.
        found_bytes: u64,
    },
    /// The header counts other nodes than the partition owns.
    #[error("{}: lists of {found} nodes, but the partition owns {expected}", path.display())]
    NodeCount {
        /// The file.
        path: PathBuf,
        /// Nodes that the partition owns.
        expected: u64,
        /// Nodes in the file.
        found: u64,
    },
    /// A section is damaged.
    #[error(
        "{}: section `{section}` from byte {offset_bytes} is damaged: \
         its checksum is {found:08x}, expected {expected:08x}",
        path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Which section.
        section: &'static str,
        /// Where it starts.
        offset_bytes: usize,
        /// Checksum in the header.
        expected: u32,
        /// Checksum of the bytes.
        found: u32,
    },
    /// A section is whole but its numbers make no sense.
    #[error("{}: entry {entry} of section `{section}` is out of order or range", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Which section.
        section: &'static str,
        /// Position in the section.
        entry: usize,
    },
    /// Other files than one for each partition.
    #[error("expected one file for each of {expected} partitions, found {found}")]
    Files {
        /// Partitions of the book.
        expected: u16,
        /// Files given.
        found: usize,
    },
}
