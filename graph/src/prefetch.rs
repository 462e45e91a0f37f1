//! Asking the processor for memory ahead of its use; a hint, and nothing where there is none.

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Asks for the first line of `value`.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    prefetch_line(value);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Asks for all of `values`.
#[inline]
pub(crate) fn prefetch_all<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        // A short list may begin in one line and end in the next.
        let per_line = (LINE_BYTES / size_of::<T>().max(1)).max(1);
        values.chunks(per_line).for_each(|line| prefetch_line(&line[0]));
        values.last().into_iter().for_each(prefetch_line);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[expect(unsafe_code, reason = "the instruction takes a bare address")]
fn prefetch_line<T>(value: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch reads nothing that the program can see and cannot fault; the address is
    // that of a value all the same. SSE is part of every x86_64.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
}
