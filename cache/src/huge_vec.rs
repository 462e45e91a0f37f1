//! Fixed arrays in memory of their own, with huge pages where the system has them.

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use bytemuck::Pod;
use memmap2::MmapMut;
use thiserror::Error;

/// Bytes of a line of the processor's cache.
const LINE_BYTES: usize = 64;

/// Reason why the memory of a tier cannot be allocated.
#[derive(Debug, Error)]
pub enum MemoryError {
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
        /// The error of the system.
        source: std::io::Error,
    },
}

/// `len` values, zero at first. Pages are taken when they are first written.
///
/// A mapping rather than a vector: with huge pages, an access at random into megabytes of
/// bookkeeping does not miss the page tables as well.
pub(crate) struct HugeVec<T> {
    memory: MmapMut,
    /// The same memory. Casting its bytes again would check them at each access, of which a row
    /// that comes takes two dozen.
    values: NonNull<T>,
    len: usize,
}

#[expect(unsafe_code, reason = "a pointer into a mapping says nothing of threads")]
// SAFETY: it owns its memory, as a vector does.
unsafe impl<T: Pod + Send> Send for HugeVec<T> {}
#[expect(unsafe_code, reason = "a pointer into a mapping says nothing of threads")]
// SAFETY: what is shared is only read.
unsafe impl<T: Pod + Sync> Sync for HugeVec<T> {}

impl<T: Pod> HugeVec<T> {
    pub(crate) fn new(len: usize) -> Result<Self, MemoryError> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(MemoryError::TooLarge {
            n_slots: u32::try_from(len).unwrap_or(u32::MAX),
            row_bytes: size_of::<T>(),
        })?;
        let memory =
            MmapMut::map_anon(bytes).map_err(|source| MemoryError::Reserve { bytes, source })?;
        Ok(Self::of(memory, len))
    }

    /// Returns values in memory that was made elsewhere: zeros, `len` values long.
    pub(crate) fn of(mut memory: MmapMut, len: usize) -> Self {
        #[cfg(target_os = "linux")]
        let _only_slower_without = memory.advise(memmap2::Advice::HugePage);
        // Checks alignment and length.
        let values: &mut [T] = bytemuck::cast_slice_mut(&mut memory);
        assert_eq!(values.len(), len, "memory for that many values");
        let values = NonNull::from(values).cast();
        Self { memory, values, len }
    }

    pub(crate) fn filled(len: usize, value: T) -> Result<Self, MemoryError> {
        let mut values = Self::new(len)?;
        values.fill(value);
        Ok(values)
    }

    /// Returns the memory of the values, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Prefetches a value. It returns immediately, where a read would delay it and all that comes
    /// after it. Any number will do.
    #[inline]
    pub(crate) fn prefetch(&self, at: usize) {
        let at = if at < self.len { at } else { 0 };
        let address = self.values.as_ptr().wrapping_add(at);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            #[expect(unsafe_code, reason = "the instruction has no other name")]
            // SAFETY: it changes nothing, and no address makes it fail.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(address.cast());
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::hint::black_box(self.get(at).is_some() && !address.is_null());
    }
}

impl<T: Pod> HugeVec<T> {
    /// Prefetches every cache line of `values`, whose lengths divide a line; lines start where
    /// pages do.
    #[inline]
    pub(crate) fn prefetch_all(&self, values: Range<usize>) {
        let per_line = (LINE_BYTES / size_of::<T>()).max(1);
        let first = values.start / per_line * per_line;
        (first..values.end).step_by(per_line).for_each(|at| self.prefetch(at));
    }
}

impl<T: Pod> Deref for HugeVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        #[expect(unsafe_code, reason = "see `values`")]
        // SAFETY: `new` has checked that the memory holds that many values at this address. A
        // mapping does not move, any bytes are a value, and a borrow of the values borrows the
        // mapping.
        unsafe {
            std::slice::from_raw_parts(self.values.as_ptr(), self.len)
        }
    }
}

impl<T: Pod> DerefMut for HugeVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        #[expect(unsafe_code, reason = "see `values`")]
        // SAFETY: as for `deref`; they are borrowed exclusively here.
        unsafe {
            std::slice::from_raw_parts_mut(self.values.as_ptr(), self.len)
        }
    }
}

/// The same of words that threads share and change.
pub(crate) struct AtomicPages(HugeVec<u64>);

impl AtomicPages {
    pub(crate) fn new(len: usize) -> Result<Self, MemoryError> {
        HugeVec::new(len).map(Self)
    }

    /// Prefetches words.
    #[inline]
    pub(crate) fn prefetch_all(&self, words: Range<usize>) {
        self.0.prefetch_all(words);
    }
}

impl Deref for AtomicPages {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        #[expect(unsafe_code, reason = "see `values`")]
        // SAFETY: as for values, which no code ever has as plain words: the vector is in here
        // alone. An atomic has the size of its word, and a page its alignment.
        unsafe {
            std::slice::from_raw_parts(self.0.values.as_ptr().cast(), self.0.len)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn words_are_shared_by_threads() {
        let words = AtomicPages::new(9).unwrap();
        std::thread::scope(|scope| {
            for at in 0..9 {
                let words = &words;
                scope.spawn(move || {
                    words[at].fetch_add(at as u64 + words.len() as u64, Ordering::SeqCst)
                });
            }
        });
        let values: Vec<u64> = words.iter().map(|word| word.load(Ordering::SeqCst)).collect();
        assert_eq!(values, [9, 10, 11, 12, 13, 14, 15, 16, 17]);
        assert!(AtomicPages::new(0).unwrap().is_empty());
    }

    #[test]
    fn values_are_zero_at_first_and_stay_as_they_are_written() {
        let mut values: HugeVec<[u32; 3]> = HugeVec::new(1000).unwrap();
        assert!((values.len(), values.bytes()) == (1000, 12_000));
        assert!(values.iter().all(|value| *value == [0; 3]));
        values[999] = [1, 2, 3];
        for at in [0, 999, 1000, usize::MAX] {
            values.prefetch(at);
        }
        let values = std::thread::spawn(move || values).join().unwrap();
        assert_eq!((values[998], values[999]), ([0; 3], [1, 2, 3]));
    }

    #[test]
    fn no_values_take_no_memory() {
        let values: HugeVec<u64> = HugeVec::new(0).unwrap();
        values.prefetch(0);
        assert!(values.is_empty() && values.bytes() == 0);
    }
}
