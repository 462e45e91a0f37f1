//! The 4 KiB page at the head of the files of a partition that hold topology.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic of the kind of file |
//! | 8..12 | format version, u32: 2 where there are edge ids or weights, else 1 |
//! | 12..16 | partition, u32 |
//! | 16..32 | uuid of the graph |
//! | 32..36 | first node that the partition owns, u32 |
//! | 36..40 | nodes of the whole graph, u32 |
//! | 40..48 | nodes listed in this file, u64 |
//! | 48..56 | edges listed in this file, u64 |
//! | 56..72 | CRC-32 of each section in the order of the file, 4 × u32; 0 where there is none |
//! | 72..76 | bit 0: the file holds edge ids; bit 1: it holds edge weights |
//! | 76..4092 | zero |
//! | 4092..4096 | CRC-32 of bytes 0..4092, u32 |
//!
//! All numbers are little-endian. CRC-32 is that of IEEE 802.3.

use std::fmt;

use thiserror::Error;

use crate::book::PartitionBook;
use crate::ids::PartId;

/// Bytes of the header; the first section starts here.
pub const HEADER_BYTES: usize = 4096;
/// The newest format of topology and halo that this release reads. A file without edge ids and
/// weights is written as version 1, which older releases read.
pub const FORMAT_VERSION: u32 = 2;
/// Version of files with edge ids or weights.
const COLUMNS_VERSION: u32 = 2;
const CRC_AT: usize = HEADER_BYTES - 4;

/// Kind of a file, by its first 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// `topology.csr`.
    Topology,
    /// `halo.bin`.
    Halo,
}

impl FileKind {
    const fn magic(self) -> [u8; 8] {
        match self {
            Self::Topology => *b"LODETOPO",
            Self::Halo => *b"LODEHALO",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Topology => "topology",
            Self::Halo => "halo",
        }
    }
}

/// Where a file belongs. A file of another graph or partition is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uuid: [u8; 16],
    pub(crate) part: PartId,
    /// First node that the partition owns.
    pub(crate) first_node: u32,
    /// Nodes of the whole graph.
    pub(crate) graph_nodes: u32,
}

impl Identity {
    pub(crate) fn of(book: &PartitionBook, part: PartId, uuid: [u8; 16]) -> Self {
        let (first_node, graph_nodes) = (book.range(part).start, book.n_nodes());
        Self { uuid, part, first_node, graph_nodes }
    }
}

/// Columns of a topology file beside the sources of edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeColumns {
    /// Its position in the input.
    pub ids: bool,
    /// A weight.
    pub weights: bool,
}

impl fmt::Display for EdgeColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.ids, self.weights) {
            (false, false) => "nothing",
            (true, false) => "ids",
            (false, true) => "weights",
            (true, true) => "ids and weights",
        })
    }
}

impl EdgeColumns {
    fn bits(self) -> u32 {
        u32::from(self.ids) | u32::from(self.weights) << 1
    }

    fn of_bits(bits: u32) -> Option<Self> {
        (bits < 4).then_some(Self { ids: bits & 1 != 0, weights: bits & 2 != 0 })
    }
}

/// A header whose checksum and identity have been checked; its counts have not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: FileKind,
    pub(crate) identity: Identity,
    pub(crate) n_nodes: u64,
    pub(crate) n_edges: u64,
    pub(crate) columns: EdgeColumns,
    pub(crate) section_crcs: [u32; 4],
}

