//! Read-only memory maps: the one place of this crate that needs `unsafe`.

use std::fs::File;
use std::io;
use std::ops::Deref;

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
}

impl Deref for FileMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
