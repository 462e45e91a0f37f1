//! Memory that clients of this machine read rows from: the one place of this crate with `unsafe`.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lodestore_schema::limits::{LENT_PAGE_BYTES, LENT_SLACK_BYTES};
use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

/// What nobody can do to the memory any more, this process included: change its size, write to it
/// other than by the mapping that is there already, take these seals off.
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
}

impl TierFile {
    /// Memory for the rows of a tier, all zeros, and its file.
    ///
    /// Pages are taken as they are written. So it fails where the system promises no more memory than it
    /// has: a page that cannot be had later would be a SIGBUS there, and not, as that of private memory,
    /// an error now.
    #[expect(unsafe_code, reason = "a map that is written to cannot be made otherwise")]
    pub(crate) fn new(n_bytes: usize) -> io::Result<(MmapMut, Self)> {
        if std::fs::read("/proc/sys/vm/overcommit_memory")?.first() == Some(&b'2') {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create(c"lodestore-tier", flags)?);
        let file_bytes = n_bytes.checked_add(LENT_SLACK_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        file.set_len(file_bytes as u64)?;
        // SAFETY: as in `Region::new`: the file is nobody else's until its seals make a mapping of it
        // the only one that writes, and its size stays.
        let map = |offset: usize| unsafe {
            MmapOptions::new().offset(offset as u64).len(n_bytes).map_mut(&file)
        };
        // A huge page wants a place in the file as far from a multiple of its size as that in memory;
        // most often the next mapping of a length comes to where the one before was.
        let address = map(0)?.as_ptr().addr();
        let offset = LENT_PAGE_BYTES + address % LENT_PAGE_BYTES;
        let memory = map(offset)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let start = memory.as_ptr().addr();
        Ok((memory, Self { file, offset, n_bytes, start, n_huge: Cell::new(0) }))
    }

    /// Takes the bytes up to `end` in huge pages, where they have none yet and the system has some: a
    /// page of files in memory is a small one otherwise, whoever asks for what (`shmem_enabled`), and
    /// costs every copy of a row more.
    pub(crate) fn take_huge_pages(&self, end: usize) {
        let first = self.start.next_multiple_of(LENT_PAGE_BYTES);
        let all_end = self.start + self.n_bytes;
        let mut page = first + self.n_huge.get() * LENT_PAGE_BYTES;
        while page < self.start + end && page + LENT_PAGE_BYTES <= all_end {
            collapse(page);
            self.n_huge.set(self.n_huge.get() + 1);
            page += LENT_PAGE_BYTES;
        }
    }

    /// The file, where the rows begin in it, and their bytes.
    pub(crate) fn place(&self) -> (BorrowedFd<'_>, u64, u64) {
        (self.file.as_fd(), self.offset as u64, self.n_bytes as u64)
    }
}

/// Makes one huge page of the memory at an address, where the system has one.
#[expect(unsafe_code, reason = "advice that memmap2 does not know")]
fn collapse(address: usize) {
    // Since Linux 6.1.
    const MADV_COLLAPSE: libc::c_int = 25;
    let advise = |n_bytes, advice| {
        let page = std::ptr::without_provenance_mut(address);
        // SAFETY: neither advice changes what any memory holds, or that it is there; an address
        // without memory is refused.
        unsafe { libc::madvise(page, n_bytes, advice) }
    };
    // What has no page at all is refused as well.
    advise(1, libc::MADV_POPULATE_READ);
    advise(LENT_PAGE_BYTES, MADV_COLLAPSE);
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
        // All of it now: a page that cannot be had later would be a SIGBUS.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, n_bytes as u64)?;
        // SAFETY: nobody else has the file yet, and before anybody gets it the seals below let this
        // mapping be the only one that writes, so that bytes change through `self` alone. The size
        // never changes. What another process reads meanwhile is its own affair.
        let map = unsafe { MmapOptions::new().len(n_bytes).populate().map_mut(&file) }?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok((Self { map }, file.into()))
    }

    /// All of it.
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
        tier.take_huge_pages(n_bytes / 2);
        tier.take_huge_pages(n_bytes / 2 - 1);
        assert_eq!(
            tier.n_huge.get(),
            3 - usize::from(tier.start % LENT_PAGE_BYTES >= LENT_PAGE_BYTES / 2 + 1)
        );
        tier.take_huge_pages(usize::MAX / 2);
        assert_eq!(tier.n_huge.get(), 4 + usize::from(tier.start % LENT_PAGE_BYTES == 0));
        memory[n_bytes - 1] = 7;
        let (descriptor, offset, found_bytes) = tier.place();
        assert_eq!(found_bytes, n_bytes as u64);
        let file = File::from(descriptor.try_clone_to_owned().unwrap());
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset + n_bytes as u64 - 1).unwrap();
        assert_eq!(byte, [7]);
        assert!(file.write_at(&[1], offset).is_err() && file.set_len(0).is_err());
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let of_tier = maps.split("lodestore-tier").nth(1).unwrap();
        let huge = of_tier.lines().find(|line| line.starts_with("ShmemPmdMapped")).unwrap();
        if huge.contains(" 0 kB") {
            println!("SKIPPED: this system has given no huge pages: {huge}");
        }
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
