//! Where the rows of a segment lie.

use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

use crate::limits::{MAX_GROUP_BYTES, MAX_ROW_BYTES, PAGE_BYTES};
use crate::row::RowIdx;

/// Byte of the file at which the first row starts: one page of header is before it.
pub const DATA_OFFSET: u64 = PAGE_BYTES;

/// The shape of a segment: rows, or compressed groups of rows, packed back to back from
/// [`DATA_OFFSET`], not padded to pages.
///
/// Pages are counted from the first row: page `k` holds the file's bytes from
/// `DATA_OFFSET + k * PAGE_BYTES`. The last page is padded with zeros.
///
/// Invariant: every byte position of the file fits a `u64`, every row fits [`MAX_ROW_BYTES`], and
/// every group fits [`MAX_GROUP_BYTES`] or is one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    n_rows: u32,
    row_bytes: u32,
    /// `None` where rows lie as they are.
    groups: Option<RowGroups>,
    /// Whether a list of its rows follows the tables, as in a delta.
    is_listed: bool,
}

/// Lengths of rows or groups that no segment can have.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LayoutError {
    /// Rows of no bytes or too many.
    #[error("a row must have 1 to {MAX_ROW_BYTES} bytes, found {found_bytes}")]
    Row {
        /// Bytes of one row.
        found_bytes: u64,
    },
    /// Groups of no rows or too many.
    #[error(
        "a row group must have 1 row, or more in at most {MAX_GROUP_BYTES} bytes; \
         found {group_rows} rows of {row_bytes} bytes"
    )]
    Group {
        /// Rows of a group.
        group_rows: u32,
        /// Bytes of one row.
        row_bytes: u32,
    },
    /// Not one length per group.
    #[error("expected {expected} row groups, found {found}")]
    GroupCount {
        /// Groups that the rows make.
        expected: u32,
        /// Lengths given.
        found: u64,
    },
    /// A group of no bytes, or of more than its rows.
    #[error("row group {group} has {stored_bytes} bytes, expected 1 to {raw_bytes}")]
    GroupLength {
        /// The group.
        group: u32,
        /// Its length in the list.
        stored_bytes: u32,
        /// Bytes of its rows.
        raw_bytes: u64,
    },
}

impl SegmentLayout {
    /// Returns the layout of `n_rows` rows of `row_bytes` bytes each, stored as they are.
    pub fn new(n_rows: u32, row_bytes: usize) -> Result<Self, LayoutError> {
        match u32::try_from(row_bytes) {
            Ok(row_bytes) if (1..=MAX_ROW_BYTES as u32).contains(&row_bytes) => {
                Ok(Self { n_rows, row_bytes, groups: None, is_listed: false })
            }
            _ => Err(LayoutError::Row { found_bytes: row_bytes as u64 }),
        }
    }

    /// Returns the layout of the same rows in groups of `group_rows`, stored in these many bytes
    /// each.
    pub fn grouped(
        n_rows: u32,
        row_bytes: usize,
        group_rows: u32,
        lengths: impl ExactSizeIterator<Item = u32>,
    ) -> Result<Self, LayoutError> {
        let packed = Self::new(n_rows, row_bytes)?;
        check_group_rows(packed.row_bytes, group_rows)?;
        let groups = RowGroups::new(n_rows, packed.row_bytes, group_rows, lengths)?;
        Ok(Self { groups: Some(groups), ..packed })
    }

    /// Returns the same rows, with a list of which rows they are behind the tables.
    #[must_use]
    pub(crate) fn listed(self, is_listed: bool) -> Self {
        Self { is_listed, ..self }
    }

    /// Returns the number of rows; 0 for an empty partition.
    #[must_use]
    pub const fn n_rows(&self) -> u32 {
        self.n_rows
    }

    /// Returns the bytes of one row.
    #[must_use]
    pub const fn row_bytes(&self) -> usize {
        self.row_bytes as usize
    }

    /// Returns the row groups; `None` where rows lie as they are.
    #[must_use]
    pub const fn groups(&self) -> Option<&RowGroups> {
        self.groups.as_ref()
    }

    /// Returns the bytes of all rows as they are handed out: not compressed, without padding.
    #[must_use]
    pub const fn raw_bytes(&self) -> u64 {
        self.n_rows as u64 * self.row_bytes as u64
    }

