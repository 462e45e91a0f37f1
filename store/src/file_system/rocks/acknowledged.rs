//! How far the writes to a store are acknowledged, kept in a file beside its logs.
//!
//! RocksDB cannot tell a write that a crash cut off from a synced one that was damaged or cut off
//! later: both end a log. So the sequence number of the last synced write is written to a file of
//! its own after each write. A store that comes back with less has lost what was acknowledged. One
//! that comes back with as much has lost nothing, whatever its logs end in.
//!
//! The file is not synced: that would make each put take twice as long. It survives the process.
//! After a loss of power it may be as old as the system leaves dirty pages (30 s on Linux). It is
//! never newer than the logs, since these are synced first.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use lodestore_graph::lock::IgnorePoison;

/// Sequence number u64, CRC-32 of it u32: within one sector, which a disk writes whole.
const FILE_BYTES: usize = 12;

pub(super) const FILE_NAME: &str = "ACKNOWLEDGED";
const NEW_FILE_NAME: &str = "ACKNOWLEDGED.new";

const MAX_READ_ATTEMPTS: usize = 3;

/// The file of an open store, and the number in it.
#[derive(Debug)]
pub(super) struct Acknowledged {
    file: File,
    sequence: Mutex<u64>,
}

impl Acknowledged {
    /// Creates the file of the store in `dir`, or replaces it.
    pub(super) fn create(dir: &Path, sequence: u64) -> io::Result<Self> {
        let new = dir.join(NEW_FILE_NAME);
        let file = File::options().write(true).create(true).truncate(true).open(&new)?;
        file.write_all_at(&encode(sequence), 0)?;
        file.sync_all()?;
        fs::rename(new, dir.join(FILE_NAME))?;
        File::open(dir)?.sync_all()?;
        Ok(Self { file, sequence: Mutex::new(sequence) })
    }

    /// Opens the file of a store that has been opened with `sequence`, which is durable.
    ///
    /// A store of an earlier release has no file, and gets one.
    pub(super) fn open(dir: &Path, sequence: u64) -> io::Result<Self> {
        let Some(earlier) = read(dir)? else { return Self::create(dir, sequence) };
        let file = File::options().write(true).open(dir.join(FILE_NAME))?;
        let opened = Self { file, sequence: Mutex::new(earlier) };
        opened.note(sequence);
        Ok(opened)
    }

    /// Notes that all writes up to `sequence` are synced.
    pub(super) fn note(&self, sequence: u64) {
        let mut last = self.sequence.lock().ignore_poison();
        if *last >= sequence {
            return;
        }
        match self.file.write_all_at(&encode(sequence), 0) {
            Ok(()) => *last = sequence,
            // The writes are durable; what is missed is that a later loss of them is noticed.
            Err(error) => tracing::warn!("{FILE_NAME} cannot be written: {error}"),
        }
    }
}

/// Returns the number that the store in `dir` has acknowledged; `None` where it has no file.
pub(super) fn read(dir: &Path) -> io::Result<Option<u64>> {
    let mut bytes = Vec::new();
    // A writer may be half-way through it.
    for _ in 0..MAX_READ_ATTEMPTS {
        bytes = match fs::read(dir.join(FILE_NAME)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let number = bytes.first_chunk::<8>().map(|number| u64::from_le_bytes(*number));
        if let Some(number) = number.filter(|&number| bytes == encode(number)) {
            return Ok(Some(number));
        }
    }
    let message = format!(
        "{FILE_NAME}: expected {FILE_BYTES} bytes that end in their checksum, found {} that do \
         not; run `lode repair` on the graph",
        bytes.len()
    );
    Err(io::Error::new(ErrorKind::InvalidData, message))
}

fn encode(sequence: u64) -> [u8; FILE_BYTES] {
    let number = sequence.to_le_bytes();
    let mut bytes = [0; FILE_BYTES];
    bytes[..8].copy_from_slice(&number);
    bytes[8..].copy_from_slice(&crc32fast::hash(&number).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_never_falls_and_every_flipped_bit_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let file = Acknowledged::create(dir.path(), 7).unwrap();
        for (noted, expected) in [(9, 9), (8, 9), (1 << 40, 1 << 40)] {
            file.note(noted);
            assert_eq!(read(dir.path()).unwrap(), Some(expected));
        }
        drop(Acknowledged::open(dir.path(), 3).unwrap());
        let path = dir.path().join(FILE_NAME);
        let bytes = fs::read(&path).unwrap();
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, flipped).unwrap();
            let error = read(dir.path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().contains(FILE_NAME), "{error}");
        }
        for len in 0..bytes.len() {
            fs::write(&path, &bytes[..len]).unwrap();
            assert!(read(dir.path()).is_err(), "{len}");
        }
    }
}
