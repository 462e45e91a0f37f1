//! The end of RocksDB's logs: cut off by a crash, or damaged?
//!
//! A log is a row of blocks of 32 KiB, each with whole records: CRC-32C, length, type, payload. In
//! the last block a record that claims more bytes than are left is to RocksDB one that a crash cut
//! off: it and all that follows it are dropped. A flipped bit in the length of a whole record looks
//! just like that, and would take acknowledged rows along. But with the right length the checksum
//! fits.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BLOCK_BYTES: u64 = 32 << 10;
/// Checksum u32, length u16, type u8.
const HEADER_BYTES: usize = 7;

/// Fails for a log in `dir` whose end is damage that would pass for a crash.
pub(super) fn check_ends(dir: &Path) -> io::Result<()> {
    for name in super::names(dir)?.iter().filter(|name| name.ends_with(".log")) {
        let Some(block) = last_block(&dir.join(name))? else { continue };
        if let Some(offset_bytes) = damaged_length(&block) {
            let message = format!(
                "{name}: the length of the record at byte {offset_bytes} of its last block is \
                 damaged"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
    }
    Ok(())
}

/// Nothing for a log that is gone: its writer has moved its rows into tables.
fn last_block(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let len_bytes = file.metadata()?.len();
    let start = len_bytes.saturating_sub(1) / BLOCK_BYTES * BLOCK_BYTES;
    let mut block = vec![0; (len_bytes - start) as usize];
    match file.read_exact_at(&mut block, start) {
        Ok(()) => Ok(Some(block)),
        // It is being removed.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Where a whole record stands whose length has one flipped bit and points past the end.
fn damaged_length(block: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some((header, rest)) = block.get(at..)?.split_at_checked(HEADER_BYTES) {
        let length = u16::from_le_bytes([header[4], header[5]]);
        if usize::from(length) > rest.len() {
            let fits = |length: u16| {
                let payload = rest.get(..usize::from(length));
                payload.is_some_and(|payload| header[..4] == checksum(header[6], payload))
            };
            return (0..16).any(|bit| fits(length ^ (1 << bit))).then_some(at);
        }
        at += HEADER_BYTES + usize::from(length);
    }
    None
}

/// CRC-32C of type and payload, masked as RocksDB stores it.
fn checksum(kind: u8, payload: &[u8]) -> [u8; 4] {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&[kind]), payload);
    crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: u8 = 1;

    fn record(payload: &[u8]) -> Vec<u8> {
        let mut record = checksum(FULL, payload).to_vec();
        record.extend((payload.len() as u16).to_le_bytes());
        record.push(FULL);
        record.extend(payload);
        record
    }

    #[test]
    fn a_record_that_was_cut_off_is_no_damage() {
        let log = [record(b"first"), record(&[7; 300]), record(b"last")].concat();
        for end in 0..=log.len() {
            assert_eq!(damaged_length(&log[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn a_flipped_bit_that_points_past_the_end_is_damage() {
        let records = [record(b"first"), record(&[7; 300]), record(b"last")];
        let log = records.concat();
        for (at, bit) in [0, 12, 12 + 307].into_iter().flat_map(|at| (0..16).map(move |b| (at, b)))
        {
            let mut damaged = log.clone();
            damaged[at + 4 + bit / 8] ^= 1 << (bit % 8);
            let length = u16::from_le_bytes([damaged[at + 4], damaged[at + 5]]);
            let is_past_the_end = at + HEADER_BYTES + usize::from(length) > log.len();
            // A length that stays inside leads RocksDB to a checksum that does not fit.
            assert_eq!(damaged_length(&damaged).is_some(), is_past_the_end, "{at} {bit}");
        }
    }

    #[test]
    fn a_log_of_rocksdb_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        let db =
            rocksdb::DB::open(&super::super::options(super::super::Access::Create), dir.path());
        assert!(db.is_err(), "it must not be made by a mere look");
        let mut options = rocksdb::Options::default();
        options.create_if_missing(true);
        let db = rocksdb::DB::open(&options, dir.path()).unwrap();
        (0..50u8).for_each(|i| db.put([i], vec![i; 1000]).unwrap());
        check_ends(dir.path()).unwrap();
        let names = super::super::names(dir.path()).unwrap();
        let path = dir.path().join(names.iter().find(|name| name.ends_with(".log")).unwrap());
        let block = last_block(&path).unwrap().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let start = bytes.len() - block.len();
        assert!(start > 0, "more than a block");
        bytes[start + 5] ^= 0x80;
        std::fs::write(&path, bytes).unwrap();
        let told = check_ends(dir.path()).unwrap_err().to_string();
        assert!(told.contains("byte 0 of its last block"), "{told}");
    }
}
