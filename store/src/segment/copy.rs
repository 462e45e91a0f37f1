//! From the bytes of an extent, or of a whole segment, to rows.

use super::segment::Segment;
use crate::codec::{StoredGroup, with_decoder};
use crate::error::StoreError;
use crate::layout::RowGroups;
use crate::limits::PAGE_BYTES;
use crate::plan::{Extent, PlannedRow};

impl Segment {
    /// Copies rows of a plan out of what one read of their extent gave, each to its place in `out`.
    ///
    /// Every page that holds one of the rows is checked before it is used. Pages of a gap that was
    /// read through are not looked at: damage there is nobody's concern. A row group is unpacked
    /// once, however many of its rows were asked for.
    ///
    /// # Panics
    /// When extent and rows are not of a plan for this layout and for an output as long as `out`.
    pub fn copy_rows(
        &self,
        extent: &Extent,
        rows: &[PlannedRow],
        bytes: &[u8],
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        if bytes.len() != extent.len_bytes() {
            let source = std::io::ErrorKind::UnexpectedEof.into();
            return Err(StoreError::Io { file: self.path.clone(), action: "read", source });
        }
        let pages = ExtentPages { segment: self, extent, bytes, checked: 0 };
        match self.layout.groups() {
            None => self.copy_packed(pages, rows, out),
            Some(groups) => self.copy_groups(groups, rows, out, pages),
        }
    }

    fn copy_packed(
        &self,
        mut pages: ExtentPages<'_>,
        rows: &[PlannedRow],
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        let row_bytes = self.layout.row_bytes();
        for planned in rows {
            let bytes = pages.sound(self.layout.packed_span(planned.row))?;
            let to = planned.out_row as usize * row_bytes;
            out[to..to + row_bytes].copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Copies sorted rows out of groups whose bytes `sound` returns, once their pages are checked.
    pub(crate) fn copy_groups<'a>(
        &self,
        groups: &RowGroups,
        rows: &[PlannedRow],
        out: &mut [u8],
        mut pages: impl SoundBytes<'a>,
    ) -> Result<(), StoreError> {
        with_decoder(|decoder| {
            for rows in rows.chunk_by(|a, b| groups.group_of(a.row) == groups.group_of(b.row)) {
                let group = groups.group_of(rows[0].row);
                let stored = self.stored_group(groups, group, pages.sound(groups.span(group))?);
                decoder
                    .copy_rows(&stored, rows, out)
                    .map_err(|reason| self.damaged_group(group, reason))?;
            }
            Ok(())
        })
    }

    /// Returns a group with its stored bytes.
    pub(super) fn stored_group<'a>(
        &self,
        groups: &RowGroups,
        group: u32,
        stored: &'a [u8],
    ) -> StoredGroup<'a> {
        StoredGroup {
            stored,
            first_row: groups.first_row(group),
            raw_bytes: self.layout.group_raw_bytes(groups, group),
            row_bytes: self.layout.row_bytes(),
        }
    }

    /// Returns the error for a group that cannot be unpacked although its pages are sound.
    pub(super) fn damaged_group(&self, group: u32, reason: String) -> StoreError {
        StoreError::DamagedGroup { file: self.path.clone(), group, reason }
    }
}

/// Bytes of a segment's data, handed out only from pages whose checksums are right.
pub(crate) trait SoundBytes<'a> {
    /// Returns the bytes `span`, counted from the first data page.
    fn sound(&mut self, span: std::ops::Range<u64>) -> Result<&'a [u8], StoreError>;
}

/// Result of one read of an extent. Spans are asked for in ascending order.
struct ExtentPages<'a> {
    segment: &'a Segment,
    extent: &'a Extent,
    bytes: &'a [u8],
    /// Pages of the extent before this one have been checked, if a span touched them.
    checked: usize,
}

impl<'a> SoundBytes<'a> for ExtentPages<'a> {
    #[inline]
    fn sound(&mut self, span: std::ops::Range<u64>) -> Result<&'a [u8], StoreError> {
        let page_bytes = PAGE_BYTES as usize;
        let base = self.extent.first_page * PAGE_BYTES;
        let (start, end) = ((span.start - base) as usize, (span.end - base) as usize);
        // Spans ascend, so no page is checked twice.
        for page in self.checked.max(start / page_bytes)..end.div_ceil(page_bytes) {
            let bytes = &self.bytes[page * page_bytes..(page + 1) * page_bytes];
            self.segment.check_page(self.extent.first_page + page as u64, bytes)?;
            self.checked = page + 1;
        }
        Ok(&self.bytes[start..end])
    }
}
