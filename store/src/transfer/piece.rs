//! Pending rows as they travel, in stretches one after the other, little-endian. A stretch has the
//! position of the tensor u16, version u32, number of rows u32, their numbers u32 each, then their
//! bytes.

/// Bytes before the numbers of the rows.
const HEAD_BYTES: usize = 10;

/// Rows of a tensor that were put for a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowStretch<'a> {
    /// Position of the tensor in the graph's description.
    pub(crate) tensor: u16,
    pub(crate) version: u32,
    pub(crate) rows: Vec<u32>,
    pub(crate) bytes: &'a [u8],
}

/// Returns the number of rows whose stretch takes `n_bytes` at most.
pub(crate) fn rows_within(n_bytes: usize, row_bytes: usize) -> usize {
    n_bytes.saturating_sub(HEAD_BYTES) / (size_of::<u32>() + row_bytes)
}

/// Appends rows of a tensor, by position, and version.
pub(crate) fn push(piece: &mut Vec<u8>, tensor: u16, version: u32, rows: &[u32], bytes: &[u8]) {
    let n_rows = u32::try_from(rows.len()).expect("a partition has fewer rows");
    piece.extend_from_slice(&tensor.to_le_bytes());
    piece.extend_from_slice(&version.to_le_bytes());
    piece.extend_from_slice(&n_rows.to_le_bytes());
    piece.extend(rows.iter().flat_map(|row| row.to_le_bytes()));
    piece.extend_from_slice(bytes);
}

/// Takes the first stretch off `piece`; `None` where there is no whole one, or `row_bytes` does not
/// know its tensor.
pub(crate) fn take<'a>(
    piece: &mut &'a [u8],
    row_bytes: impl Fn(u16) -> Option<usize>,
) -> Option<RowStretch<'a>> {
    let (&[a, b, version @ .., c, d, e, f], rest) = piece.split_first_chunk::<HEAD_BYTES>()?;
    let tensor = u16::from_le_bytes([a, b]);
    let n_rows = u32::from_le_bytes([c, d, e, f]) as usize;
    let (rows, rest) = rest.split_at_checked(n_rows.checked_mul(size_of::<u32>())?)?;
    let (bytes, rest) = rest.split_at_checked(n_rows.checked_mul(row_bytes(tensor)?)?)?;
    let rows = rows.as_chunks().0.iter().map(|row| u32::from_le_bytes(*row)).collect();
    *piece = rest;
    Some(RowStretch { tensor, version: u32::from_le_bytes(version), rows, bytes })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the bytes of a row of each tensor.
    fn widths(tensor: u16) -> Option<usize> {
        [1, 3].get(usize::from(tensor)).copied()
    }

    proptest! {
        #[test]
        fn stretches_come_out_as_they_went_in_and_no_cut_piece_makes_another(
            stretches in prop::collection::vec(
                (0u16..2, any::<u32>(), prop::collection::vec(any::<u32>(), 0..9)), 0..6),
            cut: prop::sample::Index,
        ) {
            let mut piece = Vec::new();
            for (tensor, version, rows) in &stretches {
                let (before, width) = (piece.len(), widths(*tensor).unwrap());
                push(&mut piece, *tensor, *version, rows, &vec![7; rows.len() * width]);
                prop_assert_eq!(rows_within(piece.len() - before, width), rows.len());
            }
            let mut left = &piece[..];
            for (tensor, version, rows) in &stretches {
                let found = take(&mut left, widths).unwrap();
                prop_assert_eq!((&found.tensor, &found.version, &found.rows), (tensor, version, rows));
                prop_assert_eq!(found.bytes.len(), rows.len() * widths(*tensor).unwrap());
            }
            prop_assert!(left.is_empty() && take(&mut left, widths).is_none());
            let mut left = &piece[..cut.index(piece.len() + 1)];
            let whole = std::iter::from_fn(|| take(&mut left, widths)).count();
            prop_assert!(whole <= stretches.len());
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut left = &bytes[..];
            while take(&mut left, widths).is_some() {}
        }
    }
}
