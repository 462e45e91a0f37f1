//! The 4 KiB header of a schedule.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `LODESCHD` |
//! | 8..12 | format version, u32 |
//! | 12..16 | nodes of the graph, u32 |
//! | 16..32 | uuid of the graph |
//! | 32..40 | seed, u64 |
//! | 40..48 | batch size, u64 |
//! | 48..52 | epochs, u32 |
//! | 52..56 | workers, u32 |
//! | 56..60 | number of hops, u32, at most 64 |
//! | 60..64 | which worker has which root, u32: 0 owned, 1 by turns, 2 its owner ([`Deal`]) |
//! | 64..576 | fan-out of each hop, i64, −1 for all neighbours; zero past the last hop |
//! | 576..4092 | zero |
//! | 4092..4096 | CRC-32 of bytes 0..4092, u32 |

use std::fmt::Display;
use std::path::Path;

use crate::header::{array, u32_at};
use crate::sampler::{Deal, Fanout};
use crate::schedule::{ScheduleError, ScheduleSpec};

pub(super) const HEADER_BYTES: usize = 4096;
pub(super) const MAGIC: [u8; 8] = *b"LODESCHD";
const VERSION: u32 = 1;
const FANOUTS_AT: usize = 64;
const CRC_AT: usize = HEADER_BYTES - 4;
/// By their number in the header.
const DEALS: [Deal; 3] = [Deal::Owned, Deal::Turns, Deal::Home];

const _: () = assert!(FANOUTS_AT + 8 * ScheduleSpec::MAX_HOPS <= CRC_AT);

/// A header whose checksum and numbers have been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScheduleHeader {
    pub(super) spec: ScheduleSpec,
    pub(super) n_nodes: u32,
    /// Where the checksums of all other parts start from.
    pub(super) crc: u32,
}

/// Returns the header page of a schedule of `spec`, which has been checked, and its checksum.
pub(super) fn encode(spec: &ScheduleSpec, n_nodes: u32) -> ([u8; HEADER_BYTES], u32) {
    let mut page = [0; HEADER_BYTES];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC);
    put(8, &VERSION.to_le_bytes());
    put(12, &n_nodes.to_le_bytes());
    put(16, &spec.graph_uuid);
    put(32, &spec.seed.to_le_bytes());
    put(40, &(spec.batch_size as u64).to_le_bytes());
    put(48, &spec.epochs.to_le_bytes());
    put(52, &spec.workers.to_le_bytes());
    put(56, &(spec.fanouts.len() as u32).to_le_bytes());
    let deal = DEALS.iter().position(|&deal| deal == spec.deal).unwrap_or_default();
    put(60, &(deal as u32).to_le_bytes());
    for (hop, &fanout) in spec.fanouts.iter().enumerate() {
        put(FANOUTS_AT + 8 * hop, &i64::from(fanout).to_le_bytes());
    }
    let crc = crc32fast::hash(&page[..CRC_AT]);
    page[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    (page, crc)
}

