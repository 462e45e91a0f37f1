//! The slots of a tier: equal pieces of one block of memory.

use memmap2::MmapMut;
use thiserror::Error;

use crate::index::{NO_SLOT, RowIndex};

/// Ids looked up before their rows are copied: enough to keep many memory accesses in flight, few
/// enough that their slots stay on the stack and in the nearest cache.
const CHUNK_IDS: usize = 256;

/// `n_slots` rows of `row_bytes`, back to back. Pages are touched when a row is first written.
pub(crate) struct Arena {
    slots: MmapMut,
    n_slots: u32,
    row_bytes: usize,
}

/// Why the memory of a tier could not be had.
#[derive(Debug, Error)]
pub enum ArenaError {
    /// A row of no bytes needs no tier.
    #[error("a row must have at least 1 byte")]
    NoRowBytes,
    /// The size does not fit the address space.
    #[error("{n_slots} slots of {row_bytes} bytes are more than memory can address")]
    TooLarge {
        /// Slots asked for.
        n_slots: u32,
        /// Bytes of each.
        row_bytes: usize,
    },
    /// The system refused the memory.
    #[error("cannot reserve {bytes} bytes for a tier ({source}); give it a smaller capacity")]
    Reserve {
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Arena {
    pub(crate) fn new(n_slots: u32, row_bytes: usize) -> Result<Self, ArenaError> {
        if row_bytes == 0 {
            return Err(ArenaError::NoRowBytes);
        }
        let bytes = (n_slots as usize)
            .checked_mul(row_bytes)
            .ok_or(ArenaError::TooLarge { n_slots, row_bytes })?;
        // A mapping rather than a vector: it starts on a cache line, and it can have huge pages,
        // without which most rows of a large tier cost a miss of the page tables as well.
        let slots =
            MmapMut::map_anon(bytes).map_err(|source| ArenaError::Reserve { bytes, source })?;
        #[cfg(target_os = "linux")]
        let _only_slower_without = slots.advise(memmap2::Advice::HugePage);
        Ok(Self { slots, n_slots, row_bytes })
    }

    pub(crate) fn n_slots(&self) -> u32 {
        self.n_slots
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Address space reserved, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn row(&self, slot: u32) -> &[u8] {
        let start = slot as usize * self.row_bytes;
        &self.slots[start..start + self.row_bytes]
    }

    pub(crate) fn row_mut(&mut self, slot: u32) -> &mut [u8] {
        let start = slot as usize * self.row_bytes;
        &mut self.slots[start..start + self.row_bytes]
    }

    /// All rows, slot after slot.
    pub(crate) fn rows_mut(&mut self) -> &mut [u8] {
        &mut self.slots
    }

    /// Copies the row of every id that `index` knows to the id's position in `out`, and appends
    /// the positions of the others to `misses`. `on_hits` sees the slots found, chunk by chunk,
    /// [`NO_SLOT`] among them.
    ///
    /// # Panics
    ///
    /// Unless `out` has exactly one row per id.
    pub(crate) fn copy_hits(
        &self,
        index: &RowIndex,
        ids: &[u32],
        out: &mut [u8],
        misses: &mut Vec<u32>,
        mut on_hits: impl FnMut(&[u32]),
    ) {
        assert!(
            ids.len().checked_mul(self.row_bytes) == Some(out.len()),
            "{} rows of {} bytes do not fill an output of {} bytes",
            ids.len(),
            self.row_bytes,
            out.len()
        );
        let mut found = [NO_SLOT; CHUNK_IDS];
        let mut position = 0u32;
        for (ids, out) in ids.chunks(CHUNK_IDS).zip(out.chunks_mut(CHUNK_IDS * self.row_bytes)) {
            let found = &mut found[..ids.len()];
            index.find(ids, found);
            on_hits(found);
            for (&slot, out_row) in found.iter().zip(out.chunks_exact_mut(self.row_bytes)) {
                if slot == NO_SLOT {
                    misses.push(position);
                } else {
                    out_row.copy_from_slice(self.row(slot));
                }
                position += 1;
            }
        }
    }
}
