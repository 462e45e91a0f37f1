//! Mapped memory of a server on this machine. The only module of this crate with `unsafe`.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use lodestore_graph::prefetch::prefetch_lines;
use lodestore_schema::limits::{LENT_BYTES_MAX, LENT_PAGE_BYTES, SHARED_BYTES_MAX};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::SealFlags;
use thiserror::Error;

/// Bytes of rows that are prefetched while one row is copied. A core can wait for that many
/// concurrently, and they are still in its L1 cache when they are copied.
const AHEAD_BYTES: usize = 4 << 10;

/// A slot that is outside its memory.
#[derive(Debug, Error)]
#[error("slot {slot} is out of range: the memory has {n_slots} slots")]
pub(crate) struct BadSlot {
    slot: usize,
    n_slots: usize,
}

/// Memory of a server, mapped read-only.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    map: MmapRaw,
    /// Where the memory begins in the map.
    start: usize,
    n_bytes: usize,
}

impl SharedMemory {
    /// Maps `n_bytes` of the memory to which a server copies rows. Fails unless its size is sealed:
    /// reading truncated memory would end this process.
    pub(crate) fn of(descriptor: OwnedFd, n_bytes: usize) -> io::Result<Self> {
        let file = File::from(descriptor);
        check(&file, SHARED_BYTES_MAX as u64, 0, n_bytes as u64)?;
        let map = MmapOptions::new().len(n_bytes).populate().map_raw_read_only(&file)?;
        Ok(Self { map, start: 0, n_bytes })
    }

    /// Maps the memory in which a server keeps rows, from `offset` on. Does not read it.
    pub(crate) fn of_tier(descriptor: OwnedFd, offset: u64, n_bytes: u64) -> io::Result<Self> {
        let file = File::from(descriptor);
        let file_bytes = check(&file, LENT_BYTES_MAX, offset, n_bytes)?;
        let too_long = |_| io::Error::from(io::ErrorKind::OutOfMemory);
        let (offset, n_bytes): (usize, usize) =
            (offset.try_into().map_err(too_long)?, n_bytes.try_into().map_err(too_long)?);
        let file_bytes: usize = file_bytes.try_into().map_err(too_long)?;
        let map = |start: usize, n_bytes| {
            MmapOptions::new().offset(start as u64).len(n_bytes).map_raw_read_only(&file)
        };
        // For huge pages, the address must have the same remainder modulo their size as the offset
        // in the file. The next mapping of the same length mostly gets the same address.
        let len = file_bytes - file_bytes.min(LENT_PAGE_BYTES);
        let first = if len == 0 { 0 } else { map(0, len)?.as_ptr().addr() % LENT_PAGE_BYTES };
        if first <= offset && offset - first + n_bytes <= len {
            return Ok(Self { map: map(first, len)?, start: offset - first, n_bytes });
        }
        Ok(Self { map: map(0, offset + n_bytes)?, start: offset, n_bytes })
    }

    pub(crate) fn len(&self) -> usize {
        self.n_bytes
    }

    /// Copies the rows in `slots` (u32, little-endian), each to its position in `out`.
    ///
    /// # Errors
    /// A slot is out of range; nothing was copied.
    ///
    /// # Panics
    ///
    /// If `out` has no row for a position.
    pub(crate) fn gather(
        &self,
        slots: &[[u8; 4]],
        row_bytes: usize,
        positions: impl Iterator<Item = usize>,
        out: &mut [u8],
    ) -> Result<(), BadSlot> {
        let slot_of = |slot: &[u8; 4]| u32::from_le_bytes(*slot) as usize;
        let n_slots = self.n_bytes / row_bytes.max(1);
        if let Some(slot) = slots.iter().map(slot_of).find(|&slot| slot >= n_slots) {
            return Err(BadSlot { slot, n_slots });
        }
        // Random rows are mostly not in the processor's cache, and copying alone waits for few of
        // them concurrently (benches/notes/server-pulls.md, Rows asked for ahead).
        let n_ahead = (AHEAD_BYTES / row_bytes.max(1)).max(1).min(slots.len());
        slots[..n_ahead].iter().for_each(|slot| self.prefetch(slot_of(slot), row_bytes));
        let mut ahead = slots[n_ahead..].iter();
        for (slot, position) in slots.iter().zip(positions) {
            if let Some(slot) = ahead.next() {
                self.prefetch(slot_of(slot), row_bytes);
            }
            let row = &mut out[position * row_bytes..][..row_bytes];
            self.copy_to(slot_of(slot) * row_bytes, row);
        }
        Ok(())
    }

