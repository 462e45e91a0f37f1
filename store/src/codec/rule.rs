//! Which codec serves a table better: the time of a random row, by arithmetic alone.
//!
//! A reader maps a table that fits in memory. It reads the rows of any other from the disk, with
//! enough requests in flight that unpacking and reading overlap. So compression pays in two ways:
//! it may bring a table into memory, and long rows take fewer pages. It costs the unpacking of a
//! whole group.

use super::{CodecChoice, SegmentCodec};
use crate::limits::PAGE_BYTES;
use crate::plan::DiskProfile;
use crate::reader::{ReaderKind, choose as choose_reader};

/// Seconds to copy a byte of a raw row in memory, to unpack a group, and to unpack a stored byte of
/// it. They are measured on one machine: for tables that fit in memory only their ratios count, and
/// equal tables are stored alike on every machine.
const COPY_S_PER_BYTE: f64 = 0.15e-9;
const UNPACK_S: f64 = 400e-9;
const UNPACK_S_PER_STORED_BYTE: f64 = 8e-9;

impl CodecChoice {
    /// Least ratio at which [`CodecChoice::Auto`] compresses a table that fits in memory as it is.
    /// A random row must also take at most [`CodecChoice::MAX_SLOWER`] times as long.
    pub const MIN_RATIO: f64 = 20.0;

    /// See [`CodecChoice::MIN_RATIO`].
    pub const MAX_SLOWER: f64 = 4.0;

    /// Least ratio at which [`CodecChoice::Auto`] compresses a table that does not fit in memory. A
    /// random row must also take no longer on the disk than a raw one.
    pub const MIN_COLD_RATIO: f64 = 2.0;
}

/// A table as a sample shows it, and the machine that reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CodecCase {
    pub(crate) row_bytes: usize,
    /// Bytes of the table as it is.
    pub(crate) raw_bytes: u64,
    /// Bytes of the table in compressed groups.
    pub(crate) zstd_bytes: u64,
    /// Bytes of rows that one thread unpacks per second.
    pub(crate) decode_bytes_per_s: f64,
    pub(crate) disk: DiskProfile,
    /// Memory that a reader may have, where the system reports it.
    pub(crate) memory_bytes: Option<u64>,
}

/// The better codec, and why.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CodecVerdict {
    pub(crate) codec: SegmentCodec,
    /// Seconds of a random row, raw and compressed.
    pub(crate) raw_row_s: f64,
    pub(crate) zstd_row_s: f64,
    pub(crate) reason: String,
}

impl CodecCase {
    /// Compares the times of a random row.
    pub(crate) fn judge(&self) -> CodecVerdict {
        let zstd = SegmentCodec::zstd_for(self.row_bytes);
        let ratio = self.raw_bytes as f64 / self.zstd_bytes.max(1) as f64;
        let row_bytes = self.row_bytes as f64;
        let group_bytes = row_bytes * f64::from(zstd.group_rows());
        let copy_s = row_bytes * COPY_S_PER_BYTE;
        let (raw_fits, zstd_fits) =
            (fits(self.raw_bytes, self.memory_bytes), fits(self.zstd_bytes, self.memory_bytes));
        // A random row is unpacked with its whole group.
        let unpack_s = match raw_fits {
            true => UNPACK_S + UNPACK_S_PER_STORED_BYTE * group_bytes / ratio,
            false => group_bytes / self.decode_bytes_per_s,
        };
        let raw_row_s = if raw_fits { copy_s } else { copy_s.max(self.read_s(row_bytes)) };
        let zstd_row_s =
            if zstd_fits { unpack_s } else { unpack_s.max(self.read_s(group_bytes / ratio)) };
        let (min_ratio, max_slower) = match raw_fits {
            true => (CodecChoice::MIN_RATIO, CodecChoice::MAX_SLOWER),
            false => (CodecChoice::MIN_COLD_RATIO, 1.0),
        };
        // Not a number is no reason to compress.
        let pays = ratio >= min_ratio && zstd_row_s <= max_slower * raw_row_s;
        let place = match (raw_fits, zstd_fits) {
            (true, _) => "the table fits in memory raw",
            (false, true) => "the table fits in memory compressed",
            (false, false) => "the table fits in memory neither way",
        };
        let reason = format!(
            "{place}; it shrinks {ratio:.1} times (at least {min_ratio} wanted), and a random row \
             takes {:.2} us in place of {:.2} us ({:.2} times, at most {max_slower} wanted)",
            zstd_row_s * 1e6,
            raw_row_s * 1e6,
            zstd_row_s / raw_row_s,
        );
        let codec = if pays { zstd } else { SegmentCodec::Raw };
        CodecVerdict { codec, raw_row_s, zstd_row_s, reason }
    }

    /// Returns the seconds that the disk takes for bytes that begin anywhere in a page.
    fn read_s(&self, n_bytes: f64) -> f64 {
        let bytes_of_pages = PAGE_BYTES as f64 + (n_bytes - 1.0).max(0.0);
        1.0 / self.disk.iops + bytes_of_pages / self.disk.bandwidth_bytes_per_s
    }
}

