//! A reader over a segment's pages in memory: extent by extent, as a reader of a disk would.

use super::{RowReader, check_output};
use crate::error::StoreError;
use crate::layout::{DATA_OFFSET, SegmentLayout};
use crate::limits::PAGE_BYTES;
use crate::plan::{Extent, ReadPlan};
use crate::segment::Segment;

/// All pages of a segment in memory; each is checked on every read, as a reader of a disk would.
#[derive(Debug)]
pub struct MemoryReader {
    pub(super) segment: Segment,
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

    /// Returns the bytes that a disk would give for `extent`.
    pub(super) fn bytes_of(&self, extent: &Extent) -> &[u8] {
        let start = (extent.first_page * PAGE_BYTES) as usize;
        &self.pages[start..start + extent.len_bytes()]
    }
}

impl RowReader for MemoryReader {
    fn layout(&self) -> &SegmentLayout {
        self.segment.layout()
    }

    fn execute(&self, plan: &ReadPlan, out: &mut [u8]) -> Result<(), StoreError> {
        check_output(plan.out_rows(), self.layout(), out)?;
        for (extent, rows) in plan.by_extent() {
            self.segment.copy_rows(extent, rows, self.bytes_of(extent), out)?;
        }
        Ok(())
    }
}
