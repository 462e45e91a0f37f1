//! Keys of the catalog, and changes of what is under them. Versions and rows are big-endian in
//! keys, so that they sort.

use crate::file_system::Change;
use crate::row::RowIdx;

pub(super) const IDENTITY: &[u8] = b"identity";
pub(super) const VERSION: &[u8] = b"version";
pub(super) const GRAPH_COPY: &[u8] = b"graph";
pub(super) const LOSSES: &[u8] = b"losses";
pub(super) const HOLDERS: &[u8] = b"holders";
/// The version that a commit has prepared.
pub(super) const PREPARED: &[u8] = b"prepared";
/// The partitions that had rows of the last commit.
pub(super) const CHANGED: &[u8] = b"changed";
/// The version at which the partition came into the folder.
pub(super) const JOINED: &[u8] = b"joined";

/// Prefixes of the keys of all segments, deltas, prepared deltas, released segments, and pending
/// rows.
pub(super) const SEGMENTS: &[u8] = b"segment/";
pub(super) const DELTAS: &[u8] = b"delta/";
pub(super) const PREPARED_DELTAS: &[u8] = b"prepared/";
/// Ids of commits, by version.
pub(super) const COMMITS: &[u8] = b"commit/";
/// Segments of tensors that are on their way into `graph.toml`.
pub(super) const NEW_SEGMENTS: &[u8] = b"new/";
pub(super) const LOST: &[u8] = b"lost/";
pub(super) const ROWS: &[u8] = b"overlay/";
/// Numbers of puts, by the version that each was for.
pub(super) const PUTS: &[u8] = b"put/";

/// Bytes of a row's key after its tensor's prefix: version and row.
const ROW_SUFFIX_BYTES: usize = 8;

/// Returns the prefix of all keys of a kind of a tensor; names hold no slash.
pub(super) fn of_tensor(kind: &[u8], tensor: &str) -> Vec<u8> {
    [kind, tensor.as_bytes(), b"/"].concat()
}

/// Returns the key of a kind of a tensor and version. For [`ROWS`] it is the prefix of the keys of
/// all rows that were put for the version.
pub(super) fn of_version(kind: &[u8], tensor: &str, version: u32) -> Vec<u8> {
    [kind, tensor.as_bytes(), b"/", &version.to_be_bytes()].concat()
}

/// Returns the change that records something of a kind for a tensor and version.
pub(super) fn put(kind: &[u8], tensor: &str, version: u32, record: Vec<u8>) -> Change {
    Change::Put(of_version(kind, tensor, version), record)
}

/// Returns the change that removes such a record.
pub(super) fn delete(kind: &[u8], tensor: &str, version: u32) -> Change {
    Change::Delete(of_version(kind, tensor, version))
}

/// Returns the key of a pending row.
pub(super) fn row(tensor: &str, version: u32, row: RowIdx) -> Vec<u8> {
    [ROWS, tensor.as_bytes(), b"/", &version.to_be_bytes(), &row.0.to_be_bytes()].concat()
}

/// Returns the key of the commit of `version`.
pub(super) fn commit(version: u32) -> Vec<u8> {
    [COMMITS, &version.to_be_bytes()].concat()
}

/// Returns the key of the number of a put for `version`.
pub(super) fn put_id(version: u32, id: u128) -> Vec<u8> {
    [PUTS, &version.to_be_bytes(), &id.to_be_bytes()].concat()
}

/// Returns the first key, and the key after the last, of the numbers of puts for versions before
/// `version`.
pub(super) fn put_ids_before(version: u32) -> (Vec<u8>, Vec<u8>) {
    (PUTS.to_vec(), [PUTS, &version.to_be_bytes()].concat())
}

/// Returns whether a key is that of the number of a put.
pub(super) fn is_put_id(key: &[u8]) -> bool {
    let suffix = key.strip_prefix(PUTS);
    suffix.is_some_and(|suffix| suffix.len() == size_of::<u32>() + size_of::<u128>())
}