/// Checks the header page of the file at `path`.
pub(super) fn decode(
    page: &[u8; HEADER_BYTES],
    path: &Path,
) -> Result<ScheduleHeader, ScheduleError> {
    let format = |what, expected: &str, found: &dyn Display| {
        ScheduleError::format(path, what, expected, found)
    };
    if page[..8] != MAGIC {
        let expected = MAGIC.escape_ascii().to_string();
        return Err(format("magic", &expected, &page[..8].escape_ascii()));
    }
    let crc = crc32fast::hash(&page[..CRC_AT]);
    ScheduleError::check_crc(path, "header", 0, u32_at(page, CRC_AT), crc)?;
    if u32_at(page, 8) != VERSION {
        return Err(format("format version", &VERSION.to_string(), &u32_at(page, 8)));
    }
    let n_hops = u32_at(page, 56) as usize;
    let fanouts = page[FANOUTS_AT..].chunks_exact(8).take(n_hops.min(ScheduleSpec::MAX_HOPS));
    let fanouts = fanouts.map(|bytes| Fanout::try_from(i64::from_le_bytes(array(bytes, 0))));
    let fanouts = fanouts.collect::<Result<Vec<_>, _>>();
    let deal = DEALS.get(u32_at(page, 60) as usize).copied();
    let deal = deal.ok_or_else(|| format("deal of roots", "0, 1 or 2", &u32_at(page, 60)))?;
    let spec = ScheduleSpec {
        deal,
        graph_uuid: array(page, 16),
        seed: u64::from_le_bytes(array(page, 32)),
        fanouts: fanouts.map_err(|e| format("fan-out", "a number or -1", &e.found))?,
        batch_size: usize::try_from(u64::from_le_bytes(array(page, 40))).unwrap_or(usize::MAX),
        epochs: u32_at(page, 48),
        workers: u32_at(page, 52),
    };
    spec.check().map_err(|e| format("header", "a valid run", &e))?;
    if n_hops != spec.fanouts.len() {
        let expected = format!("at most {} hops", ScheduleSpec::MAX_HOPS);
        return Err(format("header", &expected, &n_hops));
    }
    Ok(ScheduleHeader { spec, n_nodes: u32_at(page, 12), crc })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ScheduleSpec {
        ScheduleSpec {
            graph_uuid: [7; 16],
            seed: 5,
            fanouts: vec![Fanout::All, Fanout::at_most(3).unwrap()],
            batch_size: 10,
            epochs: 2,
            workers: 3,
            deal: Deal::Home,
        }
    }

    fn message(page: &[u8; HEADER_BYTES]) -> String {
        decode(page, Path::new("x.sched")).unwrap_err().to_string()
    }

    /// Returns the page with some bytes replaced and the checksum made right again.
    fn forged(at: usize, bytes: &[u8]) -> [u8; HEADER_BYTES] {
        let (mut page, _) = encode(&spec(), 99);
        page[at..at + bytes.len()].copy_from_slice(bytes);
        let crc = crc32fast::hash(&page[..CRC_AT]);
        page[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        page
    }

    #[test]
    fn reads_back_what_was_written() {
        let (page, crc) = encode(&spec(), 99);
        let header = decode(&page, Path::new("x")).unwrap();
        assert_eq!(header, ScheduleHeader { spec: spec(), n_nodes: 99, crc });
    }

    #[test]
    fn every_flipped_bit_is_an_error() {
        let (page, _) = encode(&spec(), 99);
        for bit in 0..page.len() * 8 {
            let mut damaged = page;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged, Path::new("x")).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn forgeries_under_a_good_checksum_are_refused() {
        assert!(message(&forged(8, &[2])).ends_with("format version: expected 1, found 2"));
        assert!(message(&forged(40, &[0; 8])).contains("batch size must be from 1"));
        assert!(message(&forged(48, &[0; 4])).contains("epochs must be from 1"));
        assert!(message(&forged(52, &[0; 4])).contains("workers must be from 1"));
        assert!(message(&forged(54, &[1; 2])).contains("workers must be from 1 to 65535"));
        assert!(message(&forged(56, &[0; 4])).contains("hops must be from 1"));
        assert!(message(&forged(56, &[3, 0, 0, 0])).contains("fan-out"));
        assert!(message(&forged(60, &[3])).contains("deal of roots: expected 0, 1 or 2, found 3"));
        assert!(message(&forged(64, &[0; 8])).contains("fan-out"));
        let mut many = [1; 8 * ScheduleSpec::MAX_HOPS + 8];
        many[..8].copy_from_slice(&[65, 0, 0, 0, 0, 0, 0, 0]);
        many[8..].chunks_mut(8).for_each(|fanout| fanout[1..].fill(0));
        assert!(message(&forged(56, &many)).contains("at most 64 hops"));
    }
}
