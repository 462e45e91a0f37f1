//! Readers: they execute read plans and decide nothing.

mod choice;
mod direct;
#[cfg(test)]
mod faulty;
mod mapped;
mod queued;

pub use choice::{OpenOptions, ReaderKind, available_memory_bytes, choose, open};
pub use direct::{DirectReader, PreadReader};
pub use mapped::MappedReader;
pub(crate) use mapped::gather_mapped;

use std::fmt::Debug;

use crate::error::StoreError;
use crate::layout::{DATA_OFFSET, SegmentLayout};
use crate::limits::PAGE_BYTES;
use crate::plan::{DiskProfile, Extent, ReadPlan};
use crate::row::RowIdx;
use crate::segment::Segment;

/// A way to the rows of one segment.
pub trait RowReader: Debug + Send + Sync {
    /// Returns where the rows lie; plans for this reader are built on it.
    fn layout(&self) -> &SegmentLayout;

    /// Copies every planned row to its output row.
    ///
    /// `out` has `plan.out_rows() * row_bytes` bytes. Every byte copied comes from a page whose
    /// checksum was right. After an error the content of `out` means nothing.
    fn execute(&self, plan: &ReadPlan, out: &mut [u8]) -> Result<(), StoreError>;

    /// Copies rows, given with their output rows, into `out`, which has a whole number of rows.
    /// Output rows that are not named stay as they are.
    ///
    /// A reader that gains from a plan builds it in `plan`, whose content before and after means
    /// nothing. Other readers do not use it.
    fn gather(
        &self,
        rows: &[(RowIdx, u32)],
        profile: &DiskProfile,
        plan: &mut ReadPlan,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        plan.build_scattered(rows, whole_rows(self.layout(), out), self.layout(), profile)?;
        self.execute(plan, out)
    }

    /// Returns the reader itself, if it copies rows out of a memory map.
    fn as_mapped(&self) -> Option<&MappedReader> {
        None
    }
}

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

    /// Returns the bytes that a disk would give for `extent`.
    fn bytes_of(&self, extent: &Extent) -> &[u8] {
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

/// Returns the rows that `out` has room for.
fn whole_rows(layout: &SegmentLayout, out: &[u8]) -> u32 {
    u32::try_from(out.len() / layout.row_bytes()).unwrap_or(u32::MAX)
}

/// Checks the output's length once, so that readers need not check it per row.
fn check_output(out_rows: u32, layout: &SegmentLayout, out: &[u8]) -> Result<(), StoreError> {
    let expected_bytes = u64::from(out_rows) * layout.row_bytes() as u64;
    let found_bytes = out.len() as u64;
    if expected_bytes == found_bytes {
        return Ok(());
    }
    Err(StoreError::OutputLength { expected_bytes, found_bytes })
}

#[cfg(test)]
mod tests;
