//! All that a catalog holds, pair by pair.

use std::ops::ControlFlow;

use super::commits::{changed_of, commit_of};
use super::segments::prepared_of;
use super::{Catalog, DeltaRecord, SegmentRecord, keys};
use crate::error::StoreError;
use crate::row::RowIdx;

/// A key and its value, separated.
#[derive(Debug)]
pub(crate) enum Pair<'a> {
    /// Which graph and partition this is.
    Identity,
    /// The committed version.
    Version,
    /// The text of the graph's `graph.toml`.
    GraphCopy(&'a [u8]),
    /// Losses of an earlier repair, one per line.
    Losses(&'a [u8]),
    /// The id of a commit.
    Commit,
    /// The number of a put.
    PutId,
    /// The partitions that had rows of the last commit.
    Changed,
    /// The version at which the partition came into the folder.
    Joined,
    /// How many servers were to take puts of the partition, of an older release.
    Holders,
    /// The segment of a tensor, or the reason why it is unknown.
    Segment { tensor: &'a str, version: u32, record: Result<SegmentRecord, String> },
    /// The record that a segment had before rows of it were given up.
    Lost { tensor: &'a str, version: u32, record: Result<SegmentRecord, String> },
    /// A delta over the segment of a tensor, or why that cannot be read.
    Delta { tensor: &'a str, version: u32, record: Result<DeltaRecord, String> },
    /// A delta that a commit has prepared.
    Prepared { tensor: &'a str, version: u32, record: Result<DeltaRecord, String> },
    /// The segment of a tensor that may not be listed yet.
    New { tensor: &'a str, version: u32, record: Result<SegmentRecord, String> },
    /// The version that a commit has prepared; `None` where that cannot be read.
    PreparedVersion(Option<u32>),
    /// A row that was put for a version.
    Row { tensor: &'a str, version: u32, row: RowIdx, bytes: &'a [u8] },
    /// A record of a later format.
    Newer { format: u32 },
    /// A key that no catalog has.
    Unknown,
}

/// Callback that receives each key and pair of a scan, until it breaks.
pub(crate) type EachCatalogPair<'a> = dyn FnMut(&[u8], Pair<'_>) -> ControlFlow<()> + 'a;

impl Catalog {
    /// Passes every pair to `each`, ascending by key, and so reads all that the store itself has
    /// checksums for.
    pub(crate) fn scan_all(&self, each: &mut EachCatalogPair<'_>) -> Result<(), StoreError> {
        self.scan_from(b"", |key, value| Ok(each(key, Pair::of(key, value))))
    }

    /// Returns the format of a record that only a later release reads, if there is one.
    pub(crate) fn newer_format(&self) -> Result<Option<u32>, StoreError> {
        let mut newer = None;
        for prefix in [keys::SEGMENTS, keys::LOST, keys::DELTAS, keys::PREPARED_DELTAS] {
            self.scan(prefix, |key, value| {
                newer = newer.or(newer_record(key, value));
                Ok(())
            })?;
        }
        Ok(newer)
    }
}

impl<'a> Pair<'a> {
    /// Separates a key and its value.
    pub(super) fn of(key: &'a [u8], value: &'a [u8]) -> Self {
        match key {
            keys::IDENTITY => Self::Identity,
            keys::VERSION => Self::Version,
            keys::GRAPH_COPY => Self::GraphCopy(value),
            keys::LOSSES => Self::Losses(value),
            keys::HOLDERS => Self::Holders,
            keys::PREPARED => Self::PreparedVersion(prepared_of(value).map(|it| it.number)),
            keys::CHANGED if changed_of(value).is_some() => Self::Changed,
            keys::JOINED if keys::little_endian(value).is_some() => Self::Joined,
            _ => match newer_record(key, value) {
                Some(format) => Self::Newer { format },
                None => Self::of_kind(key, value).unwrap_or(Self::Unknown),
            },
        }
    }

    /// Separates a pair whose key has a kind; `None` for a key that no catalog has.
    fn of_kind(key: &'a [u8], value: &'a [u8]) -> Option<Self> {
        let kind = keys::kind_of(key)?;
        if kind == keys::COMMITS {
            return commit_of(key, value).map(|_| Self::Commit);
        }
        if kind == keys::PUTS {
            return keys::is_put_id(key).then_some(Self::PutId);
        }
        let (tensor, suffix) = keys::tensor_of(kind, key)?;
        if kind == keys::ROWS {
            let (version, row) = keys::row_of(suffix)?;
            return Some(Self::Row { tensor, version, row, bytes: value });
        }
        let version = keys::number(suffix)?;
        let segment = || SegmentRecord::from_bytes(value);
        let delta = || DeltaRecord::from_bytes(version, value);
        Some(match kind {
            keys::SEGMENTS => Self::Segment { tensor, version, record: segment() },
            keys::LOST => Self::Lost { tensor, version, record: segment() },
            keys::NEW_SEGMENTS => Self::New { tensor, version, record: segment() },
            keys::DELTAS => Self::Delta { tensor, version, record: delta() },
            keys::PREPARED_DELTAS => Self::Prepared { tensor, version, record: delta() },
            _ => return None,
        })
    }
}

/// Returns the format of a record that only a later release reads.
fn newer_record(key: &[u8], value: &[u8]) -> Option<u32> {
    match keys::kind_of(key)? {
        keys::SEGMENTS | keys::LOST => SegmentRecord::newer_format(value),
        keys::DELTAS | keys::PREPARED_DELTAS => DeltaRecord::newer_format(value),
        _ => None,
    }
}