/// Why the first page of a file is not the header that was expected.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum HeaderFault {
    /// The file ends inside the header.
    #[error("truncated: the header has {HEADER_BYTES} bytes, {found_bytes} are there")]
    Truncated {
        /// Bytes there are.
        found_bytes: usize,
    },
    /// Another kind of file.
    #[error("not a {expected} file: its first 8 bytes are {found:02x?}")]
    Magic {
        /// Kind of file that was expected.
        expected: &'static str,
        /// First bytes.
        found: [u8; 8],
    },
    /// A damaged header.
    #[error("the header is damaged: its checksum is {found:08x}, expected {expected:08x}")]
    Checksum {
        /// Checksum that the header carries.
        expected: u32,
        /// Checksum of its bytes.
        found: u32,
    },
    /// Written by another release.
    #[error(
        "format version {found} is not known, those up to {FORMAT_VERSION} are; use the release \
         that wrote it"
    )]
    Version {
        /// Version found.
        found: u32,
    },
    /// Columns that no release knows, or that the kind of file cannot have.
    #[error("the file names edge columns {found:#x}, which are not known")]
    Columns {
        /// Bits of the header.
        found: u32,
    },
    /// A file of another graph.
    #[error("the file belongs to graph {}, expected {}", hex(found), hex(expected))]
    Graph {
        /// Uuid of the graph that was opened.
        expected: [u8; 16],
        /// Uuid in the file.
        found: [u8; 16],
    },
    /// A file of another partition.
    #[error(
        "the file belongs to partition {found_part} from node {found_first} of {found_nodes}, \
         expected partition {part} from node {first} of {nodes}"
    )]
    Partition {
        /// Partition that was opened.
        part: PartId,
        /// Its first node.
        first: u32,
        /// Nodes of the graph.
        nodes: u32,
        /// Partition in the file.
        found_part: u32,
        /// Its first node.
        found_first: u32,
        /// Nodes of its graph.
        found_nodes: u32,
    },
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(HEADER_BYTES);
        page.extend_from_slice(&self.kind.magic());
        let version = if self.columns.bits() == 0 { 1 } else { COLUMNS_VERSION };
        page.extend_from_slice(&version.to_le_bytes());
        page.extend_from_slice(&u32::from(self.identity.part.0).to_le_bytes());
        page.extend_from_slice(&self.identity.uuid);
        page.extend_from_slice(&self.identity.first_node.to_le_bytes());
        page.extend_from_slice(&self.identity.graph_nodes.to_le_bytes());
        page.extend_from_slice(&self.n_nodes.to_le_bytes());
        page.extend_from_slice(&self.n_edges.to_le_bytes());
        for crc in self.section_crcs {
            page.extend_from_slice(&crc.to_le_bytes());
        }
        page.extend_from_slice(&self.columns.bits().to_le_bytes());
        page.resize(CRC_AT, 0);
        let crc = crc32fast::hash(&page);
        page.extend_from_slice(&crc.to_le_bytes());
        page
    }

    /// Reads and checks the header of a file that should be of `kind` and belong to `expected`.
    pub(crate) fn decode(
        file: &[u8],
        kind: FileKind,
        expected: &Identity,
    ) -> Result<Self, HeaderFault> {
        let page = sound_page(file, kind)?;
        check_identity(page, expected)?;
        Ok(Self {
            kind,
            identity: *expected,
            n_nodes: u64::from_le_bytes(array(page, 40)),
            n_edges: u64::from_le_bytes(array(page, 48)),
            columns: columns(page, kind)?,
            section_crcs: [56, 60, 64, 68].map(|at| u32_at(page, at)),
        })
    }
}

/// Returns the header page, if its checksum is right and this release knows it.
pub(crate) fn sound_page(file: &[u8], kind: FileKind) -> Result<&[u8; HEADER_BYTES], HeaderFault> {
    let found_bytes = file.len();
    let page = file.first_chunk::<HEADER_BYTES>();
    let page = page.ok_or(HeaderFault::Truncated { found_bytes })?;
    let magic = array::<8>(page, 0);
    if magic != kind.magic() {
        return Err(HeaderFault::Magic { expected: kind.name(), found: magic });
    }
    let (carried, computed) = (u32_at(page, CRC_AT), crc32fast::hash(&page[..CRC_AT]));
    if carried != computed {
        return Err(HeaderFault::Checksum { expected: carried, found: computed });
    }
    if !(1..=FORMAT_VERSION).contains(&u32_at(page, 8)) {
        return Err(HeaderFault::Version { found: u32_at(page, 8) });
    }
    Ok(page)
}