/// Returns whether readers map a table of this size.
pub(super) fn fits(n_bytes: u64, memory_bytes: Option<u64>) -> bool {
    choose_reader(n_bytes, memory_bytes).0 == ReaderKind::Mapped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GB: u64 = 1 << 30;

    fn case(row_bytes: usize, raw_gb: u64, ratio: f64, decode_gb_per_s: f64) -> CodecCase {
        let raw_bytes = raw_gb * GB;
        CodecCase {
            row_bytes,
            raw_bytes,
            zstd_bytes: (raw_bytes as f64 / ratio) as u64,
            decode_bytes_per_s: decode_gb_per_s * 1e9,
            disk: DiskProfile::default(),
            // 16 GB count.
            memory_bytes: Some(32 * GB),
        }
    }

    #[test]
    fn the_rule_by_table() {
        let slow = DiskProfile { iops: 2000.0, bandwidth_bytes_per_s: 2e8 };
        let fast = DiskProfile { iops: 2e6, bandwidth_bytes_per_s: 14e9 };
        let usual = DiskProfile::default();
        for (row_bytes, raw_gb, ratio, decode, disk, takes_zstd) in [
            // It fits raw: 20 times, and 4 times as long at most, by sizes alone.
            (33_660, 1, 190.0, 18.0, usual, true),
            (33_660, 1, 190.0, 0.01, slow, true),
            (33_660, 1, 19.0, 18.0, usual, false),
            (4096, 1, 77.0, 4.0, usual, true),
            (4096, 1, 15.0, 4.0, usual, false),
            (1024, 1, 150.0, 4.0, usual, true),
            (1024, 1, 27.0, 4.0, usual, false),
            (400, 1, 3.0, 1.0, slow, false),
            // It fits compressed: three times are enough on a usual disk and on a slow one.
            (400, 40, 3.0, 1.0, usual, true),
            (400, 40, 3.0, 1.0, slow, true),
            (400, 40, 1.9, 1.0, usual, false),
            // A disk of 2 M requests/s has a row before a slow processor has unpacked it.
            (400, 40, 3.0, 1.0, fast, false),
            (400, 40, 3.0, 4.0, fast, true),
            // It fits neither way: long rows take fewer pages, short ones a page at least.
            (33_660, 1000, 3.0, 5.0, usual, true),
            (8192, 1000, 3.0, 2.0, usual, true),
            (8192, 1000, 3.0, 0.3, usual, false),
            (400, 1000, 3.0, 1.0, usual, false),
            (400, 1000, 6.0, 1.0, usual, true),
        ] {
            let case = CodecCase { disk, ..case(row_bytes, raw_gb, ratio, decode) };
            let verdict = case.judge();
            let found = verdict.codec != SegmentCodec::Raw;
            assert_eq!(found, takes_zstd, "{case:?}: {}", verdict.reason);
        }
        let unknown = CodecCase { memory_bytes: None, ..case(33_660, 1, 3.0, 5.0) };
        assert_ne!(unknown.judge().codec, SegmentCodec::Raw, "as where nothing fits");
        for (decode, zstd_bytes) in [(0.0, GB), (f64::NAN, GB), (-1.0, GB), (1e9, 0)] {
            let odd =
                CodecCase { decode_bytes_per_s: decode, zstd_bytes, ..case(400, 1, 3.0, 1.0) };
            odd.judge();
        }
        assert_eq!(case(400, 40, 3.0, f64::NAN).judge().codec, SegmentCodec::Raw);
    }

    proptest! {
        /// Promise of a compressed table, independent of the machine.
        #[test]
        fn a_compressed_table_keeps_the_bounds(
            row_bytes in 1usize..100_000,
            raw_bytes in 1u64..1 << 42,
            ratio in 1.0..300.0,
            decode in 1e7..1e11,
            iops in 1e2..1e7,
            bandwidth in 1e7..1e11,
            memory in prop::option::of(0u64..1 << 40),
        ) {
            let case = CodecCase {
                row_bytes,
                raw_bytes,
                zstd_bytes: (raw_bytes as f64 / ratio) as u64,
                decode_bytes_per_s: decode,
                disk: DiskProfile { iops, bandwidth_bytes_per_s: bandwidth },
                memory_bytes: memory,
            };
            let verdict = case.judge();
            let raw_fits = fits(raw_bytes, memory);
            if verdict.codec != SegmentCodec::Raw {
                let (min_ratio, slower) = if raw_fits { (20, 4.0) } else { (2, 1.0) };
                prop_assert!(case.zstd_bytes.max(1) * min_ratio <= raw_bytes, "{}", verdict.reason);
                prop_assert!(verdict.zstd_row_s <= verdict.raw_row_s * slower);
            }
            // More of what makes unpacking cheap never turns to raw.
            let faster = CodecCase { decode_bytes_per_s: decode * 2.0, ..case };
            if verdict.codec != SegmentCodec::Raw {
                prop_assert_eq!(faster.judge().codec, verdict.codec);
            }
        }
    }
}
