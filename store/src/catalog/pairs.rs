//! All that a catalog holds, pair by pair.

use std::ops::ControlFlow;

use super::{Catalog, DeltaRecord, SegmentRecord, failed, keys};
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
    /// The number of a commit.
    Commit,
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
        let mut pair = |key: &[u8], value: &[u8]| each(key, told_apart(key, value));
        self.pairs.scan(b"", &mut pair).map_err(failed(&self.dir))
    }
}

impl Catalog {
    /// Returns the format of a record that only a later release reads, if there is one.
    pub(crate) fn newer_format(&self) -> Result<Option<u32>, StoreError> {
        let mut newer = None;
        for prefix in [keys::SEGMENTS, keys::LOST, keys::DELTAS, keys::PREPARED_DELTAS] {
            let mut each = |key: &[u8], value: &[u8]| {
                newer = newer.or(newer_record(key, value));
                ControlFlow::Continue(())
            };
            self.pairs.scan(prefix, &mut each).map_err(failed(&self.dir))?;
        }
        Ok(newer)
    }
}

fn told_apart<'a>(key: &'a [u8], value: &'a [u8]) -> Pair<'a> {
    let record = |kind| {
        let (tensor, suffix) = keys::tensor_of(kind, key)?;
        Some((tensor, keys::segment_version(suffix)?, SegmentRecord::from_bytes(value)))
    };
    let segment = || {
        let (tensor, version, record) = record(keys::SEGMENTS)?;
        Some(Pair::Segment { tensor, version, record })
    };
    let new = || {
        let (tensor, version, record) = record(keys::NEW_SEGMENTS)?;
        Some(Pair::New { tensor, version, record })
    };
    let lost = || {
        let (tensor, version, record) = record(keys::LOST)?;
        Some(Pair::Lost { tensor, version, record })
    };
    let delta_record = |kind| {
        let (tensor, suffix) = keys::tensor_of(kind, key)?;
        let version = keys::segment_version(suffix)?;
        Some((tensor, version, DeltaRecord::from_bytes(version, value)))
    };
    let delta = || {
        let (tensor, version, record) = delta_record(keys::DELTAS)?;
        Some(Pair::Delta { tensor, version, record })
    };
    let prepared = || {
        let (tensor, version, record) = delta_record(keys::PREPARED_DELTAS)?;
        Some(Pair::Prepared { tensor, version, record })
    };
    let row = || {
        let (tensor, suffix) = keys::tensor_of(keys::ROWS, key)?;
        let (version, row) = keys::row_of(suffix)?;
        Some(Pair::Row { tensor, version, row, bytes: value })
    };
    let commit = || super::commits::commit_of(key, value).map(|_| Pair::Commit);
    let newer = || newer_record(key, value).map(|format| Pair::Newer { format });
    match key {
        keys::IDENTITY => Pair::Identity,
        keys::VERSION => Pair::Version,
        keys::GRAPH_COPY => Pair::GraphCopy(value),
        keys::LOSSES => Pair::Losses(value),
        keys::HOLDERS => Pair::Holders,
        keys::PREPARED => Pair::PreparedVersion(value.try_into().ok().map(u32::from_le_bytes)),
        _ => newer()
            .or_else(segment)
            .or_else(delta)
            .or_else(prepared)
            .or_else(row)
            .or_else(lost)
            .or_else(new)
            .or_else(commit)
            .unwrap_or(Pair::Unknown),
    }
}

/// Returns the format of a record that only a later release reads.
fn newer_record(key: &[u8], value: &[u8]) -> Option<u32> {
    let is_of = |kinds: [&[u8]; 2]| kinds.into_iter().any(|kind| key.starts_with(kind));
    if is_of([keys::SEGMENTS, keys::LOST]) {
        SegmentRecord::newer_format(value)
    } else if is_of([keys::DELTAS, keys::PREPARED_DELTAS]) {
        DeltaRecord::newer_format(value)
    } else {
        None
    }
}
