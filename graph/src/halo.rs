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

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::header::{FileKind, HEADER_BYTES, Header, HeaderFault, Identity};
use crate::map::FileMap;
use crate::topology::Topology;
use crate::{NodeId, PartId, PartitionBook};

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

    fn write(&self, path: &Path, identity: Identity) -> Result<(), HaloError> {
        let sections: [&[u8]; 3] = [
            bytemuck::cast_slice(&self.ids),
            bytemuck::cast_slice(&self.degree),
            bytemuck::cast_slice(&self.overlap),
        ];
        let header = Header {
            kind: FileKind::Halo,
            identity,
            n_nodes: self.ids.len() as u64,
            n_edges: 0,
            section_crcs: sections.map(crc32fast::hash),
        };
        let written = File::create(path).and_then(|mut file| {
            file.write_all(&header.encode())?;
            sections.iter().try_for_each(|section| file.write_all(section))?;
            file.sync_all()
        });
        written.map_err(|source| {
            HaloError::Io { path: path.to_owned(), action: "write", source }
        })
    }
}

/// Writes `halo.bin` of every partition to `path_of(partition)`, syncs it, and gives the number of
/// halo nodes of each.
///
/// Memory: 2 bytes and 1 bit per node, and the largest halo.
pub fn write_halos(
    topology: &Topology,
    book: &PartitionBook,
    uuid: [u8; 16],
    path_of: &dyn Fn(PartId) -> PathBuf,
) -> Result<Vec<u64>, HaloError> {
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
    let mut n_halo = Vec::new();
    for part in book.parts() {
        needed.fill_with_halo(topology, book, part);
        let mut halo = Halo::default();
        needed.for_each(|id| {
            halo.ids.push(id);
            halo.overlap.push(overlaps[id.index()]);
            halo.degree.push(topology.in_degree(id));
        });
        halo.write(&path_of(part), Identity::of(book, part, uuid))?;
        n_halo.push(halo.ids.len() as u64);
    }
    Ok(n_halo)
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
mod tests {
    use super::*;
    use crate::edges::MemoryEdges;
    use crate::relabel::Relabelling;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const UUID: [u8; 16] = [5; 16];

    struct Written {
        dir: tempfile::TempDir,
        topology: Topology,
        book: PartitionBook,
        n_halo: Vec<u64>,
    }

    impl Written {
        fn new(pairs: Vec<[u32; 2]>, assignment: &[u16], n_parts: u16) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let assignment: Vec<PartId> = assignment.iter().map(|&p| PartId(p)).collect();
            let relabelling = Relabelling::new(&assignment, n_parts).unwrap();
            let edges = MemoryEdges::new(pairs).unwrap();
            let topology = Topology::from_edges(&edges, &relabelling, false).unwrap();
            let book = relabelling.book;
            let path_of = |part: PartId| dir.path().join(part.to_string());
            let n_halo = write_halos(&topology, &book, UUID, &path_of).unwrap();
            Self { dir, topology, book, n_halo }
        }

        fn path(&self, part: u16) -> PathBuf {
            self.dir.path().join(part.to_string())
        }

        fn open(&self, part: u16) -> Result<Halo, HaloError> {
            Halo::open(&self.path(part), &self.book, PartId(part), UUID)
        }
    }

    /// Nodes 0 and 1 in partition 0, 2 in 1, 3 in 2; partition 3 is empty.
    fn small() -> Written {
        Written::new(vec![[3, 0], [3, 1], [2, 1], [3, 2], [0, 1], [1, 3]], &[0, 0, 1, 2], 4)
    }

    #[test]
    fn a_small_graph_by_hand() {
        let written = small();
        assert_eq!(written.n_halo, [2, 1, 1, 0]);
        let expected = Halo {
            ids: vec![NodeId(2), NodeId(3)],
            overlap: vec![1, 2],
            degree: vec![1, 1],
        };
        assert_eq!(written.open(0).unwrap(), expected);
        assert_eq!(written.open(2).unwrap().degree, [3]);
        assert_eq!(written.open(3).unwrap(), Halo::default());
    }

    /// Replaces a file by a new one; ext4 would sync one that is cut short and written again.
    fn replace(path: &Path, bytes: &[u8]) {
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_an_error() {
        let written = small();
        let whole = std::fs::read(written.path(0)).unwrap();
        for len in 0..=whole.len() + 1 {
            let mut bytes = whole.clone();
            bytes.resize(len, 0);
            replace(&written.path(0), &bytes);
            assert_eq!(written.open(0).is_ok(), len == whole.len(), "{len} bytes");
        }
        // Every bit of the header is flipped in the tests of the header; one of each byte here.
        for bit in (0..HEADER_BYTES * 8).step_by(9).chain(HEADER_BYTES * 8..whole.len() * 8) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            replace(&written.path(0), &bytes);
            assert!(written.open(0).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn forged_contents_are_refused() {
        let written = small();
        let identity = Identity::of(&written.book, PartId(0), UUID);
        let open = |ids: [u32; 2], overlap: [u16; 2]| {
            let ids = ids.map(NodeId).to_vec();
            let halo = Halo { ids, overlap: overlap.to_vec(), degree: vec![1, 1] };
            halo.write(&written.path(0), identity).unwrap();
            written.open(0)
        };
        assert!(open([2, 3], [1, 3]).is_ok());
        for (ids, overlap) in [
            ([3, 2], [1, 1]),
            ([2, 2], [1, 1]),
            ([1, 2], [1, 1]),
            ([2, 4], [1, 1]),
            ([2, 3], [0, 1]),
            ([2, 3], [1, 4]),
        ] {
            let error = open(ids, overlap);
            assert!(matches!(error, Err(HaloError::Content { .. })), "{ids:?} {overlap:?}");
        }
    }

    #[test]
    fn files_from_elsewhere_are_refused() {
        let written = small();
        let (path, book) = (written.path(0), &written.book);
        assert!(Halo::open(&path, book, PartId(0), [0; 16]).is_err());
        assert!(Halo::open(&path, book, PartId(1), UUID).is_err());
        let other = PartitionBook::single(9);
        let path_of = |part: PartId| written.dir.path().join(part.to_string());
        let error = write_halos(&written.topology, &other, UUID, &path_of);
        assert!(matches!(error, Err(HaloError::Nodes { expected: 9, found: 4 })));
    }

    proptest! {
        #[test]
        fn agrees_with_sets(
            ends in prop::collection::vec((0u32..90, 0u32..90), 0..200),
            assignment in prop::collection::vec(0u16..5, 90),
        ) {
            let pairs = ends.iter().map(|&(u, v)| [u, v]).collect();
            let written = Written::new(pairs, &assignment, 5);
            let (topology, book) = (&written.topology, &written.book);
            let halo_of = |part: PartId| -> BTreeSet<u32> {
                let all = book.range(part).flat_map(|v| topology.in_neighbours(NodeId(v)));
                all.copied().filter(|id| !book.range(part).contains(id)).collect()
            };
            let halos: Vec<_> = book.parts().map(halo_of).collect();
            for part in book.parts() {
                let halo = written.open(part.0).unwrap();
                prop_assert_eq!(written.n_halo[part.index()], halo.ids.len() as u64);
                let expected: Vec<NodeId> = halos[part.index()].iter().map(|&v| NodeId(v)).collect();
                for (i, &id) in halo.ids.iter().enumerate() {
                    let overlap = halos.iter().filter(|halo| halo.contains(&id.0)).count();
                    prop_assert_eq!(usize::from(halo.overlap[i]), overlap);
                    prop_assert_eq!(halo.degree[i], topology.in_degree(id));
                }
                prop_assert_eq!(halo.ids, expected);
            }
        }
    }
}
