//! Time of the disk alone for the reads of a plan.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lodestore_store::plan::Extent;

/// Reads in flight: enough for the disk's requests per second.
const N_THREADS: usize = 64;

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
                let mut memory = memmap2::MmapMut::map_anon(longest).expect("memory");
                while let Some(extent) = extents.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let buffer = &mut memory[..extent.len_bytes()];
                    file.read_exact_at(buffer, extent.offset_bytes()).expect("an extent");
                }
            });
        }
    });
    start.elapsed()
}
