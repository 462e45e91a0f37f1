//! Readers: they execute read plans and decide nothing.

mod choice;
mod direct;
#[cfg(test)]
mod faulty;
mod mapped;
mod memory;
mod queued;

pub use choice::{OpenOptions, ReaderKind, available_memory_bytes, choose, open};
pub use direct::{DirectReader, PreadReader};
pub use mapped::MappedReader;
pub(crate) use mapped::gather_mapped;
pub use memory::MemoryReader;

use std::fmt::Debug;

use crate::error::StoreError;
use crate::layout::SegmentLayout;
use crate::plan::{DiskProfile, ReadPlan};
use crate::row::RowIdx;

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
