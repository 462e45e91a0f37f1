//! Memory that clients of this machine read rows from: the one place of this crate with `unsafe`.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

/// What nobody can do to the memory any more, this process included: change its size, write to it
/// other than by the mapping that is there already, take these seals off.
const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Memory for the rows of a tier, all zeros, and the descriptor by which another process reads it.
///
/// Pages are taken as they are written. So it fails where the system promises no more memory than it
/// has: a page that cannot be had later would be a SIGBUS there, and not, as that of private memory, an
/// error now.
#[expect(unsafe_code, reason = "a map that is written to cannot be made otherwise")]
pub(crate) fn tier_memory(n_bytes: usize) -> io::Result<(MmapMut, OwnedFd)> {
    if std::fs::read("/proc/sys/vm/overcommit_memory")?.first() == Some(&b'2') {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create(c"lodestore-tier", flags)?);
    file.set_len(n_bytes as u64)?;
    // SAFETY: as in `Region::new`: the file is nobody else's until its seals make this mapping the
    // only one that writes, and its size stays.
    let map = unsafe { MmapOptions::new().len(n_bytes).map_mut(&file) }?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok((map, file.into()))
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
