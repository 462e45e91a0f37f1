//! The last 80 bytes of a schedule: without them the file is not complete.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `LODESEND` |
//! | 8..16 | batches of all epochs and workers, u64 |
//! | 16..24 | input nodes of all batches, u64 |
//! | 24..28 | most input nodes of one batch, u32 |
//! | 28..32 | CRC-32 of the index, u32 |
//! | 32..64 | digest of the content |
//! | 64..76 | zero |
//! | 76..80 | CRC-32 of bytes 0..76, u32 |

use std::path::Path;

use super::ScheduleError;
use crate::header::{array, u32_at};

pub(super) const FOOTER_BYTES: usize = 80;
const MAGIC: [u8; 8] = *b"LODESEND";
const CRC_AT: usize = FOOTER_BYTES - 4;

/// Totals of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) n_batches: u64,
    pub(super) n_ids: u64,
    pub(super) max_ids: u32,
    pub(super) index_crc: u32,
    pub(super) digest: [u8; 32],
}

/// Returns a checksum of this file: it starts from that of the header.
pub(super) fn crc_of(header_crc: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(header_crc);
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

impl Footer {
    pub(super) fn encode(&self, header_crc: u32) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &MAGIC);
        put(8, &self.n_batches.to_le_bytes());
        put(16, &self.n_ids.to_le_bytes());
        put(24, &self.max_ids.to_le_bytes());
        put(28, &self.index_crc.to_le_bytes());
        put(32, &self.digest);
        let crc = crc_of(header_crc, &[&bytes[..CRC_AT]]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Checks the last bytes, from `offset` on, of the file at `path`.
    pub(super) fn decode(
        bytes: &[u8; FOOTER_BYTES],
        header_crc: u32,
        path: &Path,
        offset: u64,
    ) -> Result<Self, ScheduleError> {
        // Something else is there: the file was cut, or never finished.
        if bytes[..8] != MAGIC {
            let expected = "that of a complete file; write the schedule again";
            return Err(ScheduleError::format(path, "footer", expected, "none"));
        }
        let found = crc_of(header_crc, &[&bytes[..CRC_AT]]);
        ScheduleError::check_crc(path, "footer", offset, u32_at(bytes, CRC_AT), found)?;
        Ok(Self {
            n_batches: u64::from_le_bytes(array(bytes, 8)),
            n_ids: u64::from_le_bytes(array(bytes, 16)),
            max_ids: u32_at(bytes, 24),
            index_crc: u32_at(bytes, 28),
            digest: array(bytes, 32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_only_what_was_written_for_the_same_header() {
        let footer =
            Footer { n_batches: 3, n_ids: 1 << 40, max_ids: 9, index_crc: 8, digest: [6; 32] };
        let bytes = footer.encode(77);
        let decode = |bytes: &[u8; FOOTER_BYTES], header_crc| {
            Footer::decode(bytes, header_crc, Path::new("x"), 0)
        };
        assert_eq!(decode(&bytes, 77).unwrap(), footer);
        assert!(matches!(decode(&bytes, 78), Err(ScheduleError::Damaged { .. })));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged, 77).is_err(), "bit {bit}");
        }
    }
}
