//! Pairs of a catalog as they travel: lengths of key and value, u16 and u32 little-endian, then both.

/// Bytes of the two lengths.
const LENGTHS_BYTES: usize = 6;
/// More than a key and the lengths take: names of tensors are short.
pub(crate) const KEY_BYTES_MAX: usize = 256;

/// Bytes of a pair in a piece.
pub(crate) fn n_bytes(key: &[u8], value: &[u8]) -> usize {
    LENGTHS_BYTES + key.len() + value.len()
}

/// Appends a pair of a catalog, whose keys and values are short.
pub(crate) fn push(piece: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let key_bytes = u16::try_from(key.len()).expect("keys hold a tensor's name and two numbers");
    let value_bytes = u32::try_from(value.len()).expect("values are rows or records");
    piece.extend_from_slice(&key_bytes.to_le_bytes());
    piece.extend_from_slice(&value_bytes.to_le_bytes());
    piece.extend_from_slice(key);
    piece.extend_from_slice(value);
}

/// Takes the first pair off `piece`; `None` where there is no whole one.
pub(crate) fn take<'a>(piece: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (&[a, b, c, d, e, f], rest) = piece.split_first_chunk::<LENGTHS_BYTES>()?;
    let (key, rest) = rest.split_at_checked(u16::from_le_bytes([a, b]).into())?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes([c, d, e, f]) as usize)?;
    *piece = rest;
    Some((key, value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pairs_come_out_as_they_went_in_and_no_cut_piece_gives_another(
            pairs in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40),
                prop::collection::vec(any::<u8>(), 0..40)), 0..6),
            cut: prop::sample::Index,
        ) {
            let mut piece = Vec::new();
            for (key, value) in &pairs {
                let before = piece.len();
                push(&mut piece, key, value);
                prop_assert_eq!(piece.len() - before, n_bytes(key, value));
            }
            let mut left = &piece[..];
            for (key, value) in &pairs {
                prop_assert_eq!(take(&mut left), Some((&key[..], &value[..])));
            }
            prop_assert!(left.is_empty() && take(&mut left).is_none());
            let mut left = &piece[..cut.index(piece.len() + 1)];
            let whole = std::iter::from_fn(|| take(&mut left)).count();
            prop_assert!(whole <= pairs.len());
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut left = &bytes[..];
            while take(&mut left).is_some() {}
        }
    }
}
