use std::fs;
use std::ops::Range;
use std::path::Path;

use lodestore_graph::mix;
use proptest::prelude::*;

use super::super::block::{FIRST, FULL, LAST, checksum, masked};
use super::super::{damage_of, was_never_synced};
use super::*;

/// Appends a logical record as RocksDB does, in parts that fill blocks.
fn append(log: &mut Vec<u8>, payload: &[u8]) -> Range<usize> {
    let room = BLOCK_BYTES - log.len() % BLOCK_BYTES;
    if room < HEADER_BYTES {
        log.resize(log.len() + room, 0);
    }
    let (start, mut rest, mut is_first) = (log.len(), payload, true);
    loop {
        let room = BLOCK_BYTES - log.len() % BLOCK_BYTES - HEADER_BYTES;
        let (part, after) = rest.split_at(room.min(rest.len()));
        let kind = match (is_first, after.is_empty()) {
            (true, true) => FULL,
            (true, false) => FIRST,
            (false, false) => FIRST + 1,
            (false, true) => LAST,
        };
        log.extend(masked(checksum(kind, part)).to_le_bytes());
        log.extend((part.len() as u16).to_le_bytes());
        log.push(kind);
        log.extend(part);
        (rest, is_first) = (after, false);
        if rest.is_empty() {
            return start..log.len();
        }
    }
}

/// Rows, some of them of zeros.
fn payload(len_bytes: usize, seed: u64) -> Vec<u8> {
    const ROW_BYTES: usize = 1300;
    let byte = |i: usize| match mix(seed ^ (i / ROW_BYTES) as u64).is_multiple_of(4) {
        true => 0,
        false => mix(seed ^ (i as u64) << 20) as u8,
    };
    (0..len_bytes).map(byte).collect()
}

/// A log of records of such lengths, and where each is.
fn written(lengths: &[usize], seed: u64) -> (Vec<u8>, Vec<Range<usize>>) {
    let mut log = Vec::new();
    let records = lengths.iter().enumerate();
    let records = records.map(|(i, &len)| append(&mut log, &payload(len, seed + i as u64)));
    let records = records.collect();
    (log, records)
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Sound,
    /// From this byte on nothing counts.
    Torn(usize),
    Damaged(usize),
}

fn judge(dir: &Path, log: &[u8]) -> Verdict {
    let name = "000007.log";
    fs::write(dir.join(name), log).unwrap();
    match damage_of(&dir.join(name)).unwrap() {
        None => Verdict::Sound,
        Some(damage) if was_never_synced(dir, name, &damage).unwrap() => {
            Verdict::Torn(damage.record as usize)
        }
        Some(damage) => Verdict::Damaged(damage.offset_bytes as usize),
    }
}

/// Makes holes of those sectors of `record` that `is_lost` names; its share of the first, too.
fn lose(log: &mut [u8], record: Range<usize>, mut is_lost: impl FnMut(usize) -> bool) {
    let mut at = record.start;
    while at < record.end {
        let end = record.end.min((at / SECTOR_BYTES + 1) * SECTOR_BYTES);
        if is_lost(at / SECTOR_BYTES) {
            log[at..end].fill(0);
        }
        at = end;
    }
}

/// Flips every bit of type, payload and checksum of a part, to see whether one mends it.
fn naive_one_bit_off(header: Header, payload: &[u8]) -> bool {
    let is_right = |stored, kind, payload: &[u8]| stored == masked(checksum(kind, payload));
    let mut bytes = payload.to_vec();
    (0..32).any(|bit| is_right(header.stored ^ 1 << bit, header.kind, payload))
        || (0..8).any(|bit| is_right(header.stored, header.kind ^ 1 << bit, payload))
        || (0..8 * bytes.len()).any(|bit| {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let fits = is_right(header.stored, header.kind, &bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
            fits
        })
}

/// Whether one flipped bit explains what is at `at`, by trying.
fn naive_flip_at(log: &[u8], at: usize) -> bool {
    let block_end = log.len().min((at / BLOCK_BYTES + 1) * BLOCK_BYTES);
    let Some((header, rest)) = Header::split(&log[at..block_end]) else { return false };
    let one_bit = |payload| naive_one_bit_off(header, payload);
    let fits = |len: usize| header.stored == masked(checksum(header.kind, &rest[..len]));
    rest.get(..header.length).is_some_and(one_bit) || (0..=rest.len()).any(fits)
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![1..700usize, 1..5000usize, 20_000..150_000usize], 2..6)
}

