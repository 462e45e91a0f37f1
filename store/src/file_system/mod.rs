//! Where a graph's files and key-value stores live: the one seam between the store and a disk.
//!
//! Everything that the store writes, and everything that it reads but for the fast readers of an
//! open file, goes through [`FileSystem`]. [`Disk`] is the file system; tests have file systems
//! that lose what was not synced, tear it, or fail.

#[cfg(any(test, feature = "testing"))]
pub mod crash;
mod disk;
mod locks;
mod moves;
#[cfg(any(test, feature = "testing"))]
pub mod nfs;
mod rocks;

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use disk::Disk;
pub(crate) use locks::LOCK_FILE;

/// A lock that is held until it is dropped, or the process ends.
pub type Guard = Box<dyn Debug + Send + Sync>;

/// A file system with key-value stores in some of its folders.
///
/// Invariant: what `sync` has returned for is there after a crash; what it has not may be there,
/// be gone, or be half there.
pub trait FileSystem: Debug + Send + Sync {
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>>;

    /// Creates a file for writing; fails if anything is at `path`.
    fn create(&self, path: &Path) -> io::Result<Box<dyn FileWriter>>;

    /// Creates a folder, if it is not there yet; its parent must be.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Names in a folder, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>>;

    /// Returns whether anything is at `path`, a broken link included.
    fn exists(&self, path: &Path) -> bool;

    /// Moves a file or folder within the file system; fails if `to` exists. A crash leaves one
    /// name, or both of a file where the file system knows no other way.
    ///
    /// Fails with [`io::ErrorKind::Unsupported`] where a file cannot be moved so.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Moves a file over `to`, atomically, whatever is there.
    fn replace(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a file that no open file has pinned, in any process; returns whether it is gone.
    /// Until its name is gone no other open file can pin it.
    fn remove_if_unpinned(&self, path: &Path) -> io::Result<bool>;

    /// Removes a folder and all below it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes durable what a file holds, or which names a folder holds.
    fn sync(&self, path: &Path) -> io::Result<()>;

    /// Returns whether a sync takes time, so that it pays to wait for several concurrently.
    fn waits(&self) -> bool {
        true
    }

    /// Returns how many files this process may have open; `None` without a bound.
    fn max_files(&self) -> Option<u64> {
        None
    }

    /// Locks a folder, or fails with [`io::ErrorKind::WouldBlock`] while it is locked, in any
    /// process. It changes nothing on the file system, but for an empty file of its own in the
    /// folder where the file system locks no folders.
    ///
    /// Fails with [`io::ErrorKind::Unsupported`] where the file system has no locks.
    /// Where no other process sees the file system, the locks of its key-value stores are enough.
    fn lock(&self, _dir: &Path) -> io::Result<Guard> {
        Ok(Box::new(()))
    }

    /// Opens the key-value store in folder `dir`.
    ///
    /// For [`Access::Write`] fails with [`io::ErrorKind::WouldBlock`] while another handle has it
    /// open for writing, in any process, and with [`io::ErrorKind::TooManyLinks`] where a copy by
    /// hard links shares a file that is written in place.
    fn key_values(&self, dir: &Path, access: Access) -> io::Result<Box<dyn KeyValues>>;
}

/// A name in a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name; names that are not UTF-8 are not ours, and are replaced lossily.
    pub name: String,
    /// Whether it is a folder.
    pub is_dir: bool,
}

/// A file that a store changes in place, and that has other names: a copy by hard links shares it.
#[derive(Debug, Error)]
#[error("{}: {n_links} hard links", file.display())]
pub(crate) struct HardLinks {
    pub(crate) file: PathBuf,
    pub(crate) n_links: u64,
}

impl HardLinks {
    /// Returns what an error of the opening of a store says of hard links, if it is about them.
    pub(crate) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// An open file, read at positions.
pub trait FileReader: Debug + Send + Sync {
    /// Returns the bytes of the file.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Reads some bytes at `offset`, 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Fills `buffer` from `offset`, or fails.
    fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    buffer = &mut buffer[n..];
                    offset += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Drops the pages of the file that memory holds and that are synced, so that the next reads
    /// come from the disk. Best effort: a file system in memory has no other place.
    fn drop_cached(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns the system's handle, for maps and direct reads; a simulated file system has none.
    fn as_file(&self) -> Option<&File>;

    /// Marks the file as read from while it stays open, which keeps it from being deleted.
    ///
    /// Fails with [`io::ErrorKind::WouldBlock`] while another process finds out whether it is
    /// pinned.
    fn pin(&self) -> io::Result<()>;
}

/// A file that is being written, front to back.
pub trait FileWriter: Debug + Send {
    /// Appends all of `bytes`.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes durable what was appended; the file's name is its folder's matter.
    fn sync(&mut self) -> io::Result<()>;
}

/// How a key-value store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For writing, where there must be none.
    Create,
    /// For writing, by one process at a time.
    Write,
    /// For reading: no lock, no file written, any number of processes.
    Read,
    /// As for reading, and if the log is damaged, the state up to the damage.
    Salvage,
}

/// Callback that receives each key and value of a scan, until it breaks.
pub type EachPair<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Ordered pairs of bytes with atomic, durable batches.
pub trait KeyValues: Debug + Send + Sync {
    /// Returns the value of `key`.
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>>;

    /// Passes the pairs from `key` on, which need not be there, to `each`, ascending, until it
    /// breaks.
    fn scan_from(&self, key: &[u8], each: &mut EachPair<'_>) -> io::Result<()>;

    /// Applies all changes or none, in their order; durable when it returns.
    fn write(&self, changes: &[Change]) -> io::Result<()>;

    /// Moves what is in the log into tables, so that a reader has nothing to replay.
    fn flush(&self) -> io::Result<()>;

    /// Opens the pairs again after a failed write, so that they take others. Every write that has
    /// returned is there. No failed write is, except that one which removes a range may be there as
    /// a whole. Reads wait meanwhile. Nothing happens while no write has failed.
    ///
    /// After an error pairs can be read and take no writes, as before.
    fn recover(&self) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "it cannot be opened again in place"))
    }

    /// Frees the space of removed keys, from the first to before the second, where that is worth
    /// the work. Changes no pair that is there.
    fn reclaim(&self, _from: &[u8], _to: &[u8]) {}
}

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets the value of a key.
    Put(Vec<u8>, Vec<u8>),
    /// Removes a key, if it is there.
    Delete(Vec<u8>),
    /// Removes all keys from the first to before the second.
    DeleteRange(Vec<u8>, Vec<u8>),
}

impl Change {
    /// Returns the change that sets a key to this value, or removes it.
    pub(crate) fn set(key: Vec<u8>, value: Option<Vec<u8>>) -> Self {
        match value {
            Some(value) => Self::Put(key, value),
            None => Self::Delete(key),
        }
    }

    /// Returns whether it removes keys that it does not name, so that nothing can take it back.
    pub(crate) fn is_range(&self) -> bool {
        matches!(self, Self::DeleteRange(..))
    }
}