/// Returns the version or the row at the end of a key, given what follows its prefix.
pub(super) fn number(suffix: &[u8]) -> Option<u32> {
    suffix.try_into().ok().map(u32::from_be_bytes)
}

/// Returns the number in a value of four bytes.
pub(super) fn little_endian(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_le_bytes)
}

/// Returns the version and row in the key of a pending row, given what follows its prefix.
pub(super) fn row_of(suffix: &[u8]) -> Option<(u32, RowIdx)> {
    let (version, row) = suffix.split_at_checked(size_of::<u32>())?;
    Some((number(version)?, RowIdx(number(row)?)))
}

/// Returns the kind of a key that has one: all up to the first slash, which it includes.
pub(super) fn kind_of(key: &[u8]) -> Option<&[u8]> {
    Some(&key[..=key.iter().position(|&byte| byte == b'/')?])
}

/// Returns the tensor in a key that starts with `kind`, and what follows the tensor's prefix.
pub(super) fn tensor_of<'a>(kind: &[u8], key: &'a [u8]) -> Option<(&'a str, &'a [u8])> {
    let rest = key.strip_prefix(kind)?;
    let end = rest.iter().position(|&byte| byte == b'/')?;
    Some((std::str::from_utf8(&rest[..end]).ok()?, &rest[end + 1..]))
}

/// Returns the first key, and the key after the last, of the pending rows of the versions from
/// `first` to `last`, both included.
pub(super) fn row_range(tensor: &str, first: u32, last: u32) -> (Vec<u8>, Vec<u8>) {
    let (from, mut to) = (of_version(ROWS, tensor, first), of_version(ROWS, tensor, last));
    // No suffix of a row's key sorts behind this one, which is longer than all of them.
    to.extend_from_slice(&[0xff; ROW_SUFFIX_BYTES]);
    (from, to)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(tensor: &str, version: u32, row_idx: u32) -> Vec<u8> {
        row(tensor, version, RowIdx(row_idx))
    }

    proptest! {
        #[test]
        fn keys_sort_as_versions_and_rows_do(a: (u32, u32), b: (u32, u32)) {
            let order = key("feat", a.0, a.1).cmp(&key("feat", b.0, b.1));
            prop_assert_eq!(order, a.cmp(&b));
            let suffix = &key("feat", a.0, a.1)[of_tensor(ROWS, "feat").len()..];
            prop_assert_eq!(row_of(suffix), Some((a.0, RowIdx(a.1))));
        }

        #[test]
        fn a_range_holds_its_versions_and_no_other(
            first in 0u32..5, more in 0u32..3, version in 0u32..9, row: u32,
        ) {
            let (from, to) = row_range("feat", first, first + more);
            let key = key("feat", version, row);
            let within = from <= key && key < to;
            prop_assert_eq!(within, (first..=first + more).contains(&version));
        }
    }

    #[test]
    fn the_last_row_of_the_last_version_is_within_its_range() {
        let (from, to) = row_range("feat", u32::MAX, u32::MAX);
        let last = key("feat", u32::MAX, u32::MAX);
        assert!(from <= last && last < to);
        assert!(to < key("feat0", 0, 0) && to.starts_with(&of_tensor(ROWS, "feat")));
    }

    #[test]
    fn a_key_shows_its_tensor_whatever_its_version_is() {
        let version = u32::from_be_bytes(*b"a//b");
        let of_key = of_version(SEGMENTS, "feat", version);
        let (tensor, suffix) = tensor_of(SEGMENTS, &of_key).unwrap();
        assert_eq!((tensor, number(suffix)), ("feat", Some(version)));
        assert_eq!(tensor_of(ROWS, &of_key), None);
        assert_eq!(tensor_of(SEGMENTS, b"segment/feat"), None);
        assert_eq!(tensor_of(SEGMENTS, b"segment/\xff/0000"), None);
    }

    #[test]
    fn suffixes_of_another_length_are_no_rows() {
        assert_eq!(row_of(&[]), None);
        assert_eq!(row_of(&[0; 7]), None);
        assert_eq!(row_of(&[0; 9]), None);
        assert_eq!(number(&[0; 3]), None);
    }
}
