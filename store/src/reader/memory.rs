//! A reader over a segment's bytes in memory, and what it shares with readers of real extents.

use std::os::unix::fs::FileExt;

use super::{RowReader, check_output};
use crate::error::StoreError;
use crate::layout::{DATA_OFFSET, PAGE_BYTES, SegmentLayout};
use crate::plan::{Extent, ReadPlan};
use crate::segment::Segment;

/// All pages of a segment in memory; each is checked on every read, as a reader of a disk would.
#[derive(Debug)]
pub struct MemoryReader {
    segment: Segment,
    pages: Vec<u8>,
}

impl MemoryReader {
    /// Reads all pages of `segment`; memory as the segment's rows.
    pub fn load(segment: Segment) -> Result<Self, StoreError> {
        let n_bytes = segment.layout().n_pages() * PAGE_BYTES;
        let mut pages = vec![0u8; n_bytes as usize];
        let read = segment.file().read_exact_at(&mut pages, DATA_OFFSET);
        read.map_err(StoreError::io(segment.path(), "read"))?;
        Ok(Self { segment, pages })
    }

    /// The bytes that a disk would give for `extent`.
    pub(super) fn bytes_of(&self, extent: &Extent) -> &[u8] {
        let start = (extent.first_page * PAGE_BYTES) as usize;
        &self.pages[start..start + extent.len_bytes()]
    }

    /// Executes a plan with each extent read by `read`.
    pub(super) fn execute_with<'a>(
        &'a self,
        plan: &ReadPlan,
        out: &mut [u8],
        mut read: impl FnMut(&Extent) -> Result<std::borrow::Cow<'a, [u8]>, StoreError>,
    ) -> Result<(), StoreError> {
        let layout = self.segment.layout();
        check_output(plan, layout, out)?;
        let row_bytes = layout.row_bytes();
        let mut rows = plan.rows.iter().peekable();
        for (extent, extent_no) in plan.extents.iter().zip(0u32..) {
            let bytes = read(extent)?;
            self.segment.check_extent(extent, &bytes)?;
            while let Some(row) = rows.next_if(|row| row.extent == extent_no) {
                let (from, to) = (row.offset_bytes as usize, row.out_row as usize * row_bytes);
                out[to..to + row_bytes].copy_from_slice(&bytes[from..from + row_bytes]);
            }
        }
        Ok(())
    }

    pub(super) fn segment(&self) -> &Segment {
        &self.segment
    }
}

impl RowReader for MemoryReader {
    fn layout(&self) -> &SegmentLayout {
        self.segment.layout()
    }

    fn execute(&self, plan: &ReadPlan, out: &mut [u8]) -> Result<(), StoreError> {
        self.execute_with(plan, out, |extent| Ok(self.bytes_of(extent).into()))
    }
}
