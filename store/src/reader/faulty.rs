//! A reader whose disk fails on request, for tests of everything above readers.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{MemoryReader, RowReader, check_output};
use crate::error::StoreError;
use crate::layout::SegmentLayout;
use crate::limits::PAGE_BYTES;
use crate::plan::ReadPlan;

/// The disk's behaviour in the place of the right bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskFault {
    /// The read fails.
    Error,
    /// The bytes end early by this many bytes.
    Short {
        /// Missing bytes, at least 1.
        by_bytes: usize,
    },
    /// One bit of the bytes read is wrong.
    FlippedBit {
        /// Bit, counted from the extent's start, modulo the extent's bits.
        bit: usize,
    },
    /// The first two pages come in each other's place; a single page comes as zeros.
    SwappedPages,
}

/// A [`MemoryReader`] whose read number `at_read` (from 0, over all plans) suffers `fault`.
#[derive(Debug)]
pub(super) struct FaultyReader {
    memory: MemoryReader,
    fault: DiskFault,
    at_read: u64,
    n_reads: AtomicU64,
}

impl FaultyReader {
    /// Plans one fault.
    #[must_use]
    pub(super) fn new(memory: MemoryReader, fault: DiskFault, at_read: u64) -> Self {
        Self { memory, fault, at_read, n_reads: AtomicU64::new(0) }
    }
}

impl RowReader for FaultyReader {
    fn layout(&self) -> &SegmentLayout {
        self.memory.layout()
    }

    fn execute(&self, plan: &ReadPlan, out: &mut [u8]) -> Result<(), StoreError> {
        let segment = &self.memory.segment;
        check_output(plan.out_rows(), self.layout(), out)?;
        for (extent, rows) in plan.by_extent() {
            let mut bytes = self.memory.bytes_of(extent).to_vec();
            if self.n_reads.fetch_add(1, Ordering::Relaxed) == self.at_read {
                bytes = self.fault.apply(bytes).map_err(StoreError::io(segment.path(), "read"))?;
            }
            segment.copy_rows(extent, rows, &bytes, out)?;
        }
        Ok(())
    }
}

impl DiskFault {
    fn apply(self, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let page = PAGE_BYTES as usize;
        match self {
            Self::Error => return Err(io::Error::other("injected")),
            Self::Short { by_bytes } => bytes.truncate(bytes.len().saturating_sub(by_bytes)),
            Self::FlippedBit { bit } => {
                let bit = bit % (bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            Self::SwappedPages if bytes.len() == page => bytes.fill(0),
            Self::SwappedPages => {
                let (first, rest) = bytes.split_at_mut(page);
                first.swap_with_slice(&mut rest[..page]);
            }
        }
        Ok(bytes)
    }
}
