//! The physical limit of a gather from memory: the same rows copied out of a plain buffer.

use memmap2::{Advice, MmapMut};

/// Rows are asked of the processor this many rows before they are copied; 8 and 16 do as well.
const AHEAD_ROWS: usize = 8;

/// A table of rows in plain memory.
pub struct PlainTable {
    rows: MmapMut,
    row_bytes: usize,
}

impl PlainTable {
    /// Copies packed rows of `row_bytes` to memory of its own: of small pages, as any large buffer
    /// is by default, or of huge ones.
    ///
    /// # Panics
    /// When there is not enough memory.
    #[must_use]
    pub fn new(rows: &[u8], row_bytes: usize, huge_pages: bool) -> Self {
        let mut map = MmapMut::map_anon(rows.len()).expect("memory");
        let advice = if huge_pages { Advice::HugePage } else { Advice::NoHugePage };
        // Where the kernel does not know huge pages, all are small.
        let _ = map.advise(advice);
        map.copy_from_slice(rows);
        Self { rows: map, row_bytes }
    }

    /// Copies the rows of `ids` to `out`, in their order, with software prefetch: what a careful C
    /// loop does.
    ///
    /// # Panics
    /// When a row does not exist.
    pub fn gather(&self, ids: &[u32], out: &mut [u8]) {
        let row = |id: u32| &self.rows[id as usize * self.row_bytes..][..self.row_bytes];
        for (i, (&id, out)) in ids.iter().zip(out.chunks_exact_mut(self.row_bytes)).enumerate() {
            if let Some(&ahead) = ids.get(i + AHEAD_ROWS) {
                prefetch(row(ahead));
            }
            out.copy_from_slice(row(id));
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the instruction takes a bare address")]
fn prefetch(row: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in row.chunks(64) {
        // SAFETY: a prefetch reads nothing that the program can see and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch(_row: &[u8]) {}