    /// Returns the bytes of all rows as they are stored, without padding.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.groups.as_ref().map_or(self.raw_bytes(), RowGroups::data_bytes)
    }

    /// Returns the number of pages that hold rows.
    #[must_use]
    pub fn n_pages(&self) -> u64 {
        self.data_bytes().div_ceil(PAGE_BYTES)
    }

    /// Returns the bytes that must be read for `row`, counted from the first data page. These are
    /// the bytes of the row, or of the group that it is in. Returns `None` past the last row.
    #[must_use]
    pub fn row_range(&self, row: RowIdx) -> Option<Range<u64>> {
        if row.0 >= self.n_rows {
            return None;
        }
        Some(match &self.groups {
            None => self.packed_span(row),
            Some(groups) => groups.span_of_row(row),
        })
    }

    /// Returns the pages that must be read for `row`; `None` past the last row.
    #[must_use]
    pub fn row_pages(&self, row: RowIdx) -> Option<Range<u64>> {
        let bytes = self.row_range(row)?;
        Some(bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES))
    }

    /// Returns the rows that cannot be read without one of `pages`.
    pub(crate) fn rows_on(&self, pages: &Range<u64>) -> Range<u32> {
        let bytes = pages.start * PAGE_BYTES..(pages.end * PAGE_BYTES).min(self.data_bytes());
        if bytes.is_empty() {
            return 0..0;
        }
        match &self.groups {
            None => {
                let row_bytes = u64::from(self.row_bytes);
                (bytes.start / row_bytes) as u32..bytes.end.div_ceil(row_bytes) as u32
            }
            Some(groups) => {
                let groups_on = groups.touching(bytes);
                let end = u64::from(groups_on.end) * u64::from(groups.group_rows());
                groups.first_row(groups_on.start).0..end.min(u64::from(self.n_rows)) as u32
            }
        }
    }

    /// Returns the bytes of a row of a segment without groups; `row` may be any number.
    #[inline]
    pub(crate) const fn packed_span(&self, row: RowIdx) -> Range<u64> {
        let start = row.0 as u64 * self.row_bytes as u64;
        start..start + self.row_bytes as u64
    }

    /// Returns the byte of the file at which the page checksum table starts.
    #[must_use]
    pub fn table_offset(&self) -> u64 {
        self.sections().table_offset()
    }

    /// Returns the length of the whole file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.sections().file_bytes()
    }

    /// Offsets of everything in the file.
    pub(crate) fn sections(&self) -> Sections {
        let n_groups = self.groups.as_ref().map_or(0, RowGroups::n_groups);
        let n_listed = if self.is_listed { self.n_rows } else { 0 };
        Sections { data_bytes: self.data_bytes(), n_groups, n_listed }
    }

    /// Returns the bytes of the rows of `group` before they were compressed.
    pub(crate) fn group_raw_bytes(&self, groups: &RowGroups, group: u32) -> usize {
        let n_rows = (self.n_rows - groups.first_row(group).0).min(groups.group_rows());
        n_rows as usize * self.row_bytes()
    }
}

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
    fn new(
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
    fn data_bytes(&self) -> u64 {
        self.starts[self.starts.len() - 1]
    }
}

/// The three lengths from which every offset in a segment file follows.
///
/// ```text
/// offset                  bytes               content
/// 0                       4096                header
/// 4096                    4096 x n_pages      data pages
/// table_offset            padded to pages     page table: CRC-32 of each data page
/// index_offset            padded to pages     group index: stored bytes of each row group
/// list_offset             padded to pages     row list of a delta: the row of each of its rows
/// footer_offset           4096                footer
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sections {
    /// Bytes of all data, without the padding of the last page.
    pub(crate) data_bytes: u64,
    /// Row groups; 0 in a segment without a group index.
    pub(crate) n_groups: u32,
    /// Entries of the row list; 0 in a segment that has every row.
    pub(crate) n_listed: u32,
}

impl Sections {
    pub(crate) const fn n_pages(&self) -> u64 {
        self.data_bytes.div_ceil(PAGE_BYTES)
    }

    pub(crate) const fn table_offset(&self) -> u64 {
        DATA_OFFSET + self.n_pages() * PAGE_BYTES
    }

    pub(crate) const fn index_offset(&self) -> u64 {
        self.table_offset() + (self.n_pages() * 4).next_multiple_of(PAGE_BYTES)
    }

    pub(crate) const fn list_offset(&self) -> u64 {
        self.index_offset() + (self.n_groups as u64 * 4).next_multiple_of(PAGE_BYTES)
    }

    pub(crate) const fn footer_offset(&self) -> u64 {
        self.list_offset() + (self.n_listed as u64 * 4).next_multiple_of(PAGE_BYTES)
    }

    /// Returns the bytes of page table, group index and row list together.
    pub(crate) const fn tables_bytes(&self) -> u64 {
        self.footer_offset() - self.table_offset()
    }

    pub(crate) const fn file_bytes(&self) -> u64 {
        self.footer_offset() + PAGE_BYTES
    }
}

