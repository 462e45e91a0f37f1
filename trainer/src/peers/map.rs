//! Memory that several processes write to: the one place of this crate with `unsafe`.

use std::{fs::File, io, slice, sync::atomic::AtomicU32};

use memmap2::{MmapOptions, MmapRaw};

/// A file mapped by several processes, as atomic words.
#[derive(Debug)]
pub(super) struct SharedWords {
    map: MmapRaw,
    n_words: usize,
}

impl SharedWords {
    /// Maps the first `n_words` words of `file`, which must have them.
    pub(super) fn of(file: &File, n_words: usize) -> io::Result<Self> {
        let n_bytes = size_of::<u32>() * n_words;
        let found_bytes = file.metadata()?.len();
        if found_bytes < n_bytes as u64 {
            let what = format!("{found_bytes} bytes where {n_bytes} are expected");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let map = MmapOptions::new().len(n_bytes).map_raw(file)?;
        Ok(Self { map, n_words })
    }

    /// The words.
    #[expect(unsafe_code, reason = "words of a map cannot be reached without it")]
    pub(super) fn words(&self) -> &[AtomicU32] {
        let start = self.map.as_mut_ptr().cast::<AtomicU32>();
        // SAFETY: the map starts on a page, so that words are aligned; it has `n_words` of them and
        // lives as long as the slice. Any bits are a word, and they are only ever reached as atomics,
        // by every process, so that no access is a data race. Whoever made the file has sealed its
        // size: no part of the map goes away.
        unsafe { slice::from_raw_parts(start, self.n_words) }
    }
}
