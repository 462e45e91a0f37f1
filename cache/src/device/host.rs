//! The slots of a device tier in host memory: for machines without a device.

use crate::arena::Arena;
use crate::huge_vec::MemoryError;
use crate::slots::NO_SLOT;

use super::memory::RowMove;

/// Slots and one staging buffer.
pub(crate) struct HostMemory {
    slots: Arena,
    staging: Vec<u8>,
}

impl HostMemory {
    pub(crate) fn new(
        n_slots: u32,
        row_bytes: usize,
        staging_rows: usize,
    ) -> Result<Self, MemoryError> {
        Ok(Self {
            slots: Arena::new(n_slots, row_bytes)?,
            staging: vec![0; staging_rows * row_bytes],
        })
    }

    pub(crate) fn staging(&mut self) -> &mut [u8] {
        &mut self.staging
    }

    pub(crate) fn gather(&self, slots: &[u32], tensor: &mut [u8]) {
        for (&slot, row) in slots.iter().zip(tensor.chunks_exact_mut(self.slots.row_bytes())) {
            if slot != NO_SLOT {
                row.copy_from_slice(self.slots.row(slot));
            }
        }
    }

    pub(crate) fn place_staged(&self, positions: &[u32], tensor: &mut [u8]) {
        let row_bytes = self.slots.row_bytes();
        for (&position, row) in positions.iter().zip(self.staging.chunks_exact(row_bytes)) {
            row_mut(tensor, position, row_bytes).copy_from_slice(row);
        }
    }

    pub(crate) fn keep(&mut self, tensor: &[u8], moves: &[RowMove]) {
        let row_bytes = self.slots.row_bytes();
        for &RowMove { from, to } in moves {
            self.slots.row_mut(to).copy_from_slice(row(tensor, from, row_bytes));
        }
    }

    pub(crate) fn read(&self, slots: &[u32], out: &mut [u8]) {
        for (&slot, out_row) in slots.iter().zip(out.chunks_exact_mut(self.slots.row_bytes())) {
            out_row.copy_from_slice(self.slots.row(slot));
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes() + self.staging.len()
    }
}

fn row(rows: &[u8], at: u32, row_bytes: usize) -> &[u8] {
    &rows[at as usize * row_bytes..][..row_bytes]
}

fn row_mut(rows: &mut [u8], at: u32, row_bytes: usize) -> &mut [u8] {
    &mut rows[at as usize * row_bytes..][..row_bytes]
}
