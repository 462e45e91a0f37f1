//! A file opened for direct reads.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Arena, pool};
use crate::limits::PAGE_BYTES;

/// A file whose reads bypass the page cache, or go through it where the file system insists.
#[derive(Debug)]
pub(crate) struct ReadFile {
    file: File,
    /// Different for every file that this process ever opened so.
    id: u64,
    is_direct: bool,
}

impl ReadFile {
    /// Opens the file at `path`, which must be the one that is open as `same`.
    pub(crate) fn open(path: &Path, same: &File) -> io::Result<Self> {
        let mut direct = OpenOptions::new();
        direct.read(true).custom_flags(OFlags::DIRECT.bits() as i32);
        let (file, is_direct) = match direct.open(path).and_then(reads_directly) {
            Ok(file) => (file, true),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                (File::open(path)?, false)
            }
            Err(error) => return Err(error),
        };
        let (found, expected) = (file.metadata()?, same.metadata()?);
        if (found.dev(), found.ino()) != (expected.dev(), expected.ino()) {
            return Err(io::Error::other("another file took its place meanwhile; open it again"));
        }
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only that no two are equal matters.
        Ok(Self { file, id: NEXT_ID.fetch_add(1, Ordering::Relaxed), is_direct })
    }

    /// Returns whether reads bypass the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Returns the open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for ReadFile {
    fn drop(&mut self) {
        // A ring that knows the file keeps it open, and with it the room on disk of a deleted one.
        pool::forget(self);
    }
}

/// Returns the file if it can be read directly: some file systems take the flag and refuse the
/// reads.
fn reads_directly(file: File) -> io::Result<File> {
    let mut arena = Arena::new(2 * PAGE_BYTES as usize)?;
    let page = arena.take(PAGE_BYTES as usize)?;
    match page.map(|mut page| file.read_at(page.bytes_mut(), 0)) {
        Some(Err(error)) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Err(error),
        // Any other fault shows again when rows are read, with its place.
        _ => Ok(file),
    }
}