/// Checks that groups of this many rows are possible.
pub(crate) fn check_group_rows(row_bytes: u32, group_rows: u32) -> Result<(), LayoutError> {
    let group_bytes = u64::from(group_rows) * u64::from(row_bytes);
    if group_rows == 1 || group_rows > 1 && group_bytes <= MAX_GROUP_BYTES as u64 {
        return Ok(());
    }
    Err(LayoutError::Group { group_rows, row_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_cross_pages_but_never_touch_more_than_needed() {
        let layout = SegmentLayout::new(100, 400).unwrap();
        assert_eq!(layout.n_pages(), 10);
        assert_eq!(layout.row_pages(RowIdx(9)), Some(0..1));
        assert_eq!(layout.row_pages(RowIdx(10)), Some(0..2));
        assert_eq!(layout.row_pages(RowIdx(11)), Some(1..2));
        assert_eq!(layout.row_pages(RowIdx(100)), None);
        assert_eq!(layout.file_bytes(), (1 + 10 + 1 + 1) * PAGE_BYTES);
    }

    #[test]
    fn rows_of_a_group_are_where_the_group_is() {
        let lengths = [4000, 200, 7];
        let layout = SegmentLayout::grouped(25, 400, 10, lengths.into_iter()).unwrap();
        assert_eq!(layout.row_range(RowIdx(9)), Some(0..4000));
        assert_eq!(layout.row_range(RowIdx(10)), Some(4000..4200));
        assert_eq!(layout.row_pages(RowIdx(19)), Some(0..2));
        assert_eq!(layout.row_range(RowIdx(24)), Some(4200..4207));
        assert_eq!(layout.row_range(RowIdx(25)), None);
        assert_eq!((layout.data_bytes(), layout.raw_bytes()), (4207, 10_000));
        let groups = layout.groups().unwrap();
        let raw = |group| layout.group_raw_bytes(groups, group);
        assert_eq!([raw(0), raw(1), raw(2)], [4000, 4000, 2000]);
        // Header, two pages of rows, page table, group index, footer.
        assert_eq!(layout.file_bytes(), 6 * PAGE_BYTES);
    }

    #[test]
    fn pages_name_the_rows_that_need_them() {
        let packed = SegmentLayout::new(25, 400).unwrap();
        assert_eq!([packed.rows_on(&(0..1)), packed.rows_on(&(1..2))], [0..11, 10..21]);
        assert_eq!([packed.rows_on(&(2..3)), packed.rows_on(&(2..9))], [20..25, 20..25]);
        assert_eq!(packed.rows_on(&(3..4)), 0..0);
        let lengths = [4000, 200, 7];
        let grouped = SegmentLayout::grouped(25, 400, 10, lengths.into_iter()).unwrap();
        assert_eq!([grouped.rows_on(&(0..1)), grouped.rows_on(&(1..2))], [0..20, 10..25]);
        for layout in [packed, grouped] {
            for page in 0..layout.n_pages() {
                let naive =
                    (0..25).filter(|&row| layout.row_pages(RowIdx(row)).unwrap().contains(&page));
                let rows = layout.rows_on(&(page..page + 1));
                assert_eq!(rows.collect::<Vec<_>>(), naive.collect::<Vec<_>>(), "page {page}");
            }
        }
    }

    #[test]
    fn group_lengths_that_cannot_be_are_refused() {
        let refused = |lengths: &[u32]| {
            SegmentLayout::grouped(25, 400, 10, lengths.iter().copied()).unwrap_err()
        };
        assert_eq!(refused(&[1, 1]), LayoutError::GroupCount { expected: 3, found: 2 });
        for (group, lengths) in [(0, [0, 1, 1]), (1, [1, 4001, 1]), (2, [1, 1, 2001])] {
            let error = refused(&lengths);
            let place =
                matches!(error, LayoutError::GroupLength { group: found, .. } if found == group);
            assert!(place, "{error}");
        }
        for group_rows in [0, MAX_GROUP_BYTES as u32 / 400 + 1, u32::MAX] {
            let error = SegmentLayout::grouped(0, 400, group_rows, [].into_iter()).unwrap_err();
            assert_eq!(error, LayoutError::Group { group_rows, row_bytes: 400 });
        }
        assert!(SegmentLayout::grouped(0, MAX_ROW_BYTES, 1, [].into_iter()).is_ok());
    }

    #[test]
    fn the_largest_layout_does_not_overflow() {
        let layout = SegmentLayout::new(u32::MAX, MAX_ROW_BYTES).unwrap();
        assert!(layout.file_bytes() > layout.data_bytes());
        assert_eq!(SegmentLayout::new(1, 0), Err(LayoutError::Row { found_bytes: 0 }));
        assert!(SegmentLayout::new(1, MAX_ROW_BYTES + 1).is_err());
        let most =
            Sections { data_bytes: layout.data_bytes(), n_groups: u32::MAX, n_listed: u32::MAX };
        assert!(most.file_bytes() > layout.file_bytes());
    }

    #[test]
    fn an_empty_segment_is_a_header_and_a_footer() {
        for layout in [SegmentLayout::new(0, 8), SegmentLayout::grouped(0, 8, 100, [].into_iter())]
        {
            let layout = layout.unwrap();
            assert_eq!((layout.n_pages(), layout.file_bytes()), (0, 2 * PAGE_BYTES));
        }
    }
}
