//! Memory that clients of this machine read rows from: the one place of this crate with `unsafe`.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use lodestore_schema::limits::{LENT_PAGE_BYTES, LENT_SLACK_BYTES};
use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::process::{Resource, getrlimit};

/// Mappings until one is where huge pages can be.
const PLACES_TRIED: usize = 8;
/// Longest time that one may take: it is made on a shard's thread, and waits for work on every
/// core.
const COLLAPSE_MAX: Duration = Duration::from_millis(20);
/// Refusals, and pages that took too long, until a tier does with small ones.
const REFUSED_MAX: usize = 8;

/// Seals of the memory, which bind this process too. Its size is fixed, the existing mapping is the
/// only one that writes, and the seals cannot be removed.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// The file of a tier's rows, by which another process reads them.
pub(crate) struct TierFile {
    file: File,
    /// Where the rows begin in it.
    offset: usize,
    n_bytes: usize,
    /// Where they begin in this process, and how many huge pages they have, or were refused.
    start: usize,
    n_huge: Cell<usize>,
    /// Operations of these that were refused, or took longer than a shard may stall.
    n_refused: Cell<usize>,
}

impl TierFile {
    /// Returns memory for the rows of a tier, all zeros, and its file.
    ///
    /// Pages are allocated as they are written, and a page that the system cannot provide then is a
    /// SIGBUS. So this fails under strict overcommit (`vm.overcommit_memory` 2). Private memory
    /// would fail with an error now.
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
        // Past it there is no error, but a signal that ends the process.
        let most = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        if file_bytes as u64 > most {
            return unsupported(format!("files may have {most} bytes (ulimit -f, LimitFSIZE)"));
        }
        file.set_len(file_bytes as u64)?;
        // SAFETY: as in `Region::new`: no other process has the file until its seals make a mapping
        // of it the only one that writes, and its size stays.
        let map = |offset: usize| unsafe {
            MmapOptions::new().offset(offset as u64).len(n_bytes).map_mut(&file)
        };
        // A huge page wants a place in the file as far from a multiple of its size as that in
        // memory; most often the next mapping of a length comes to where the one before was.
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

    /// Backs the bytes up to `end` by huge pages, where they have none yet and the system has some.
    /// A page of a file in memory is a small one otherwise, whatever `shmem_enabled` is, and each
    /// copy of a row costs more.
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

    /// Returns the file, to be read, the offset of the rows in it, and their bytes.
    pub(crate) fn place(&self) -> io::Result<(OwnedFd, u64, u64)> {
        // A process that may write could still make it take all its memory.
        let file = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        Ok((file.into(), self.offset as u64, self.n_bytes as u64))
    }
}

/// Makes one huge page of the memory at an address, where the system has one.
#[expect(unsafe_code, reason = "advice that memmap2 does not know")]
fn collapse(address: usize) -> io::Result<()> {
    // Since Linux 6.1.
    const MADV_COLLAPSE: libc::c_int = 25;
    let advise = |n_bytes, advice| {
        let page = std::ptr::without_provenance_mut(address);
        // SAFETY: neither advice changes what any memory holds, or that it is there; an address
        // without memory is refused.
        unsafe { libc::madvise(page, n_bytes, advice) }
    };
    // What has no page at all is refused as well.
    match (advise(1, libc::MADV_POPULATE_READ), advise(LENT_PAGE_BYTES, MADV_COLLAPSE)) {
        (_, 0) => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Memory that this process alone writes to, and others may read.
pub(crate) struct Region {
    map: MmapMut,
}

impl Region {
    /// Makes memory of `n_bytes`, and the descriptor by which another process maps it.
    ///
    /// Fails where the system has no memory for all of it, or (before Linux 5.1) cannot keep others
    /// from writing.
    #[expect(unsafe_code, reason = "a map that is written to cannot be made otherwise")]
    pub(crate) fn new(n_bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create(c"lodestore-rows", flags)?);
        // All of it now: a page that cannot be allocated later would be a SIGBUS.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, n_bytes as u64)?;
        // SAFETY: no other process has the file yet, and before one gets it the seals below let
        // this mapping be the only one that writes, so that bytes change through `self` alone. The
        // size never changes. What another process reads meanwhile is its own affair.
        let map = unsafe { MmapOptions::new().len(n_bytes).populate().map_mut(&file) }?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok((Self { map }, file.into()))
    }

    /// Returns all of its bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn rows_of_a_tier_are_read_by_its_file_and_have_huge_pages_where_there_are_some() {
        let n_bytes = 5 * LENT_PAGE_BYTES;
        let (mut memory, tier) = TierFile::new(n_bytes).unwrap();
        let first = tier.start.next_multiple_of(LENT_PAGE_BYTES);
        assert_eq!((tier.start - tier.offset) % LENT_PAGE_BYTES, 0, "8 places, none of them fit");
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
        // Of memory that is there it is refused only for want of such pages, or before Linux 6.1.
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
    fn who_has_the_descriptor_reads_and_can_neither_write_nor_cut_short() {
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