    /// Prefetches a row. Of a long row only the start: the processor prefetches the rest.
    #[inline]
    fn prefetch(&self, slot: usize, row_bytes: usize) {
        let row = self.map.as_ptr().wrapping_add(self.start + slot * row_bytes);
        prefetch_lines(row, row_bytes.min(AHEAD_BYTES));
    }

    /// Copies the bytes from `start` on to `out`; they must be within the memory.
    #[expect(unsafe_code, reason = "what another process may change cannot be a slice")]
    pub(crate) fn copy_to(&self, start: usize, out: &mut [u8]) {
        let is_within = self.n_bytes.checked_sub(start).is_some_and(|left| out.len() <= left);
        assert!(is_within, "{} bytes from {start} on, of {}", out.len(), self.n_bytes);
        // SAFETY: the bytes are within the map, which lives as long as `self` and whose size is
        // sealed; `out` is memory of this process, and so none of it. No reference to the map is
        // made. The server may write while this copies if it breaks the wire's rules, and then the
        // rows are as wrong as it could have sent them.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.map.as_ptr().add(self.start + start),
                out.as_mut_ptr(),
                out.len(),
            );
        }
    }
}

/// Checks that a file has these bytes, and cannot shrink; returns its length.
fn check(file: &File, most: u64, offset: u64, n_bytes: u64) -> io::Result<u64> {
    let unfit = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    let end = offset.checked_add(n_bytes).filter(|&end| n_bytes > 0 && end <= most);
    let Some(end) = end else {
        return unfit(format!("{n_bytes} bytes from {offset} on; the limit is {most}"));
    };
    // Only memory files have seals.
    if !rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
        return unfit("the file can be truncated: its size is not sealed".to_owned());
    }
    let found_bytes = file.metadata()?.len();
    if found_bytes < end {
        return unfit(format!("{found_bytes} bytes where {end} are expected"));
    }
    Ok(found_bytes)
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
    fn memory_that_is_not_sealed_or_is_shorter_than_announced_is_not_mapped() {
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
    fn rows_are_found_wherever_they_begin_in_their_file() {
        let page = LENT_PAGE_BYTES as u64;
        for (file_bytes, offset, n_bytes) in [
            (8192, 0, 8192),
            (8192, 4096, 4096),
            (8192, 4095, 7),
            (page, page - 8, 8),
            (5 * page, page, page),
            (5 * page, page + 12_288, page),
            (5 * page, 0, 5 * page),
            (5 * page, 5 * page - 8, 8),
        ] {
            let file = memory(file_bytes, SealFlags::SHRINK);
            file.write_all_at(b"row", offset + n_bytes - 3).unwrap();
            let memory = SharedMemory::of_tier(file.into(), offset, n_bytes).unwrap();
            let mut out = [0; 3];
            memory.copy_to(n_bytes as usize - 3, &mut out);
            assert_eq!(&out, b"row", "{file_bytes} {offset} {n_bytes}");
            assert_eq!(memory.len() as u64, n_bytes);
        }
        for (offset, n_bytes) in [(0, 0), (1, 8192), (8192, 1), (u64::MAX, 2), (0, u64::MAX)] {
            let file = memory(8192, SealFlags::SHRINK).into();
            assert!(SharedMemory::of_tier(file, offset, n_bytes).is_err(), "{offset} {n_bytes}");
        }
    }

    #[test]
    fn bytes_are_read_as_written() {
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