proptest! {
    #[test]
    fn one_flipped_bit_is_told_as_by_trying(
        bytes in prop::collection::vec(any::<u8>(), 0..60), flips in prop::collection::vec(0..600usize, 0..4),
    ) {
        let mut record = Vec::new();
        append(&mut record, &bytes);
        for flip in flips {
            // But for those of the length.
            let flip = flip % (8 * record.len());
            if !(32..48).contains(&flip) {
                record[flip / 8] ^= 1 << (flip % 8);
            }
        }
        let (header, payload) = Header::split(&record).unwrap();
        prop_assume!(!header.agrees(payload));
        prop_assert_eq!(is_one_bit_off(header, payload), naive_one_bit_off(header, payload));
    }

    #[test]
    fn sectors_that_the_last_write_lacks_are_no_damage_of_those_before(
        lengths in lengths(), seed: u64, share in 1..=4u64, cut in prop::option::of(any::<u64>()),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (whole, records) = written(&lengths, seed);
        let last = records.last().unwrap().clone();
        let mut log = whole.clone();
        lose(&mut log, last.clone(), |sector| mix(seed ^ sector as u64).is_multiple_of(share));
        if let Some(cut) = cut {
            log.truncate(last.start + (cut % last.len() as u64) as usize);
        }
        match judge(dir.path(), &log) {
            Verdict::Torn(at) => prop_assert_eq!(at, last.start),
            // Nothing was lost that is not of zeros, or the end of the file cuts the record off.
            Verdict::Sound if log == whole => {}
            Verdict::Sound => {
                let mut record = last.start;
                let mut at = record;
                while let Some((header, rest)) = Header::split(&log[at..]) {
                    let payload = rest.get(..header.length);
                    let is_sound = header.is_known() && payload.is_some_and(|p| header.agrees(p));
                    at += if is_sound { HEADER_BYTES + header.length } else { break };
                    record = if header.ends() { at } else { record };
                    let room = BLOCK_BYTES - at % BLOCK_BYTES;
                    at += if room < HEADER_BYTES { room } else { 0 };
                }
                prop_assert_eq!(record, last.start);
            }
            Verdict::Damaged(at) => {
                prop_assert!(naive_flip_at(&log, at), "refused at {} of {:?}", at, records);
            }
        }
    }

    #[test]
    fn sectors_that_an_earlier_write_lacks_are_damage(
        lengths in lengths(), seed: u64, which: prop::sample::Index, share in 1..=4u64,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (whole, records) = written(&lengths, seed);
        let earlier = records[which.index(records.len() - 1)].clone();
        let mut log = whole.clone();
        lose(&mut log, earlier, |sector| mix(seed ^ sector as u64).is_multiple_of(share));
        let verdict = judge(dir.path(), &log);
        prop_assert!(log == whole || matches!(verdict, Verdict::Damaged(_)), "{:?}", verdict);
    }

    #[test]
    fn a_flipped_bit_is_never_taken_for_a_loss_of_power(
        lengths in lengths(), seed: u64, flips in prop::collection::vec(any::<u64>(), 20),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, records) = written(&lengths, seed);
        // Some flips anywhere, some in headers, where most can go wrong.
        let anywhere = flips.iter().map(|flip| flip % (8 * log.len() as u64)).collect::<Vec<_>>();
        let headers = records.iter().zip(&flips).map(|(record, flip)| 8 * record.start as u64 + flip % 56);
        for flip in headers.chain(anywhere).map(|flip| flip as usize) {
            log[flip / 8] ^= 1 << (flip % 8);
            let verdict = judge(dir.path(), &log);
            prop_assert!(matches!(verdict, Verdict::Damaged(_)), "bit {}: {:?}", flip, verdict);
            log[flip / 8] ^= 1 << (flip % 8);
        }
    }
}

#[test]
fn every_flipped_bit_of_a_last_record_that_is_mostly_zeros_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Vec::new();
    append(&mut log, &[9; 300]);
    let last = append(&mut log, &[vec![7; 400], vec![0; 1100], vec![7; 9]].concat());
    for bit in 8 * last.start..8 * last.end {
        log[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(judge(dir.path(), &log), Verdict::Damaged(_)), "bit {bit}");
        log[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn anything_after_the_last_part_proves_that_it_was_synced() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, records) = written(&[400, 90_000], 3);
    let hole = records[1].start / SECTOR_BYTES + 9;
    lose(&mut log, records[1].clone(), |sector| sector == hole);
    assert_eq!(judge(dir.path(), &log), Verdict::Torn(records[1].start));
    log.extend([0; 100]);
    assert_eq!(judge(dir.path(), &log), Verdict::Torn(records[1].start));
    log.push(1);
    assert!(matches!(judge(dir.path(), &log), Verdict::Damaged(_)));
}

#[test]
fn damage_without_a_hole_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Vec::new();
    append(&mut log, &[9; 400]);
    let last = append(&mut log, &(0..90_000).map(|i| mix(i) as u8 | 1).collect::<Vec<_>>());
    for at in [last.start + 4000, last.start, last.start + 40_000] {
        for len in [3, 511, 2000] {
            let mut log = log.clone();
            log[at..at + len].iter_mut().for_each(|byte| *byte ^= 0xa6);
            let verdict = judge(dir.path(), &log);
            assert!(matches!(verdict, Verdict::Damaged(_)), "{len} from {at}: {verdict:?}");
        }
    }
}
