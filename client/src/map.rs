//! Memory of a server of this machine with rows in it: the one place of this crate with `unsafe`.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use lodestore_graph::prefetch::prefetch_lines;
use lodestore_schema::limits::{LENT_BYTES_MAX, SHARED_BYTES_MAX};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::SealFlags;

/// Bytes of rows that are on their way from memory while one is copied: what a core can wait for at
/// once, and few enough that they still are in its nearest cache when their turn comes.
const AHEAD_BYTES: usize = 4 << 10;

/// Memory of a server, mapped to be read.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    map: MmapRaw,
    n_bytes: usize,
}

impl SharedMemory {
    /// Maps `n_bytes` of what a server has sent, where it puts rows; an error unless it has so many for
    /// good: to touch what was cut off would end this process.
    pub(crate) fn of(descriptor: OwnedFd, n_bytes: usize) -> io::Result<Self> {
        Self::map(descriptor, n_bytes, SHARED_BYTES_MAX, MmapOptions::new().populate())
    }

    /// The same of the memory where it keeps rows. What of it has no pages yet gets none.
    pub(crate) fn of_tier(descriptor: OwnedFd, n_bytes: u64) -> io::Result<Self> {
        let (n_bytes, most) = (usize::try_from(n_bytes), usize::try_from(LENT_BYTES_MAX));
        let n_bytes = n_bytes.unwrap_or(usize::MAX);
        Self::map(descriptor, n_bytes, most.unwrap_or(usize::MAX), &MmapOptions::new())
    }

    fn map(
        descriptor: OwnedFd,
        n_bytes: usize,
        most: usize,
        options: &MmapOptions,
    ) -> io::Result<Self> {
        let unfit = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if n_bytes == 0 || n_bytes > most {
            return unfit(format!("{n_bytes} bytes; the limit is {most}"));
        }
        let file = File::from(descriptor);
        // Only files in memory have seals at all.
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return unfit("it can be cut short".to_owned());
        }
        let found_bytes = file.metadata()?.len();
        if found_bytes < n_bytes as u64 {
            return unfit(format!("{found_bytes} bytes where {n_bytes} are expected"));
        }
        let map = options.clone().len(n_bytes).map_raw_read_only(&file)?;
        Ok(Self { map, n_bytes })
    }

    /// Its length.
    pub(crate) fn len(&self) -> usize {
        self.n_bytes
    }

    /// Copies the rows in `slots`, each to its position in `out`; `false`, and nothing copied, where a
    /// slot is none.
    ///
    /// # Panics
    ///
    /// Unless there is a row in `out` for each position.
    pub(crate) fn gather(
        &self,
        slots: &[u32],
        row_bytes: usize,
        positions: impl Iterator<Item = usize>,
        out: &mut [u8],
    ) -> bool {
        let n_slots = self.n_bytes / row_bytes.max(1);
        if slots.iter().any(|&slot| slot as usize >= n_slots) {
            return false;
        }
        // Rows at random are mostly not in the processor's cache, and copying alone has it wait for
        // few of them at once (benches/RESULTS.md, Rows asked for ahead).
        let n_ahead = (AHEAD_BYTES / row_bytes.max(1)).max(1).min(slots.len());
        slots[..n_ahead].iter().for_each(|&slot| self.prefetch(slot as usize, row_bytes));
        let mut ahead = slots[n_ahead..].iter();
        for (&slot, position) in slots.iter().zip(positions) {
            if let Some(&slot) = ahead.next() {
                self.prefetch(slot as usize, row_bytes);
            }
            let row = &mut out[position * row_bytes..][..row_bytes];
            self.copy_to(slot as usize * row_bytes, row);
        }
        true
    }

    /// Tells the processor that a row will be needed, or the start of a long one, whose rest it guesses.
    #[inline]
    fn prefetch(&self, slot: usize, row_bytes: usize) {
        let start = self.map.as_ptr().wrapping_add(slot * row_bytes);
        prefetch_lines(start, row_bytes.min(AHEAD_BYTES));
    }

    /// Copies the bytes from `start` on that fill `out`; they must lie within.
    #[expect(unsafe_code, reason = "what another process may change cannot be a slice")]
    pub(crate) fn copy_to(&self, start: usize, out: &mut [u8]) {
        let is_within = self.n_bytes.checked_sub(start).is_some_and(|left| out.len() <= left);
        assert!(is_within, "{} bytes from {start} on, of {}", out.len(), self.n_bytes);
        // SAFETY: the bytes lie within the map, which lives as long as `self` and whose size is
        // sealed; `out` is memory of this process, and so none of it. No reference to the map is
        // made: the server may write while this copies if it breaks the wire's rules, and then the
        // rows are as wrong as it could have sent them.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.map.as_ptr().add(start),
                out.as_mut_ptr(),
                out.len(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    use super::*;

    fn memory(n_bytes: u64, seals: SealFlags) -> File {
        let file = File::from(memfd_create(c"rows", MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(n_bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn what_may_be_cut_short_or_is_shorter_than_told_is_not_mapped() {
        let sealed = || memory(8192, SealFlags::SHRINK);
        for (file, n_bytes) in [
            (memory(8192, SealFlags::GROW), 8192),
            (sealed(), 8193),
            (sealed(), 0),
            (sealed(), SHARED_BYTES_MAX + 1),
            (tempfile::tempfile().unwrap(), 4096),
            (File::open("/dev/zero").unwrap(), 4096),
        ] {
            assert!(SharedMemory::of(file.into(), n_bytes).is_err(), "{n_bytes}");
        }
    }

    #[test]
    fn bytes_come_out_as_they_were_put_in() {
        let file = memory(8192, SealFlags::SHRINK);
        let memory = SharedMemory::of(file.try_clone().unwrap().into(), 8192).unwrap();
        file.write_all_at(b"rows", 8188).unwrap();
        let mut out = [0; 4];
        memory.copy_to(8188, &mut out);
        assert_eq!(&out, b"rows");
        memory.copy_to(8192, &mut []);
        let past = |start| {
            let copy = || memory.copy_to(start, &mut [0; 5]);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(copy)).is_err()
        };
        assert!(past(8188) && past(8192) && past(usize::MAX));
    }
}
