//! Where the row groups of a compressed segment lie.

use std::ops::Range;
use std::sync::Arc;

use super::LayoutError;
use crate::row::RowIdx;

/// Rows in groups of `group_rows` neighbours, each group stored as one piece of bytes, back to
/// back; the last group may hold fewer rows.
///
/// Memory: 8 bytes per group, shared by all clones.
///
/// Invariant: `starts` has one entry per group and one more, ascends strictly and begins with 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowGroups {
    group_rows: u32,
    starts: Arc<[u64]>,
}

impl RowGroups {
    /// Returns the groups of `rows` rows of `row_bytes` bytes with these stored lengths.
    ///
    /// Fails unless there is one length per group, and each is at least 1 and at most that of the
    /// group's rows.
    pub(super) fn new(
        n_rows: u32,
        row_bytes: u32,
        group_rows: u32,
        lengths: impl ExactSizeIterator<Item = u32>,
    ) -> Result<Self, LayoutError> {
        let expected = n_rows.div_ceil(group_rows);
        if lengths.len() != expected as usize {
            return Err(LayoutError::GroupCount { expected, found: lengths.len() as u64 });
        }
        let mut starts = Vec::with_capacity(lengths.len() + 1);
        let mut end = 0u64;
        starts.push(end);
        for (stored_bytes, group) in lengths.zip(0u32..) {
            let first = u64::from(group) * u64::from(group_rows);
            let n_rows = (u64::from(n_rows) - first).min(u64::from(group_rows));
            let raw_bytes = n_rows * u64::from(row_bytes);
            if stored_bytes == 0 || u64::from(stored_bytes) > raw_bytes {
                return Err(LayoutError::GroupLength { group, stored_bytes, raw_bytes });
            }
            end += u64::from(stored_bytes);
            starts.push(end);
        }
        Ok(Self { group_rows, starts: starts.into() })
    }

    /// Returns the number of groups.
    #[must_use]
    pub fn n_groups(&self) -> u32 {
        (self.starts.len() - 1) as u32
    }

    /// Returns the rows of every group but the last, at least 1.
    #[must_use]
    pub fn group_rows(&self) -> u32 {
        self.group_rows
    }

    /// Returns the group that holds `row`.
    #[must_use]
    pub fn group_of(&self, row: RowIdx) -> u32 {
        row.0 / self.group_rows
    }

    /// Returns the first row of `group`.
    #[must_use]
    pub fn first_row(&self, group: u32) -> RowIdx {
        RowIdx(group * self.group_rows)
    }

    /// Returns the bytes of `group`, counted from the first data page.
    ///
    /// # Panics
    /// When there is no such group.
    #[must_use]
    pub fn span(&self, group: u32) -> Range<u64> {
        self.starts[group as usize]..self.starts[group as usize + 1]
    }

    /// Returns the groups whose first byte is one of `bytes`, counted from the first data page.
    pub(crate) fn starting_in(&self, bytes: Range<u64>) -> Range<u32> {
        let starts = &self.starts[..self.starts.len() - 1];
        let before = |end: u64| starts.partition_point(|&start| start < end) as u32;
        before(bytes.start)..before(bytes.end)
    }

    /// Returns the groups that have any of `bytes`, at least one byte of which is a group's.
    pub(crate) fn touching(&self, bytes: Range<u64>) -> Range<u32> {
        let starting = self.starting_in(0..bytes.end);
        let first = self.starts.partition_point(|&start| start <= bytes.start) as u32 - 1;
        first..starting.end
    }

    /// Returns the bytes of the group that holds `row`.
    pub(crate) fn span_of_row(&self, row: RowIdx) -> Range<u64> {
        self.span(self.group_of(row))
    }

    /// Returns the bytes of all groups.
    pub(super) fn data_bytes(&self) -> u64 {
        self.starts[self.starts.len() - 1]
    }
}
