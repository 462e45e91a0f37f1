//! Atomics of [`crate::versioned::VersionedRows`] and [`crate::volatile::VolatileRows`], in one
//! place so that the model checker's can replace them.

use std::ops::Range;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Polls of a slot that another thread is writing before this one yields its processor.
const SPINS: u32 = 100;

/// Reads of a volatile row that is being written before it counts as lacking.
pub(crate) const READ_TRIES: usize = 64;

/// Waits a little after this many polls.
pub(crate) fn pause(n_looks: u32) {
    if n_looks < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// Prefetches words, in whatever order they are read or written then.
#[inline]
pub(crate) fn prefetch(words: &AtomicWords, which: Range<usize>) {
    words.prefetch_all(which);
}

/// Words with huge pages where there are any: a row at random is a miss of the page tables without.
pub(crate) type AtomicWords = crate::huge_vec::AtomicPages;

/// Returns `n` zeros; `None` when there is no such memory.
pub(crate) fn zeros(n: usize) -> Option<AtomicWords> {
    AtomicWords::new(n).ok()
}
