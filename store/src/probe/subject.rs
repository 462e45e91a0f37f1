//! The file that the probe reads: one that is there, or one that it writes, without a name so that
//! nothing stays behind.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::splitmix64;

use super::cell::random_start;
use crate::error::StoreError;
use crate::ring::ReadFile;

/// Size of the file where there is room for it: larger than the caches within disks.
const DEFAULT_BYTES: u64 = 1 << 30;

/// Smallest file worth reading.
const MIN_BYTES: u64 = 4 << 20;

/// The file is written in pieces of this size, and is a multiple of it.
const PIECE_BYTES: usize = 1 << 20;

/// A file to read at random.
pub(super) struct Subject {
    pub(super) file: Arc<ReadFile>,
    pub(super) n_bytes: u64,
    /// Whether the probe wrote it.
    pub(super) is_written: bool,
}

/// Opens a file that is there, and drops what the page cache holds of it.
pub(super) fn open(path: &Path) -> Result<Subject, StoreError> {
    let file = File::open(path).map_err(StoreError::io(path, "open"))?;
    let n_bytes = file.metadata().map_err(StoreError::io(path, "look at"))?.len();
    let n_bytes = check_size(path, n_bytes - n_bytes % PIECE_BYTES as u64)?;
    drop_cached(&file).map_err(StoreError::io(path, "look at"))?;
    let opened = ReadFile::open(path, &file).map_err(StoreError::io(path, "open"))?;
    Ok(Subject { file: Arc::new(opened), n_bytes, is_written: false })
}

/// Writes the file in `dir` and syncs it.
pub(super) fn write(
    dir: &Path,
    n_bytes: Option<u64>,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Subject, StoreError> {
    let n_bytes = match n_bytes {
        Some(n_bytes) => n_bytes,
        None => DEFAULT_BYTES.min(free_bytes(dir).map_err(StoreError::io(dir, "look at"))? / 4),
    };
    let n_bytes = check_size(dir, n_bytes - n_bytes % PIECE_BYTES as u64)?;
    let mut file = tempfile::tempfile_in(dir).map_err(StoreError::io(dir, "create a file in"))?;
    write_random(&mut file, n_bytes, progress).map_err(StoreError::io(dir, "write a file in"))?;
    // It has no name, so it is opened again through the one handle that there is.
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let opened = ReadFile::open(&path, &file).map_err(StoreError::io(dir, "read a file in"))?;
    Ok(Subject { file: Arc::new(opened), n_bytes, is_written: true })
}

fn check_size(path: &Path, n_bytes: u64) -> Result<u64, StoreError> {
    if n_bytes >= MIN_BYTES {
        return Ok(n_bytes);
    }
    let reason = format!(
        "a file of {n_bytes} bytes is too small to measure with, {MIN_BYTES} are needed; free some \
         space or measure another folder on the same device"
    );
    Err(StoreError::io(path, "measure")(io::Error::other(reason)))
}

/// Drops the file from the page cache, for file systems that read through it all the same.
fn drop_cached(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// Fills a file with bytes that no disk can compress or deduplicate.
fn write_random(
    file: &mut File,
    n_bytes: u64,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> io::Result<()> {
    let mut piece = vec![0u8; PIECE_BYTES];
    let mut state = random_start();
    for done in (0..n_bytes).step_by(PIECE_BYTES) {
        progress("write", done, n_bytes);
        for word in piece.as_chunks_mut::<8>().0 {
            state = splitmix64(state);
            *word = state.to_le_bytes();
        }
        file.write_all(&piece)?;
    }
    progress("write", n_bytes, n_bytes);
    file.sync_all()?;
    drop_cached(file)
}

fn free_bytes(dir: &Path) -> io::Result<u64> {
    let system = rustix::fs::statvfs(dir)?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}
