//! Arrays of numbers on large pages: random access to many megabytes misses fewer translations.

use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::{Advice, MmapMut};

/// Arrays below this many bytes are ordinary vectors.
const MIN_MAPPED_BYTES: usize = 4 << 20;

/// A zeroed array of fixed length. Pages that are never written take no memory.
#[derive(Debug)]
pub(crate) enum HugeVec<T> {
    Owned(Vec<T>),
    Mapped(MmapMut),
}

impl<T: Pod> HugeVec<T> {
    /// Returns `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        let n_bytes = len.saturating_mul(size_of::<T>());
        if n_bytes >= MIN_MAPPED_BYTES
            && let Ok(map) = MmapMut::map_anon(n_bytes)
        {
            // Small pages do as well where the system has no large ones.
            #[cfg(target_os = "linux")]
            let _ = map.advise(Advice::HugePage);
            return Self::Mapped(map);
        }
        Self::Owned(vec![T::zeroed(); len])
    }

    /// Returns `len` values; `value` is called with each index.
    pub(crate) fn from_fn(len: usize, value: impl Fn(usize) -> T) -> Self {
        let mut array = Self::zeroed(len);
        for (i, item) in array.iter_mut().enumerate() {
            *item = value(i);
        }
        array
    }
}

impl<T: Pod> Deref for HugeVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::Owned(values) => values,
            Self::Mapped(map) => bytemuck::cast_slice(map),
        }
    }
}

impl<T: Pod> DerefMut for HugeVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Owned(values) => values,
            Self::Mapped(map) => bytemuck::cast_slice_mut(map),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_all_sizes_start_with_zeros_and_keep_what_is_written() {
        for len in [0, 1, 1000, MIN_MAPPED_BYTES / 8, MIN_MAPPED_BYTES / 8 + 12_345] {
            let mut array = HugeVec::<u64>::zeroed(len);
            assert_eq!(array.len(), len);
            assert!(array.iter().all(|&word| word == 0));
            for (i, word) in array.iter_mut().enumerate() {
                *word = i as u64 * 3;
            }
            let expected = HugeVec::from_fn(len, |i| i as u64 * 3);
            assert!(*array == *expected, "{len} words");
        }
    }
}
