//! The slots of a tier: equal pieces of one block of memory.

use std::io;

use memmap2::MmapMut;

use crate::huge_vec::{HugeVec, MemoryError};
use crate::slots::NO_SLOT;

/// Bytes of rows that are being prefetched while one is copied. A core can wait for that many
/// together, and they are still in its nearest cache at their turn.
const AHEAD_BYTES: usize = 4 << 10;

/// `n_slots` rows of `row_bytes`, back to back. Pages are touched when a row is first written.
pub(crate) struct Arena {
    slots: HugeVec<u8>,
    row_bytes: usize,
}

impl Arena {
    pub(crate) fn new(n_slots: u32, row_bytes: usize) -> Result<Self, MemoryError> {
        let bytes = Self::checked_bytes(n_slots, row_bytes)?;
        let slots = HugeVec::new(bytes)?;
        Ok(Self { slots, row_bytes })
    }

    /// Makes the same in memory that `make` allocates for that many bytes; without slots there is
    /// none.
    pub(crate) fn made_by(
        make: impl FnOnce(usize) -> io::Result<MmapMut>,
        n_slots: u32,
        row_bytes: usize,
    ) -> Result<Self, MemoryError> {
        let bytes = Self::checked_bytes(n_slots, row_bytes)?;
        if bytes == 0 {
            return Self::new(n_slots, row_bytes);
        }
        let memory = make(bytes).map_err(|source| MemoryError::Reserve { bytes, source })?;
        Ok(Self { slots: HugeVec::of(memory, bytes), row_bytes })
    }

    fn checked_bytes(n_slots: u32, row_bytes: usize) -> Result<usize, MemoryError> {
        if row_bytes == 0 {
            return Err(MemoryError::NoRowBytes);
        }
        let bytes = (n_slots as usize).checked_mul(row_bytes);
        bytes.ok_or(MemoryError::TooLarge { n_slots, row_bytes })
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Returns the address space reserved, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    pub(crate) fn row(&self, slot: u32) -> &[u8] {
        let start = slot as usize * self.row_bytes;
        &self.slots[start..start + self.row_bytes]
    }

    pub(crate) fn row_mut(&mut self, slot: u32) -> &mut [u8] {
        let start = slot as usize * self.row_bytes;
        &mut self.slots[start..start + self.row_bytes]
    }

    /// Returns all rows, slot after slot.
    pub(crate) fn rows_mut(&mut self) -> &mut [u8] {
        &mut self.slots
    }

    /// Copies the rows in `slots` to `out`, one after the other. Appends the positions of slots
    /// that are [`NO_SLOT`] to `misses`; `first` is the position of the first slot.
    pub(crate) fn copy_found(
        &self,
        first: usize,
        slots: &[u32],
        out: &mut [u8],
        misses: &mut Vec<u32>,
    ) {
        // Random rows are mostly not in the processor's cache, and copying alone waits for few of
        // them concurrently (benches/notes/server-pulls.md, Rows asked for ahead).
        let n_ahead = (AHEAD_BYTES / self.row_bytes).max(1).min(slots.len());
        slots[..n_ahead].iter().for_each(|&slot| self.prefetch(slot));
        let ahead = slots[n_ahead..].iter().copied().chain(std::iter::repeat(NO_SLOT));
        let rows = out.chunks_exact_mut(self.row_bytes);
        for (((position, &slot), out_row), ahead) in
            (first as u32..).zip(slots).zip(rows).zip(ahead)
        {
            self.prefetch(ahead);
            if slot == NO_SLOT {
                misses.push(position);
            } else {
                out_row.copy_from_slice(self.row(slot));
            }
        }
    }

    /// Copies the row in `slots[i]` to row `at[i]` of `out`; nothing for [`NO_SLOT`].
    ///
    /// # Panics
    ///
    /// Unless there is a position for each slot, and a row of `out` for each position.
    pub(crate) fn copy_to(&self, slots: &[u32], at: &[u32], out: &mut [u8]) {
        assert_eq!(slots.len(), at.len(), "a position for each slot");
        let n_ahead = (AHEAD_BYTES / self.row_bytes).max(1).min(slots.len());
        slots[..n_ahead].iter().for_each(|&slot| self.prefetch(slot));
        let ahead = slots[n_ahead..].iter().copied().chain(std::iter::repeat(NO_SLOT));
        for ((&slot, &at), ahead) in slots.iter().zip(at).zip(ahead) {
            self.prefetch(ahead);
            if slot != NO_SLOT {
                let start = at as usize * self.row_bytes;
                out[start..start + self.row_bytes].copy_from_slice(self.row(slot));
            }
        }
    }

    /// Prefetches a row that will be copied soon. It reads only the start of a long row; the
    /// processor predicts the rest. [`NO_SLOT`] is ignored.
    #[inline]
    fn prefetch(&self, slot: u32) {
        if slot != NO_SLOT {
            let start = slot as usize * self.row_bytes;
            self.slots.prefetch_all(start..start + self.row_bytes.min(AHEAD_BYTES));
        }
    }

    /// # Panics
    ///
    /// Unless there is exactly one row per id.
    pub(crate) fn check_rows(&self, n_ids: usize, rows_bytes: usize) {
        check_rows(n_ids, self.row_bytes, rows_bytes);
    }
}

/// # Panics
///
/// Unless there is exactly one row of `row_bytes` per id.
pub(crate) fn check_rows(n_ids: usize, row_bytes: usize, rows_bytes: usize) {
    assert!(
        n_ids.checked_mul(row_bytes) == Some(rows_bytes),
        "{n_ids} rows of {row_bytes} bytes do not fill {rows_bytes} bytes",
    );
}
