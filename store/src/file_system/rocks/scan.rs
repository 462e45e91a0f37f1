//! Damage that RocksDB passes over without an error.
//!
//! Logs and the manifest are blocks of 32 KiB of records: masked CRC-32C of what follows the
//! length, length u16, type u8, payload. RocksDB reports a record that does not agree with its
//! checksum, and [`super::acknowledged`] finds out when a log ends too early. Three kinds of
//! damage escape both (11.8, `db/log_reader.cc`):
//!
//! - the type of a record of a recycled log, which is never written: one flipped bit makes it, and
//!   the reader loops for ever;
//! - zeros in place of a header: it skips the rest of the block, and reads the blocks after it;
//! - a length that leads past the end of the manifest: its later edits count as not written.
//!
//! All else is left to RocksDB, types that are unknown here included.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BLOCK_BYTES: usize = 32 << 10;

/// Checksum u32, length u16, type u8.
const HEADER_BYTES: usize = 7;

/// A whole record and the first part of one.
const FULL: u8 = 1;
const FIRST: u8 = 2;

/// Fails when the manifest or a log in `dir` has damage that RocksDB passes over.
pub(super) fn check(dir: &Path) -> io::Result<()> {
    check_manifest(dir)?;
    for name in log_names(dir)? {
        check_file(dir, &name)?;
    }
    Ok(())
}

/// Fails when `CURRENT` names no manifest, or one that [`check`] would refuse.
pub(super) fn check_manifest(dir: &Path) -> io::Result<()> {
    let current = fs::read(dir.join("CURRENT"))?;
    let name = String::from_utf8_lossy(&current);
    let name = name.trim_end_matches('\n');
    if !name.starts_with("MANIFEST-") || name.contains('/') {
        return Err(damaged(format!("its file CURRENT names no manifest, but {name:?}")));
    }
    if !dir.join(name).exists() {
        return Err(damaged(format!("its file CURRENT names {name}, which is not there")));
    }
    check_file(dir, name)
}

/// Copies the logs in `dir` to `out` up to the first damage that [`check`] reports.
pub(super) fn copy_sound(dir: &Path, out: &Path) -> io::Result<()> {
    for name in log_names(dir)? {
        let fault = fault_of(&dir.join(&name))?;
        fs::copy(dir.join(&name), out.join(&name))?;
        if let Some(fault) = fault {
            let copy = File::options().write(true).open(out.join(&name))?;
            return copy.set_len(fault.offset_bytes);
        }
    }
    Ok(())
}

/// Names of the logs in `dir`, the oldest first: their names are numbers of six digits or more.
pub(super) fn log_names(dir: &Path) -> io::Result<Vec<String>> {
    let names = super::names(dir)?.into_iter();
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".log")).collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    Ok(names)
}

#[derive(Debug, PartialEq, Eq)]
struct LogFault {
    offset_bytes: u64,
    what: &'static str,
}

fn check_file(dir: &Path, name: &str) -> io::Result<()> {
    match fault_of(&dir.join(name)) {
        Ok(None) => Ok(()),
        Ok(Some(LogFault { offset_bytes, what })) => Err(damaged(format!(
            "{name}: damaged at byte {offset_bytes}: {what}; run `lode repair` on the graph: it \
             keeps what was written before the damage, and reports what is lost"
        ))),
        // Its writer has moved its pairs into tables.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the first damage of a file that RocksDB passes over.
fn fault_of(path: &Path) -> io::Result<Option<LogFault>> {
    let file = File::open(path)?;
    let len_bytes = file.metadata()?.len();
    let mut hole = None;
    let mut block = Vec::new();
    for start in (0..len_bytes).step_by(BLOCK_BYTES) {
        block.resize((len_bytes - start).min(BLOCK_BYTES as u64) as usize, 0);
        match file.read_exact_at(&mut block, start) {
            // It is being removed.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        if let Some(fault) = fault_in(&block, start, &mut hole) {
            return Ok(Some(fault));
        }
    }
    Ok(None)
}

/// Returns the first such damage of the block at `start`; notes in `hole` where zeros were skipped.
fn fault_in(block: &[u8], start: u64, hole: &mut Option<u64>) -> Option<LogFault> {
    let mut at = 0;
    while let Some((header, rest)) = Header::split(&block[at..]) {
        let offset_bytes = start + at as u64;
        if header.is_recycled() {
            return Some(LogFault { offset_bytes, what: "a record of a type that is not written" });
        }
        if header.kind == 0 && header.length == 0 {
            hole.get_or_insert(offset_bytes);
            return None;
        }
        let Some(payload) = rest.get(..header.length) else {
            let is_last = block.len() < BLOCK_BYTES;
            let what = "the length of a record is wrong";
            return (is_last && header.fits_shorter(rest))
                .then_some(LogFault { offset_bytes, what });
        };
        if !header.agrees(payload) {
            return None;
        }
        // RocksDB syncs a write before it begins the next: what is missing before was synced.
        if let Some(hole) = hole.filter(|_| matches!(header.kind, FULL | FIRST)) {
            return Some(LogFault { offset_bytes: hole, what: "zeros, and records after them" });
        }
        at += HEADER_BYTES + payload.len();
    }
    None
}

/// The fields before a payload.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// Masked checksum of type and payload.
    stored: u32,
    length: usize,
    kind: u8,
}

impl Header {
    /// Splits off the header at the start of `bytes`; `None` where they are too few.
    fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[a, b, c, d, low, high, kind], rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let length = u16::from_le_bytes([low, high]).into();
        Some((Self { stored: u32::from_le_bytes([a, b, c, d]), length, kind }, rest))
    }

    /// Returns whether RocksDB takes it for a record of a recycled log.
    fn is_recycled(self) -> bool {
        matches!(self.kind, 5..=8 | 11 | 131)
    }

    /// Returns whether the checksum is that of type and payload.
    fn agrees(self, payload: &[u8]) -> bool {
        self.stored == masked(crc32c::crc32c_append(crc32c::crc32c(&[self.kind]), payload))
    }

    /// Returns whether the checksum is that of a shorter payload: nothing cut off the record.
    fn fits_shorter(self, rest: &[u8]) -> bool {
        let mut crc = crc32c::crc32c(&[self.kind]);
        rest.iter().any(|&byte| {
            let fits = self.stored == masked(crc);
            crc = crc32c::crc32c_append(crc, &[byte]);
            fits
        }) || self.stored == masked(crc)
    }
}

/// Returns a checksum as RocksDB stores it.
const fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

fn damaged(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
