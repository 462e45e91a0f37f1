//! Readers: they execute read plans and decide nothing.

mod choice;
mod direct;
mod faulty;
mod mapped;
mod memory;
mod pread;
mod queued;

pub use choice::{OpenOptions, ReaderKind, UnknownReader, available_memory_bytes, choose, open};
pub use direct::DirectReader;
pub use faulty::{Fault, FaultyReader};
pub use mapped::MappedReader;
pub use memory::MemoryReader;
pub use pread::PreadReader;

use std::fmt::Debug;

use crate::error::StoreError;
use crate::layout::SegmentLayout;
use crate::plan::ReadPlan;

/// A way to the rows of one segment.
pub trait RowReader: Debug + Send + Sync {
    /// Where the rows lie; plans for this reader are built on it.
    fn layout(&self) -> &SegmentLayout;

    /// Copies every planned row to its output row.
    ///
    /// `out` has `plan.out_rows() * row_bytes` bytes. Every byte copied comes from a page whose
    /// checksum was right. After an error the content of `out` means nothing.
    fn execute(&self, plan: &ReadPlan, out: &mut [u8]) -> Result<(), StoreError>;
}

/// Checks the output's length once, so that readers need not check it per row.
fn check_output(plan: &ReadPlan, layout: &SegmentLayout, out: &[u8]) -> Result<(), StoreError> {
    let expected_bytes = u64::from(plan.out_rows()) * layout.row_bytes() as u64;
    let found_bytes = out.len() as u64;
    if expected_bytes == found_bytes {
        return Ok(());
    }
    Err(StoreError::OutputLength { expected_bytes, found_bytes })
}

#[cfg(test)]
mod tests;
