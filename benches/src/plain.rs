//! The physical limits of gathers: rows copied out of a plain buffer, and the disk alone for the
//! reads of a plan.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lodestore_store::plan::Extent;
use memmap2::{Advice, MmapMut};

/// Rows are asked of the processor this many rows before they are copied; 8 and 16 do as well.
const AHEAD_ROWS: usize = 8;

/// Reads in flight: enough for the disk's requests per second.
const N_THREADS: usize = 64;

/// Pages of a table's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// As any large buffer has by default.
    Small,
    /// Where the kernel knows them.
    Huge,
}

/// A table of rows in plain memory.
pub struct PlainTable {
    rows: MmapMut,
    row_bytes: usize,
}

impl PlainTable {
    /// Copies packed rows of `row_bytes` to memory of its own.
    ///
    /// # Panics
    /// When there is not enough memory.
    #[must_use]
    pub fn new(rows: &[u8], row_bytes: usize, pages: Pages) -> Self {
        let mut map = MmapMut::map_anon(rows.len()).expect("memory");
        let advice = match pages {
            Pages::Small => Advice::NoHugePage,
            Pages::Huge => Advice::HugePage,
        };
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

/// Reads extents past the page cache by plain system calls, many at a time, and looks at nothing.
///
/// # Panics
/// When a read fails or is short.
#[must_use]
pub fn plain_reads(path: &Path, extents: &[Extent]) -> Duration {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(direct).open(path);
    let file = opened.or_else(|_| File::open(path)).expect("the segment");
    let longest = extents.iter().map(Extent::len_bytes).max().unwrap_or(0);
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..N_THREADS.min(extents.len()) {
            scope.spawn(|| {
                let mut memory = MmapMut::map_anon(longest).expect("memory");
                while let Some(extent) = extents.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let buffer = &mut memory[..extent.len_bytes()];
                    file.read_exact_at(buffer, extent.offset_bytes()).expect("an extent");
                }
            });
        }
    });
    start.elapsed()
}
