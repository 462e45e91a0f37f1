//! Read-only memory maps of whole files: the one place of this crate with `unsafe`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use memmap2::Mmap;

#[cfg(target_endian = "big")]
compile_error!("files are little-endian and are used in place; big-endian machines need a port");

/// Maps all bytes that the file has now; none for an empty file.
#[expect(unsafe_code, reason = "a memory map cannot be made without it")]
pub(crate) fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is private to its owner and only read. Another process that writes to the
    // file changes what is read, which the types used over it (plain integers) allow; one that
    // truncates it makes a later read fault (SIGBUS), which ends the process rather than giving
    // wrong bytes. Files of a graph are written once, under another name, and renamed.
    unsafe { Mmap::map(file) }
}

/// An array of numbers: owned, or a part of a mapped file.
#[derive(Debug)]
pub(crate) enum Section<T> {
    /// In memory.
    Owned(Vec<T>),
    /// Bytes of a mapped file; their bounds and alignment were checked by [`Section::mapped`].
    Mapped(Arc<Mmap>, Range<usize>),
}

impl<T: Pod> Section<T> {
    /// Returns the bytes `range` of `map` as numbers; `None` when out of bounds or not aligned.
    pub(crate) fn mapped(map: &Arc<Mmap>, range: Range<usize>) -> Option<Self> {
        bytemuck::try_cast_slice::<u8, T>(map.get(range.clone())?).ok()?;
        Some(Self::Mapped(Arc::clone(map), range))
    }

    /// Returns the numbers.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::Owned(values) => values,
            Self::Mapped(map, range) => bytemuck::cast_slice(&map[range.clone()]),
        }
    }
}

/// Returns the numbers that `bytes` hold; a last incomplete one is left out.
pub(crate) fn numbers<T: Pod>(bytes: &[u8]) -> Vec<T> {
    let mut numbers = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    let whole_bytes = size_of_val(numbers.as_slice());
    bytemuck::cast_slice_mut(&mut numbers).copy_from_slice(&bytes[..whole_bytes]);
    numbers
}
