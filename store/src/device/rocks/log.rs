//! RocksDB's logs and manifest, walked before RocksDB reads them.
//!
//! Both are rows of blocks of 32 KiB, each with whole records: masked CRC-32C of what follows the
//! length, length u16, type u8, payload; less than a header's room at the end of a block is zeros.
//! RocksDB believes lengths and types before it looks at checksums: one flipped bit can look to it
//! like a record that a crash cut off, or of a log that was used before, and all that follows is
//! dropped without a word; some make it look at the same record for ever. So nothing is opened
//! whose records are not whole, of the types that we write, and as their checksums say, up to one
//! that the end of the file cuts off.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BLOCK_BYTES: u64 = 32 << 10;
/// Checksum u32, length u16, type u8.
const HEADER_BYTES: usize = 7;
/// A whole record, or the first, a middle or the last part of one.
const TYPES: std::ops::RangeInclusive<u8> = 1..=4;

/// Fails when the manifest or a log in `dir` is damaged.
pub(super) fn check(dir: &Path) -> io::Result<()> {
    check_manifest(dir)?;
    for name in log_names(dir)? {
        if let Some(damage) = damage_of(&dir.join(&name))? {
            return Err(damage.told(&name));
        }
    }
    Ok(())
}

/// Fails when the manifest that `CURRENT` names is damaged.
pub(super) fn check_manifest(dir: &Path) -> io::Result<()> {
    let current = fs::read(dir.join("CURRENT"))?;
    let name = String::from_utf8_lossy(&current);
    let name = name.trim_end_matches('\n');
    if !name.starts_with("MANIFEST-") || name.contains('/') {
        let message = format!("its file CURRENT names no manifest, but {name:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    damage_of(&dir.join(name))?.map_or(Ok(()), |damage| Err(damage.told(name)))
}

/// Copies the logs in `dir` to `out` up to the first damage: nothing after it counts.
pub(super) fn copy_sound(dir: &Path, out: &Path) -> io::Result<()> {
    for name in log_names(dir)? {
        let damage = damage_of(&dir.join(&name))?;
        fs::copy(dir.join(&name), out.join(&name))?;
        if let Some(damage) = damage {
            let copy = File::options().write(true).open(out.join(&name))?;
            return copy.set_len(damage.offset_bytes);
        }
    }
    Ok(())
}

/// Logs, the oldest first: their names are numbers of six digits or more.
fn log_names(dir: &Path) -> io::Result<Vec<String>> {
    let names = super::names(dir)?.into_iter();
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".log")).collect();
    names.sort_by(|a, b| a.len().cmp(&b.len()).then(a.cmp(b)));
    Ok(names)
}

/// Where a file stops being what was written.
#[derive(Debug, PartialEq, Eq)]
struct Damage {
    offset_bytes: u64,
    what: &'static str,
}

impl Damage {
    fn told(&self, name: &str) -> io::Error {
        let message = format!("{name}: damaged at byte {}: {}", self.offset_bytes, self.what);
        io::Error::new(io::ErrorKind::InvalidData, message)
    }
}

/// Walks a file; one that is gone is sound, for its writer has moved its rows into tables.
fn damage_of(path: &Path) -> io::Result<Option<Damage>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_log(path) => return Ok(None),
        file => file?,
    };
    let len_bytes = file.metadata()?.len();
    let mut block = Vec::new();
    for start in (0..len_bytes).step_by(BLOCK_BYTES as usize) {
        block.resize((len_bytes - start).min(BLOCK_BYTES) as usize, 0);
        match file.read_exact_at(&mut block, start) {
            // It is being removed.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        match walk(&block) {
            Walk::Whole => {}
            Walk::Damaged(at, what) => {
                return Ok(Some(Damage { offset_bytes: start + at as u64, what }));
            }
            // From here on there must be nothing.
            Walk::Ends(at) => {
                let offset_bytes = start + at as u64;
                let is_nothing = is_last(start, len_bytes) || all_zeros(&file, start, len_bytes)?;
                let what = "nothing, and more after it";
                return Ok((!is_nothing).then_some(Damage { offset_bytes, what }));
            }
        }
    }
    Ok(None)
}

fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "log")
}

const fn is_last(start: u64, len_bytes: u64) -> bool {
    len_bytes - start <= BLOCK_BYTES
}

/// Whether all blocks after the one at `start` are zeros.
fn all_zeros(file: &File, start: u64, len_bytes: u64) -> io::Result<bool> {
    let mut block = Vec::new();
    for start in (start + BLOCK_BYTES..len_bytes).step_by(BLOCK_BYTES as usize) {
        block.resize((len_bytes - start).min(BLOCK_BYTES) as usize, 0);
        file.read_exact_at(&mut block, start)?;
        if block.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a block turned out to be.
#[derive(Debug, PartialEq, Eq)]
enum Walk {
    /// Records to its end.
    Whole,
    /// Records up to a byte, and nothing after it, or one that was cut off.
    Ends(usize),
    Damaged(usize, &'static str),
}

fn walk(block: &[u8]) -> Walk {
    let is_full = block.len() as u64 == BLOCK_BYTES;
    let mut at = 0;
    while let Some((header, rest)) = block[at..].split_at_checked(HEADER_BYTES) {
        let (length, kind) = (u16::from_le_bytes([header[4], header[5]]), header[6]);
        if header.iter().all(|&byte| byte == 0) {
            return match rest.iter().all(|&byte| byte == 0) {
                true => Walk::Ends(at),
                false => Walk::Damaged(at, "zeros, and more after them"),
            };
        }
        if !TYPES.contains(&kind) {
            return Walk::Damaged(at, "a record of no type that is written here");
        }
        let Some(payload) = rest.get(..usize::from(length)) else {
            return match is_full || fits_somewhere(header, rest) {
                true => Walk::Damaged(at, "the length of a record is wrong"),
                false => Walk::Ends(at),
            };
        };
        if header[..4] != stored(checksum(kind, payload)) {
            return Walk::Damaged(at, "a record does not agree with its checksum");
        }
        at += HEADER_BYTES + payload.len();
    }
    match (block[at..].iter().all(|&byte| byte == 0), is_full) {
        (_, false) => Walk::Ends(at),
        (true, true) => Walk::Whole,
        (false, true) => Walk::Damaged(at, "the end of a block is not zeros"),
    }
}

/// Whether the checksum is that of a record of another length: then it was not cut off, and its
/// length is damaged.
fn fits_somewhere(header: &[u8], rest: &[u8]) -> bool {
    let mut crc = crc32c::crc32c(&header[6..]);
    rest.iter().any(|&byte| {
        let fits = header[..4] == stored(crc);
        crc = crc32c::crc32c_append(crc, &[byte]);
        fits
    }) || header[..4] == stored(crc)
}

/// CRC-32C of type and payload.
fn checksum(kind: u8, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&[kind]), payload)
}

/// Masked, as RocksDB stores it.
fn stored(crc: u32) -> [u8; 4] {
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[cfg(test)]
mod tests;
