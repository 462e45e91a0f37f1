//! Traces in the binary formats of libCacheSim, a simulator of caches of objects.
//!
//! All numbers are little-endian and nothing is padded.
//!
//! | format | file |
//! |---|---|
//! | `oracleGeneral` | records of 24 bytes |
//! | `lcs` | 8192 bytes of header, then records of the size that its version asks for |
//!
//! A record is u32 time, u64 object, and then sizes, operations and features. These do not matter
//! here: rows are of one size, every access is a read, and next uses are computed. The header of
//! `lcs` is u64 magic, u64 version from 1 to 8, statistics, and in its last 8 bytes the magic.

use std::collections::HashMap;
use std::io::{self, Read};

use thiserror::Error;

use super::{Trace, TraceBuilder, TraceError};

/// Where the id is in a record, whatever its format.
const ID_BYTE: usize = 4;
const LCS_HEADER_BYTES: usize = 8192;
const LCS_MAGIC: u64 = 0x1234_5678_9abc_def0;
/// Bytes of a record by version of `lcs`, from 1 on.
const LCS_RECORD_BYTES: [usize; 8] = [24, 28, 36, 40, 44, 52, 68, 100];
const ORACLE_GENERAL_BYTES: usize = 24;
/// Records that are read at a time.
const CHUNK_RECORDS: usize = 1 << 14;

/// A format of libCacheSim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFormat {
    /// `oracleGeneral`, in which its public traces come.
    OracleGeneral,
    /// `lcs`, versions 1 to 8.
    Lcs,
}

/// Why a file is no trace of libCacheSim.
#[derive(Debug, Error)]
pub enum RecordError {
    /// Reading failed, or what is compressed is damaged.
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
    /// The file ends in the middle of a record, or of the header.
    #[error(
        "the file is truncated or of another format: {found_bytes} bytes follow {n_records} \
         records of {record_bytes} bytes"
    )]
    Truncated {
        /// Whole records before.
        n_records: u64,
        /// Bytes of a record.
        record_bytes: usize,
        /// Bytes of the last, incomplete one.
        found_bytes: usize,
    },
    /// No header of `lcs`.
    #[error("not an lcs trace: {what} must be {expected}, found {found:#x}")]
    Header {
        /// The field.
        what: &'static str,
        /// The accepted formats.
        expected: &'static str,
        /// The found format.
        found: u64,
    },
    /// Too long.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Reads a trace and cuts it into batches of `batch_ids` accesses. Objects are numbered in the
/// order of their first access. With `limit` only that many accesses are read, without it all.
///
/// Memory: 4 bytes per access, and a table of the different objects.
///
/// # Panics
///
/// When `batch_ids` is 0.
pub fn read_records(
    reader: &mut dyn Read,
    format: RecordFormat,
    batch_ids: usize,
    limit: Option<u64>,
) -> Result<Trace, RecordError> {
    assert!(batch_ids > 0, "a batch has at least one access");
    let record_bytes = match format {
        RecordFormat::OracleGeneral => ORACLE_GENERAL_BYTES,
        RecordFormat::Lcs => lcs_record_bytes(reader)?,
    };
    let mut left = limit.unwrap_or(u64::MAX);
    let mut numbers: HashMap<u64, u32> = HashMap::new();
    let (mut builder, mut batch) = (TraceBuilder::default(), Vec::new());
    let chunk_bytes = CHUNK_RECORDS * record_bytes;
    let mut chunk = Vec::with_capacity(chunk_bytes);
    let mut n_records = 0u64;
    while left > 0 {
        chunk.clear();
        let found = (&mut *reader).take(chunk_bytes as u64).read_to_end(&mut chunk)?;
        for record in chunk.chunks_exact(record_bytes) {
            if left == 0 {
                break;
            }
            (left, n_records) = (left - 1, n_records + 1);
            // As many numbers as accesses at most, of which there are fewer than 2³².
            let next = numbers.len() as u32;
            batch.push(*numbers.entry(u64_at(record, ID_BYTE)).or_insert(next));
            if builder.n_ids() + batch.len() > Trace::MAX_IDS {
                return Err(TraceError::Ids.into());
            }
            if batch.len() == batch_ids {
                builder.push_batch(&batch)?;
                batch.clear();
            }
        }
        let found_bytes = found % record_bytes;
        if left > 0 && found_bytes > 0 {
            return Err(RecordError::Truncated { n_records, record_bytes, found_bytes });
        }
        if found < chunk_bytes {
            break;
        }
    }
    if !batch.is_empty() {
        builder.push_batch(&batch)?;
    }
    Ok(builder.finish(Some(numbers.len() as u32)))
}

