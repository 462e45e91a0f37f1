use proptest::prelude::*;

use super::*;
use crate::halo::Halo;
use crate::ids::NodeId;

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
