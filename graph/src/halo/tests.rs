use super::*;
use crate::edges::MemoryEdges;
use crate::header::HEADER_BYTES;
use crate::relabel::Relabelling;
use crate::topology::{Direction, Topology};
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
        let topology = Topology::from_edges(&edges, &relabelling, Direction::Directed).unwrap();
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

/// Writes nodes 0 and 1 in partition 0, 2 in 1, 3 in 2; partition 3 is empty.
fn small() -> Written {
    Written::new(vec![[3, 0], [3, 1], [2, 1], [3, 2], [0, 1], [1, 3]], &[0, 0, 1, 2], 4)
}

#[test]
fn a_small_graph_by_hand() {
    let written = small();
    assert_eq!(written.n_halo, [2, 1, 1, 0]);
    let expected =
        Halo { ids: vec![NodeId(2), NodeId(3)], overlap: vec![1, 2], degree: vec![1, 1] };
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
    let open = |ids: [u32; 2], overlap: [u16; 2]| {
        let ids = ids.map(NodeId).to_vec();
        let halo = Halo { ids, overlap: overlap.to_vec(), degree: vec![1, 1] };
        let bytes = halo.to_bytes(&written.book, PartId(0), UUID);
        std::fs::write(written.path(0), bytes).unwrap();
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
        assert!(
            matches!(error, Err(HaloError::File { fault: FileFault::Content { .. }, .. })),
            "{ids:?} {overlap:?}"
        );
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
    // Few cases: each syncs five files.
    #![proptest_config(ProptestConfig::with_cases(32))]
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