/// Reads and checks the header of `lcs`.
fn lcs_record_bytes(reader: &mut dyn Read) -> Result<usize, RecordError> {
    let mut header = Vec::with_capacity(LCS_HEADER_BYTES);
    let found_bytes = reader.take(LCS_HEADER_BYTES as u64).read_to_end(&mut header)?;
    if found_bytes < LCS_HEADER_BYTES {
        let record_bytes = LCS_HEADER_BYTES;
        return Err(RecordError::Truncated { n_records: 0, record_bytes, found_bytes });
    }
    for (what, at) in [("its first word", 0), ("the last word of its header", 8184)] {
        let found = u64_at(&header, at);
        if found != LCS_MAGIC {
            return Err(RecordError::Header { what, expected: "0x123456789abcdef0", found });
        }
    }
    let version = u64_at(&header, 8);
    let record = usize::try_from(version).ok().and_then(|v| v.checked_sub(1));
    record.and_then(|v| LCS_RECORD_BYTES.get(v).copied()).ok_or(RecordError::Header {
        what: "its version",
        expected: "1 to 8",
        found: version,
    })
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the packed by hand: time, object, size, next access.
    fn record(object: u64, rest: usize) -> Vec<u8> {
        let mut bytes = 1_700_000_000u32.to_le_bytes().to_vec();
        bytes.extend(object.to_le_bytes());
        bytes.extend(std::iter::repeat_n(0xEE, rest));
        bytes
    }

    fn lcs_header(version: u64) -> Vec<u8> {
        let mut bytes = vec![0; LCS_HEADER_BYTES];
        bytes[..8].copy_from_slice(&[0xf0, 0xde, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12]);
        bytes[8..16].copy_from_slice(&version.to_le_bytes());
        bytes[8184..].copy_from_slice(&[0xf0, 0xde, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12]);
        bytes
    }

    fn read(bytes: &[u8], format: RecordFormat, batch: usize) -> Result<Trace, RecordError> {
        read_records(&mut &bytes[..], format, batch, None)
    }

    /// One access of the object 0x1122334455667788 of 100 bytes, then of object 7.
    const TWO_RECORDS: [u8; 48] = [
        0x01, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 100, 0, 0, 0, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, //
        0x02, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn records_of_oracle_general_are_read_as_they_lie() {
        let twice = [TWO_RECORDS, TWO_RECORDS].concat();
        let trace = read(&twice, RecordFormat::OracleGeneral, 3).unwrap();
        // The first object is in the first batch twice.
        assert_eq!((trace.ids(), trace.bounds()), ([0, 1, 1].as_slice(), [0, 2, 3].as_slice()));
        assert_eq!((trace.n_distinct(), trace.n_repeats(), trace.id_space()), (2, 1, 2));
        let one = read(&TWO_RECORDS[24..], RecordFormat::OracleGeneral, 1).unwrap();
        assert_eq!((one.ids(), one.n_batches()), ([0].as_slice(), 1));
        let none = read(&[], RecordFormat::OracleGeneral, 1).unwrap();
        assert_eq!((none.n_ids(), none.n_batches()), (0, 0));
    }

    #[test]
    fn every_version_of_lcs_is_read() {
        for (version, record_bytes) in (1..).zip(LCS_RECORD_BYTES) {
            let mut bytes = lcs_header(version);
            for object in [u64::MAX, 3, u64::MAX] {
                bytes.extend(record(object, record_bytes - 12));
            }
            let trace = read(&bytes, RecordFormat::Lcs, 1).unwrap();
            assert_eq!(trace.ids(), [0, 1, 0], "version {version}");
        }
    }

    #[test]
    fn headers_that_are_none_are_refused() {
        let message = |bytes: &[u8]| read(bytes, RecordFormat::Lcs, 1).unwrap_err().to_string();
        for version in [0, 9, u64::MAX] {
            let error = message(&lcs_header(version));
            assert!(error.contains("version must be 1 to 8"), "{error}");
        }
        for at in [0, 8191] {
            let mut bytes = lcs_header(1);
            bytes[at] ^= 1;
            assert!(message(&bytes).contains("0x123456789abcdef0"));
        }
        assert!(message(&lcs_header(1)[..8191]).contains("8191 bytes follow 0 records"));
        assert!(read(&lcs_header(1), RecordFormat::Lcs, 1).unwrap().ids().is_empty());
    }

    #[test]
    fn a_file_that_ends_in_a_record_is_refused() {
        for cut in 1..24 {
            let error = read(&TWO_RECORDS[..24 + cut], RecordFormat::OracleGeneral, 1).unwrap_err();
            assert!(matches!(error, RecordError::Truncated { n_records: 1, found_bytes, .. }
                    if found_bytes == cut));
        }
    }

    #[test]
    fn chunks_and_limits_do_not_show() {
        let n = CHUNK_RECORDS as u64 * 2 + 3;
        let bytes: Vec<u8> = (0..n).flat_map(|i| record(i % 1000, 12)).collect();
        let all = read(&bytes, RecordFormat::OracleGeneral, 7).unwrap();
        let expected: Vec<u32> = (0..n).map(|i| (i % 1000) as u32).collect();
        assert_eq!(all.ids(), expected);
        for limit in [0, 1, CHUNK_RECORDS as u64, CHUNK_RECORDS as u64 + 1, n, n + 1] {
            let format = RecordFormat::OracleGeneral;
            let part = read_records(&mut &bytes[..], format, 7, Some(limit)).unwrap();
            assert_eq!(part.ids(), &expected[..limit.min(n) as usize]);
        }
    }

    /// Returns batches of objects, each object once per batch and by the number of its first
    /// access.
    fn numbered(objects: &[u64], batch_ids: usize) -> Vec<u32> {
        let (mut seen, mut ids) = (Vec::new(), Vec::new());
        for batch in objects.chunks(batch_ids) {
            let first = ids.len();
            for object in batch {
                let at = seen.iter().position(|other| other == object).unwrap_or(seen.len());
                if at == seen.len() {
                    seen.push(*object);
                }
                if !ids[first..].contains(&(at as u32)) {
                    ids.push(at as u32);
                }
            }
        }
        ids
    }

    fn header() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            Just(Vec::new()),
            (0u64..11).prop_map(lcs_header),
            prop::collection::vec(any::<u8>(), 0..40),
            (1u64..9, 0..LCS_HEADER_BYTES).prop_map(|(version, end)| {
                let mut bytes = lcs_header(version);
                bytes.truncate(end);
                bytes
            }),
        ]
    }

    proptest! {
        /// Any bytes are refused for what they lack, or read as the records that are in them.
        #[test]
        fn hostile_bytes_are_refused_or_are_records(
            header in header(),
            body in prop::collection::vec(prop_oneof![4 => Just(0u8), 1 => any::<u8>()], 0..400),
            format in prop::sample::select(vec![RecordFormat::OracleGeneral, RecordFormat::Lcs]),
            batch_ids in 1usize..5,
            limit in prop::option::of(0u64..9),
        ) {
            let bytes = [header, body].concat();
            let is_lcs = format == RecordFormat::Lcs;
            let head_bytes = if is_lcs { LCS_HEADER_BYTES } else { 0 };
            match read_records(&mut &bytes[..], format, batch_ids, limit) {
                Ok(trace) => {
                    let record_bytes = if is_lcs { LCS_RECORD_BYTES[bytes[8] as usize - 1] } else { 24 };
                    let records = bytes[head_bytes..].chunks(record_bytes);
                    let records = records.take(limit.unwrap_or(u64::MAX) as usize);
                    let objects: Vec<u64> = records
                        .map(|record| u64::from_le_bytes(record[4..12].try_into().unwrap()))
                        .collect();
                    prop_assert_eq!(trace.ids(), numbered(&objects, batch_ids));
                    prop_assert_eq!(u64::from(trace.n_batches()), objects.len().div_ceil(batch_ids) as u64);
                }
                Err(RecordError::Truncated { n_records, record_bytes, found_bytes }) => {
                    let before = if bytes.len() < head_bytes { 0 } else { head_bytes };
                    let whole = n_records as usize * record_bytes;
                    prop_assert_eq!(before + whole + found_bytes, bytes.len());
                    prop_assert!(found_bytes < record_bytes);
                }
                Err(RecordError::Header { .. }) => {
                    let is_right = (1..9).any(|version| bytes.starts_with(&lcs_header(version)));
                    prop_assert!(is_lcs && !is_right);
                }
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }
}
