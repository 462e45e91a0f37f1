//! Where the rows of a segment lie.

use std::ops::Range;

use thiserror::Error;

use crate::limits::MAX_ROW_BYTES;
use crate::row::RowIdx;

/// Bytes of a page: the unit of checksums and of reads.
pub const PAGE_BYTES: u64 = 4096;

/// Byte of the file at which the first row starts: one page of header lies before it.
pub const DATA_OFFSET: u64 = PAGE_BYTES;

/// The shape of a segment: rows packed back to back from [`DATA_OFFSET`], not padded to pages.
///
/// Pages are counted from the first row: page `k` holds the file's bytes from
/// `DATA_OFFSET + k * PAGE_BYTES`. The last page is padded with zeros.
///
/// Invariant: every byte position of the file fits a `u64` and every row fits [`MAX_ROW_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    n_rows: u32,
    row_bytes: u32,
}

/// A row length that no segment can have.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a row must have 1 to {MAX_ROW_BYTES} bytes, found {found_bytes}")]
pub struct LayoutError {
    /// Bytes of one row.
    pub found_bytes: u64,
}

impl SegmentLayout {
    /// The layout of `n_rows` rows of `row_bytes` bytes each.
    pub fn new(n_rows: u32, row_bytes: usize) -> Result<Self, LayoutError> {
        match u32::try_from(row_bytes) {
            Ok(row_bytes) if (1..=MAX_ROW_BYTES as u32).contains(&row_bytes) => {
                Ok(Self { n_rows, row_bytes })
            }
            _ => Err(LayoutError { found_bytes: row_bytes as u64 }),
        }
    }

    /// Number of rows; 0 for an empty partition.
    #[must_use]
    pub const fn n_rows(&self) -> u32 {
        self.n_rows
    }

    /// Bytes of one row.
    #[must_use]
    pub const fn row_bytes(&self) -> usize {
        self.row_bytes as usize
    }

    /// Number of pages that hold rows.
    #[must_use]
    pub const fn n_pages(&self) -> u64 {
        self.data_bytes().div_ceil(PAGE_BYTES)
    }

    /// Bytes of all rows, without padding.
    #[must_use]
    pub const fn data_bytes(&self) -> u64 {
        self.n_rows as u64 * self.row_bytes as u64
    }

    /// Bytes of `row`, counted from the first row; `None` past the last row.
    #[must_use]
    pub fn row_range(&self, row: RowIdx) -> Option<Range<u64>> {
        if row.0 >= self.n_rows {
            return None;
        }
        let start = u64::from(row.0) * u64::from(self.row_bytes);
        Some(start..start + u64::from(self.row_bytes))
    }

    /// Pages that `row` touches; `None` past the last row.
    #[must_use]
    pub fn row_pages(&self, row: RowIdx) -> Option<Range<u64>> {
        let bytes = self.row_range(row)?;
        Some(bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES))
    }

    /// Byte of the file at which the page checksum table starts.
    #[must_use]
    pub const fn table_offset(&self) -> u64 {
        DATA_OFFSET + self.n_pages() * PAGE_BYTES
    }

    /// Bytes of the page checksum table, padded to whole pages: 4 bytes per page.
    #[must_use]
    pub const fn table_bytes(&self) -> u64 {
        (self.n_pages() * 4).next_multiple_of(PAGE_BYTES)
    }

    /// Byte of the file at which the footer page starts.
    #[must_use]
    pub const fn footer_offset(&self) -> u64 {
        self.table_offset() + self.table_bytes()
    }

    /// Length of the whole file.
    #[must_use]
    pub const fn file_bytes(&self) -> u64 {
        self.footer_offset() + PAGE_BYTES
    }
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
    fn the_largest_layout_does_not_overflow() {
        let layout = SegmentLayout::new(u32::MAX, MAX_ROW_BYTES).unwrap();
        assert!(layout.file_bytes() > layout.data_bytes());
        assert_eq!(SegmentLayout::new(1, 0), Err(LayoutError { found_bytes: 0 }));
        assert!(SegmentLayout::new(1, MAX_ROW_BYTES + 1).is_err());
    }

    #[test]
    fn an_empty_segment_is_a_header_and_a_footer() {
        let layout = SegmentLayout::new(0, 8).unwrap();
        assert_eq!((layout.n_pages(), layout.file_bytes()), (0, 2 * PAGE_BYTES));
    }
}
