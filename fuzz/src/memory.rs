//! Bounds what a decoder allocates: a number from a file must not size memory before it is checked.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a decoder may take whatever its input: buffers of fixed size.
const FIXED_BYTES: usize = 8 << 20;

/// Bytes per byte of input beyond that.
const BYTES_PER_BYTE: usize = 64;

#[global_allocator]
static COUNTING: Counting = Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted. Relaxed: targets run on one thread.
struct Counting;

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        grow(new_bytes);
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(block, layout, new_bytes) }
    }
}

fn grow(n_bytes: usize) {
    let live = LIVE_BYTES.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes;
    if live > PEAK_BYTES.load(Ordering::Relaxed) {
        PEAK_BYTES.fetch_max(live, Ordering::Relaxed);
    }
}

/// Runs `body`, which may take memory in proportion to `n_bytes` of input.
///
/// # Panics
/// When it takes more.
pub fn bounded<T>(n_bytes: usize, body: impl FnOnce() -> T) -> T {
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    PEAK_BYTES.store(before, Ordering::Relaxed);
    let result = body();
    let taken = PEAK_BYTES.load(Ordering::Relaxed).saturating_sub(before);
    let most = FIXED_BYTES + BYTES_PER_BYTE * n_bytes;
    assert!(taken <= most, "{n_bytes} bytes of input took {taken} bytes of memory");
    result
}
