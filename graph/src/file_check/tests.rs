use proptest::prelude::*;

use super::*;
use crate::halo::Halo;
use crate::ids::NodeId;
use crate::topology::Direction;

const UUID: [u8; 16] = [3; 16];

fn book() -> PartitionBook {
    PartitionBook::new(vec![0, 3, 3, 90]).unwrap()
}

/// Returns a halo of partition 0 with these ids.
fn file(ids: &[u32]) -> Vec<u8> {
    let ids: Vec<NodeId> = ids.iter().map(|&id| NodeId(id)).collect();
    let (overlap, degree) = (vec![1; ids.len()], vec![7; ids.len()]);
    Halo { ids, overlap, degree }.to_bytes(&book(), PartId(0), UUID)
}

/// Checks a file in pieces of `piece_bytes`.
fn checked(file: &[u8], piece_bytes: u64) -> Result<(), FileFault> {
    let n_bytes = file.len() as u64;
    let check = FileCheck::new(
        FileKind::Halo,
        file,
        n_bytes,
        FilePartition { book: &book(), part: PartId(0), uuid: UUID },
    )?;
    let pieces = check.pieces(piece_bytes);
    let bytes = |piece: &Piece| &file[piece.bytes.start as usize..piece.bytes.end as usize];
    check.finish(pieces.map(|piece| check.sum(&piece, bytes(&piece))).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn pieces_of_any_size_say_what_the_whole_says(
        mut ids in prop::collection::vec(0u32..95, 0..60),
        is_sorted: bool,
        piece in 1u64..20,
        flip in prop::option::of(any::<prop::sample::Index>()),
    ) {
        if is_sorted {
            ids.sort_unstable();
            ids.dedup();
        }
        let mut file = file(&ids);
        if let Some(flip) = flip {
            let bit = flip.index(file.len() * 8);
            file[bit / 8] ^= 1 << (bit % 8);
        }
        let whole = checked(&file, 1 << 20);
        prop_assert_eq!(checked(&file, piece * 8), whole);
        let naive = ids.windows(2).all(|pair| pair[0] < pair[1])
            && ids.iter().all(|id| (3..90).contains(id));
        prop_assert_eq!(checked(&file, piece * 8).is_ok(), naive && flip.is_none());
    }
}

#[test]
fn the_first_wrong_number_is_named_also_where_pieces_meet() {
    let content = |entry| Err(FileFault::Content { section: "ids", entry });
    for piece_bytes in [8, 16, 24, 1 << 20] {
        assert_eq!(checked(&file(&[4, 5, 6, 6, 7]), piece_bytes), content(3));
        assert_eq!(checked(&file(&[4, 6, 5, 7, 7]), piece_bytes), content(2));
        assert_eq!(checked(&file(&[4, 5, 90, 91]), piece_bytes), content(2));
    }
}

#[test]
fn a_header_is_rebuilt_from_the_file_and_vouched_for_by_what_is_left_of_it() {
    use crate::edges::MemoryEdges;
    use crate::relabel::Relabelling;
    use crate::topology::write_topologies;

    let dir = tempfile::tempdir().unwrap();
    let edges = MemoryEdges::new(vec![[0, 1], [1, 2], [2, 0], [3, 3]]).unwrap();
    let nodes = Relabelling::identity(4);
    let path = dir.path().join("topology.csr");
    write_topologies(&edges, &nodes, Direction::Undirected, UUID, &|_| path.clone()).unwrap();
    let sound = std::fs::read(&path).unwrap();
    let rebuilt = |file: &[u8]| {
        let n_bytes = file.len() as u64;
        let check = FileCheck::of_headless_topology(
            n_bytes,
            FilePartition { book: &nodes.book, part: PartId(0), uuid: UUID },
        )?;
        let bytes = |piece: &Piece| &file[piece.bytes.start as usize..piece.bytes.end as usize];
        check.header_of(check.pieces(8).map(|piece| check.sum(&piece, bytes(&piece))))
    };
    let header = rebuilt(&sound).unwrap();
    assert_eq!(header, sound[..HEADER_BYTES]);
    let mut damaged = sound.clone();
    damaged[..12].fill(0xee);
    damaged[40..56].fill(0xee);
    damaged[HEADER_BYTES - 1] ^= 1;
    assert!(verifies(&damaged, &header), "its checksums and whose it is are left");
    for other in [12, 16, 31, 32, 36] {
        damaged[other] ^= 1;
        assert!(!verifies(&damaged, &header), "it may be another's: byte {other}");
        damaged[other] ^= 1;
    }
    damaged[60] ^= 1;
    assert!(!verifies(&damaged, &header), "its checksums are gone");
    damaged[HEADER_BYTES - 1] ^= 1;
    damaged[..50].fill(0xee);
    assert!(verifies(&damaged, &header), "its own checksum is left");
    damaged[HEADER_BYTES - 1] ^= 1;
    assert!(!verifies(&damaged, &header), "nothing is left");
    assert!(!verifies(&damaged[..100], &header));
    let mut forged = sound.clone();
    forged[HEADER_BYTES] = 1;
    assert_eq!(rebuilt(&forged), Err(FileFault::Content { section: "offsets", entry: 0 }));
    forged.copy_from_slice(&sound);
    *forged.last_mut().unwrap() = 1;
    assert!(matches!(rebuilt(&forged), Err(FileFault::Content { section: "neighbours", .. })));
    assert!(rebuilt(&sound[..sound.len() - 1]).is_err());
    assert!(rebuilt(&sound[..HEADER_BYTES]).is_err());
}

#[test]
fn without_edges_only_the_header_shows_that_there_are_no_columns() {
    use crate::edges::MemoryEdges;
    use crate::relabel::Relabelling;
    use crate::topology::write_topologies;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("topology.csr");
    let nodes = Relabelling::identity(4);
    let edges = MemoryEdges::new(Vec::new()).unwrap();
    write_topologies(&edges, &nodes, Direction::Undirected, UUID, &|_| path.clone()).unwrap();
    let rebuilt = std::fs::read(&path).unwrap();
    let mut damaged = rebuilt.clone();
    damaged[0] ^= 1;
    damaged[HEADER_BYTES - 1] ^= 1;
    assert!(verifies(&damaged, &rebuilt));
    for changed in [8, 72] {
        let mut other = damaged.clone();
        other[changed] ^= 3;
        assert!(!verifies(&other, &rebuilt), "byte {changed}: one with columns has this");
    }
}
