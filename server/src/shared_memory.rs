//! Memory that clients of this machine map to read rows: the only `unsafe` code of this crate.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use lodestore_schema::limits::{LENT_PAGE_BYTES, LENT_SLACK_BYTES};
use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::process::{Resource, getrlimit};

/// Mappings to try for an address that allows huge pages.
const PLACES_TRIED: usize = 8;
/// Maximum time of one collapse, which runs on a shard's thread and waits for work on every core.
const COLLAPSE_MAX: Duration = Duration::from_millis(20);
/// Failed or slow collapses after which a tier stays with small pages.
const REFUSED_MAX: usize = 8;

/// Seals of the memory, which bind this process too: the size is fixed, the existing mapping is the
/// only writable one, and the seals cannot be removed.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// The file of a tier's rows, which other processes map.
pub(crate) struct TierFile {
    file: File,
    /// Offset of the rows in the file.
    offset: usize,
    n_bytes: usize,
    /// Address of the rows in this process.
    start: usize,
    n_huge: Cell<usize>,
    /// Collapses that failed, or that took longer than a shard may stall.
    n_refused: Cell<usize>,
}

impl TierFile {
    /// Returns zeroed memory for the rows of a tier, and its file.
    ///
    /// Pages are allocated when they are first written, and a page that the system cannot provide
    /// then raises SIGBUS. So this fails under strict overcommit (`vm.overcommit_memory` 2), where
    /// private memory would fail with an error here.
    #[expect(unsafe_code, reason = "a map that is written to cannot be made otherwise")]
    pub(crate) fn new(n_bytes: usize) -> io::Result<(MmapMut, Self)> {
        let unsupported = |why: String| Err(io::Error::new(io::ErrorKind::Unsupported, why));
        let overcommit = std::fs::read("/proc/sys/vm/overcommit_memory").unwrap_or_default();
        if overcommit.first() == Some(&b'2') {
            return unsupported("vm.overcommit_memory is 2".to_owned());
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create(c"lodestore-tier", flags)?);
        let file_bytes = n_bytes.checked_add(LENT_SLACK_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        // Beyond this limit the system sends a signal that ends the process, instead of an error.
        let most = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        if file_bytes as u64 > most {
            return unsupported(format!(
                "the limit on file size is {most} bytes (ulimit -f, LimitFSIZE)"
            ));
        }
        file.set_len(file_bytes as u64)?;
        // SAFETY: as in `Region::new`: no other process has the file before its seals fix its size
        // and make this mapping the only writable one.
        let map = |offset: usize| unsafe {
            MmapOptions::new().offset(offset as u64).len(n_bytes).map_mut(&file)
        };
        // A huge page needs the same offset within its size in the file as in memory. The next
        // mapping of a length usually gets the address of the previous one.
        let within = |memory: &MmapMut| memory.as_ptr().addr() % LENT_PAGE_BYTES;
        let (mut memory, mut offset) = (map(LENT_PAGE_BYTES)?, LENT_PAGE_BYTES);
        for _ in 0..PLACES_TRIED {
            if within(&memory) == offset % LENT_PAGE_BYTES {
                break;
            }
            offset = LENT_PAGE_BYTES + within(&memory);
            drop(memory);
            memory = map(offset)?;
        }
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let start = memory.as_ptr().addr();
        let (n_huge, n_refused) = (Cell::new(0), Cell::new(0));
        Ok((memory, Self { file, offset, n_bytes, start, n_huge, n_refused }))
    }

    /// Backs the bytes up to `end` by huge pages, where they have none and the system has some.
    /// Otherwise pages of a memory file are small, whatever `shmem_enabled` is, and each copy of a
    /// row costs more.
    pub(crate) fn take_huge_pages(&self, end: usize) {
        let first = self.start.next_multiple_of(LENT_PAGE_BYTES);
        let all_end = self.start + self.n_bytes;
        let mut page = first + self.n_huge.get() * LENT_PAGE_BYTES;
        while page < self.start + end && page + LENT_PAGE_BYTES <= all_end {
            if self.n_refused.get() == REFUSED_MAX {
                return;
            }
            let begun = Instant::now();
            if collapse(page).is_err() || begun.elapsed() > COLLAPSE_MAX {
                self.n_refused.set(self.n_refused.get() + 1);
            }
            self.n_huge.set(self.n_huge.get() + 1);
            page += LENT_PAGE_BYTES;
        }
    }

    /// Returns the file opened for reading, the offset of the rows in it, and their bytes.
    pub(crate) fn place(&self) -> io::Result<(OwnedFd, u64, u64)> {
        // With a writable descriptor a client could make the file use all its memory.
        let file = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        Ok((file.into(), self.offset as u64, self.n_bytes as u64))
    }
}

/// Collapses the memory at an address into one huge page, if the system has one.
#[expect(unsafe_code, reason = "advice that memmap2 does not know")]
fn collapse(address: usize) -> io::Result<()> {
    // Since Linux 6.1.
    const MADV_COLLAPSE: libc::c_int = 25;
    let advise = |n_bytes, advice| {
        let page = std::ptr::without_provenance_mut(address);
        // SAFETY: neither advice changes the content of memory or unmaps it. An unmapped address
        // fails.
        unsafe { libc::madvise(page, n_bytes, advice) }
    };
    // Collapse also fails for memory without any page, so one is populated first.
    match (advise(1, libc::MADV_POPULATE_READ), advise(LENT_PAGE_BYTES, MADV_COLLAPSE)) {
        (_, 0) => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Memory that only this process writes, and that others may map for reading.
pub(crate) struct Region {
    map: MmapMut,
}

impl Region {
    /// Allocates `n_bytes`; returns the memory and the descriptor by which another process maps it.
    ///
    /// Fails if the system lacks memory for all bytes, or (before Linux 5.1) cannot seal the file
    /// against writers.
    #[expect(unsafe_code, reason = "a map that is written to cannot be made otherwise")]
    pub(crate) fn new(n_bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create(c"lodestore-rows", flags)?);
        // Allocates all pages now: a page that cannot be allocated later would raise SIGBUS.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, n_bytes as u64)?;
        // SAFETY: no other process has the file yet. Before one gets it, the seals below make this
        // mapping the only writable one, so bytes change only through `self`, and fix the size.
        // Readers in other processes do not affect this one.
        let map = unsafe { MmapOptions::new().len(n_bytes).populate().map_mut(&file) }?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok((Self { map }, file.into()))
    }

    /// Returns all bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn the_file_of_a_tier_has_its_rows_and_huge_pages_if_available() {
        let n_bytes = 5 * LENT_PAGE_BYTES;
        let (mut memory, tier) = TierFile::new(n_bytes).unwrap();
        let first = tier.start.next_multiple_of(LENT_PAGE_BYTES);
        assert_eq!(
            (tier.start - tier.offset) % LENT_PAGE_BYTES,
            0,
            "none of 8 mappings allows huge pages"
        );
        tier.take_huge_pages(first - tier.start + 1);
        tier.take_huge_pages(first - tier.start + LENT_PAGE_BYTES);
        assert_eq!(tier.n_huge.get(), 1);
        memory[n_bytes - 1] = 7;
        tier.take_huge_pages(usize::MAX / 2);
        assert_eq!(tier.n_huge.get(), (tier.start + n_bytes - first) / LENT_PAGE_BYTES);
        let (descriptor, offset, found_bytes) = tier.place().unwrap();
        assert_eq!(found_bytes, n_bytes as u64);
        let file = File::from(descriptor);
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset + n_bytes as u64 - 1).unwrap();
        assert_eq!(byte, [7]);
        assert!(file.write_at(&[1], offset).is_err() && file.set_len(0).is_err());
        assert!(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).is_err());
        // For mapped memory this fails only for lack of huge pages, or before Linux 6.1.
        match collapse(first).map_err(|error| error.raw_os_error()) {
            Ok(()) => {}
            Err(Some(libc::EINVAL | libc::ENOMEM | libc::EAGAIN | libc::EBUSY)) => {
                println!("SKIPPED: this system has no huge pages");
            }
            Err(other) => panic!("{other:?}"),
        }
        assert!(collapse(1 << 30 | 1).is_err());
    }

    #[test]
    fn a_descriptor_allows_reads_and_neither_writes_nor_truncation() {
        let (mut region, descriptor) = Region::new(8192).unwrap();
        let file = File::from(descriptor);
        region.bytes_mut()[8191] = 7;
        let mut byte = [0];
        file.read_exact_at(&mut byte, 8191).unwrap();
        assert_eq!(byte, [7]);
        assert!(file.write_at(&[1], 0).is_err());
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
        assert!(MmapOptions::new().len(8192).map_raw(&file).is_err());
        assert!(MmapOptions::new().len(8192).map_raw_read_only(&file).is_ok());
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&file, hole, 0, 8192).is_err());
        assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).is_err());
        assert_eq!(region.bytes_mut()[8191], 7);
    }
}
