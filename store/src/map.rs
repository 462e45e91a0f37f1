//! Read-only memory maps: the one place of this crate that needs `unsafe`.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering};

/// A file's bytes, mapped.
///
/// The files mapped here are inputs of an import or immutable segments. Cutting one short while it
/// is mapped ends the process with SIGBUS, as it does for every user of maps.
#[derive(Debug)]
pub(crate) struct FileMap {
    map: memmap2::Mmap,
}

impl FileMap {
    /// Maps the whole of an open file; the map outlives the handle.
    #[expect(unsafe_code, reason = "a map cannot be made otherwise")]
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        // SAFETY: the map is private to this type and only ever read as bytes, for which every bit
        // pattern is valid. Files are not changed while they are mapped (see above); page checksums
        // catch a change made before a page's first use.
        let map = unsafe { memmap2::Mmap::map(file) }?;
        Ok(Self { map })
    }

    /// Advises the system of random reads, in a file that stays in memory once it is there, or does
    /// not.
    ///
    /// Resident files are read and mapped in huge pages where the file system has them. Random rows
    /// of 400 bytes then arrive 1.3 to 1.5 times as fast. Other files are read by single pages,
    /// since their surroundings are evicted before use.
    pub(crate) fn expect_random_reads(&self, stays_in_memory: bool) {
        let advice =
            if stays_in_memory { memmap2::Advice::HugePage } else { memmap2::Advice::Random };
        // Advice that the system does not take costs speed only.
        let _ = self.map.advise(advice);
    }

    /// Brings bytes into memory, so that a disk that cannot read them is an error here and no
    /// SIGBUS where they are touched. Costs what the first touch would.
    ///
    /// Kernels before 5.14 cannot: there the touch has to do. Nor does it help once the system has
    /// thrown a page away and reads it again.
    pub(crate) fn bring_in(&self, bytes: Range<usize>) -> io::Result<()> {
        static CANNOT: AtomicBool = AtomicBool::new(false);
        if CANNOT.load(Ordering::Relaxed) {
            return Ok(());
        }
        let brought =
            self.map.advise_range(memmap2::Advice::PopulateRead, bytes.start, bytes.len());
        match brought {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                CANNOT.store(true, Ordering::Relaxed);
                Ok(())
            }
            brought => brought,
        }
    }
}

impl Deref for FileMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
