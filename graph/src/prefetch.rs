//! Asking the processor for memory ahead of its use; a hint, and nothing where there is none.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Asks for the first line of `value`.
#[inline]
pub fn prefetch<T>(value: &T) {
    prefetch_line(std::ptr::from_ref(value).cast());
}

/// Asks for all of `values`.
#[inline]
pub fn prefetch_all<T>(values: &[T]) {
    prefetch_lines(values.as_ptr().cast(), size_of_val(values));
}

/// Prefetches every line with one of the `n_bytes` bytes from `start` on. Any address is allowed,
/// also one of memory that other processes write to.
#[inline]
pub fn prefetch_lines(start: *const u8, n_bytes: usize) {
    let into_line = start.addr() % LINE_BYTES;
    let first = start.wrapping_sub(into_line);
    (0..n_bytes + into_line)
        .step_by(LINE_BYTES)
        .for_each(|at| prefetch_line(first.wrapping_add(at)));
}

/// Asks for the line of an address, which may be any.
#[inline]
fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[expect(unsafe_code, reason = "the instruction has no other name")]
        // SAFETY: a prefetch reads nothing that the program can see, and no address makes it fail.
        // SSE is part of every x86_64.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(address.cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