/// Returns the edge columns of a sound page; those of version 1 are none, whatever else it says.
fn columns(page: &[u8; HEADER_BYTES], kind: FileKind) -> Result<EdgeColumns, HeaderFault> {
    if u32_at(page, 8) < COLUMNS_VERSION {
        return Ok(EdgeColumns::default());
    }
    let found = u32_at(page, 72);
    let columns = EdgeColumns::of_bits(found).filter(|_| kind == FileKind::Topology);
    columns.ok_or(HeaderFault::Columns { found })
}

fn check_identity(page: &[u8; HEADER_BYTES], expected: &Identity) -> Result<(), HeaderFault> {
    let found = array::<16>(page, 16);
    if found != expected.uuid {
        return Err(HeaderFault::Graph { expected: expected.uuid, found });
    }
    let found = (u32_at(page, 12), u32_at(page, 32), u32_at(page, 36));
    if found != (u32::from(expected.part.0), expected.first_node, expected.graph_nodes) {
        return Err(HeaderFault::Partition {
            part: expected.part,
            first: expected.first_node,
            nodes: expected.graph_nodes,
            found_part: found.0,
            found_first: found.1,
            found_nodes: found.2,
        });
    }
    Ok(())
}

/// Returns `N` bytes of `bytes` from `at` on, which are there: pages are of fixed size.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(crate) fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            kind: FileKind::Topology,
            identity: Identity { uuid: [7; 16], part: PartId(3), first_node: 10, graph_nodes: 99 },
            n_nodes: 12,
            n_edges: 34,
            columns: EdgeColumns::default(),
            section_crcs: [1, 2, 3, 0],
        }
    }

    fn decode(page: &[u8]) -> Result<Header, HeaderFault> {
        Header::decode(page, FileKind::Topology, &sample().identity)
    }

    #[test]
    fn reads_back_what_was_written() {
        assert_eq!(sample().encode().len(), HEADER_BYTES);
        assert_eq!(decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_an_error() {
        let page = sample().encode();
        for bit in 0..page.len() * 8 {
            let mut damaged = page.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..page.len() {
            assert_eq!(decode(&page[..len]), Err(HeaderFault::Truncated { found_bytes: len }));
        }
    }

    #[test]
    fn files_from_elsewhere_are_refused() {
        let with = |change: fn(&mut Header)| {
            let mut header = sample();
            change(&mut header);
            decode(&header.encode())
        };
        assert!(matches!(with(|h| h.kind = FileKind::Halo), Err(HeaderFault::Magic { .. })));
        assert!(matches!(with(|h| h.identity.uuid[0] = 8), Err(HeaderFault::Graph { .. })));
        assert!(matches!(with(|h| h.identity.part.0 = 4), Err(HeaderFault::Partition { .. })));
        assert!(matches!(with(|h| h.identity.first_node = 9), Err(HeaderFault::Partition { .. })));
    }

    #[test]
    fn another_version_is_refused_by_its_number() {
        let mut page = sample().encode();
        for version in [0, 3, 255] {
            forge(&mut page, 8, version);
            let found = u32::from(version);
            assert_eq!(decode(&page), Err(HeaderFault::Version { found }));
        }
    }

    /// Replaces a byte and makes the checksum match.
    fn forge(page: &mut [u8], at: usize, byte: u8) {
        page[at] = byte;
        let crc = crc32fast::hash(&page[..CRC_AT]);
        page[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    }

    #[test]
    fn files_without_edge_columns_are_of_version_1_and_others_of_version_2() {
        assert_eq!(u32_at(&sample().encode(), 8), 1);
        for bits in 1..4 {
            let columns = EdgeColumns::of_bits(bits).unwrap();
            let header = Header { columns, section_crcs: [1, 2, 3, 4], ..sample() };
            let mut page = header.encode();
            assert_eq!(u32_at(&page, 8), 2);
            assert_eq!(decode(&page), Ok(header));
            forge(&mut page, 72, 4);
            assert_eq!(decode(&page), Err(HeaderFault::Columns { found: 4 }));
        }
        let halo = Header { kind: FileKind::Halo, ..sample() };
        let mut page = halo.encode();
        forge(&mut page, 8, 2);
        let found = Header::decode(&page, FileKind::Halo, &sample().identity);
        assert_eq!(found, Err(HeaderFault::Columns { found: 0 }));
    }
}
