//! Fixed arrays in memory of their own, with huge pages where the system has them.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::MmapMut;

use crate::arena::ArenaError;

/// `len` values, zero at first. Pages are taken when they are first written.
///
/// A mapping rather than a vector: with huge pages, an access at random into megabytes of
/// bookkeeping does not miss the page tables as well.
pub(crate) struct PageVec<T> {
    memory: MmapMut,
    values: PhantomData<T>,
}

impl<T: Pod> PageVec<T> {
    pub(crate) fn new(len: usize) -> Result<Self, ArenaError> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(ArenaError::TooLarge {
            n_slots: u32::try_from(len).unwrap_or(u32::MAX),
            row_bytes: size_of::<T>(),
        })?;
        let memory =
            MmapMut::map_anon(bytes).map_err(|source| ArenaError::Reserve { bytes, source })?;
        #[cfg(target_os = "linux")]
        let _only_slower_without = memory.advise(memmap2::Advice::HugePage);
        Ok(Self { memory, values: PhantomData })
    }

    pub(crate) fn filled(len: usize, value: T) -> Result<Self, ArenaError> {
        let mut values = Self::new(len)?;
        values.fill(value);
        Ok(values)
    }

    /// Memory of the values, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.len()
    }
}

impl<T: Pod> Deref for PageVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.memory)
    }
}

impl<T: Pod> DerefMut for PageVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.memory)
    }
}
