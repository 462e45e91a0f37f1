use std::collections::BTreeMap;

use super::block::{FULL, HEADER_BYTES, checksum, masked};
use super::*;
use crate::device::rocks::Rocks;
use crate::device::{Access, Change, KeyValues};

fn record(payload: &[u8]) -> Vec<u8> {
    let mut record = masked(checksum(FULL, payload)).to_le_bytes().to_vec();
    record.extend((payload.len() as u16).to_le_bytes());
    record.push(FULL);
    record.extend(payload);
    record
}

#[test]
fn a_record_that_was_cut_off_is_no_damage() {
    let log = [record(b"first"), record(&[7; 300]), record(b"last")].concat();
    for end in 0..=log.len() {
        assert!(matches!(walk(&log[..end], |_, _| {}), Walk::Ends(_)), "cut at {end}");
    }
    let zeros = [log.clone(), vec![0; 50]].concat();
    assert_eq!(walk(&zeros, |_, _| {}), Walk::Ends(log.len()));
}

#[test]
fn every_flipped_bit_is_damage() {
    let mut log = [record(b"first"), record(&[7; 300]), record(b"last")].concat();
    for bit in 0..8 * log.len() {
        log[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(walk(&log, |_, _| {}), Walk::Damaged(..)), "bit {bit}");
        log[bit / 8] ^= 1 << (bit % 8);
    }
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn pairs(store: &Rocks) -> Pairs {
    let mut pairs = Pairs::new();
    let mut each = |key: &[u8], value: &[u8]| {
        pairs.insert(key.to_vec(), value.to_vec());
        std::ops::ControlFlow::Continue(())
    };
    store.scan(b"", &mut each).unwrap();
    pairs
}

/// A store that was killed with records over several blocks in its log; and what it holds.
fn killed() -> (tempfile::TempDir, Pairs) {
    let (temp, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Rocks::open(temp.path(), Access::Create).unwrap();
    for i in 0..60u8 {
        store.write(&[Change::Put(vec![i], vec![i; 1500])]).unwrap();
    }
    for name in crate::device::rocks::names(temp.path()).unwrap() {
        fs::copy(temp.path().join(&name), copy.path().join(&name)).unwrap();
    }
    (copy, pairs(&store))
}

fn change(path: &Path, at: usize, to: impl Fn(u8) -> u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] = to(bytes[at]);
    fs::write(path, bytes).unwrap();
}

/// Where the headers of a log's records stand.
fn headers(bytes: &[u8]) -> Vec<usize> {
    let (mut at, mut found) = (0, Vec::new());
    while at + HEADER_BYTES <= bytes.len() {
        if BLOCK_BYTES - at % BLOCK_BYTES >= HEADER_BYTES {
            found.push(at);
            at += HEADER_BYTES + usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
        } else {
            at = at.next_multiple_of(BLOCK_BYTES);
        }
    }
    found
}

#[test]
fn every_bit_of_every_header_in_log_and_manifest_is_told_and_salvage_gives_what_stands_before() {
    let (dir, whole) = killed();
    assert_eq!(pairs(&Rocks::open(dir.path(), Access::Read).unwrap()), whole);
    let names = crate::device::rocks::names(dir.path()).unwrap();
    let is_walked = |name: &&String| name.ends_with(".log") || name.starts_with("MANIFEST");
    for name in names.iter().filter(is_walked) {
        let path = dir.path().join(name);
        let bytes = fs::read(&path).unwrap();
        assert!(!is_log(&path) || bytes.len() > 2 * BLOCK_BYTES);
        for (i, at) in headers(&bytes).into_iter().enumerate() {
            for bit in 0..8 * HEADER_BYTES {
                change(&path, at + bit / 8, |byte| byte ^ (1 << (bit % 8)));
                for access in [Access::Read, Access::Write] {
                    let error = Rocks::open(dir.path(), access).unwrap_err();
                    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{name} {at} {bit}");
                    assert!(error.to_string().contains(name.as_str()), "{error}");
                }
                if bit == 48 && is_log(&path) {
                    let store = Rocks::open(dir.path(), Access::Salvage).unwrap();
                    let left = pairs(&store);
                    assert!(left.len() <= i + 1 && left.len() + 3 * (i / 20 + 1) >= i, "{i}");
                    assert!(left.iter().all(|(key, value)| whole[key] == *value));
                }
                fs::write(&path, &bytes).unwrap();
            }
        }
    }
    assert_eq!(pairs(&Rocks::open(dir.path(), Access::Write).unwrap()), whole);
}

#[test]
fn zeros_before_records_and_other_manifests_are_told() {
    let (dir, _) = killed();
    let names = crate::device::rocks::names(dir.path()).unwrap();
    let log = dir.path().join(names.iter().find(|name| name.ends_with(".log")).unwrap());
    let bytes = fs::read(&log).unwrap();
    for zeros in [0..512, 0..BLOCK_BYTES, 40_000..40_512] {
        let mut damaged = bytes.clone();
        damaged[zeros.clone()].fill(0);
        fs::write(&log, damaged).unwrap();
        assert!(Rocks::open(dir.path(), Access::Read).is_err(), "{zeros:?}");
    }
    fs::write(&log, &bytes).unwrap();
    fs::write(dir.path().join("CURRENT"), "../../etc/passwd\n").unwrap();
    let error = Rocks::open(dir.path(), Access::Read).unwrap_err().to_string();
    assert!(error.contains("names no manifest"), "{error}");
}

#[test]
fn a_torn_log_that_was_settled_and_not_removed_changes_nothing() {
    let (dir, mut whole) = killed();
    let names = crate::device::rocks::names(dir.path()).unwrap();
    let log = dir.path().join(names.iter().find(|name| name.ends_with(".log")).unwrap());
    let mut torn = fs::read(&log).unwrap();
    let last = *headers(&torn).last().unwrap();
    let sector = last.next_multiple_of(512) + 512;
    torn[sector..sector + 512].fill(0);
    fs::write(&log, &torn).unwrap();
    whole.remove(&vec![59]).unwrap();
    for _ in 0..3 {
        Rocks::settle(crate::device::rocks::options(), dir.path()).unwrap();
        // As if the power had gone then.
        assert!(fs::read(&log).unwrap() == torn);
        assert_eq!(pairs(&Rocks::open(dir.path(), Access::Read).unwrap()), whole);
    }
    let store = Rocks::open(dir.path(), Access::Write).unwrap();
    assert!(!log.exists());
    store.write(&[Change::Put(vec![1], vec![1])]).unwrap();
    drop(store);
    whole.insert(vec![1], vec![1]);
    assert_eq!(pairs(&Rocks::open(dir.path(), Access::Write).unwrap()), whole);
}

#[test]
fn logs_are_in_the_order_of_their_numbers_whatever_their_length() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["1000000.log", "000009.log", "999999.log", "MANIFEST-000001"] {
        std::fs::write(dir.path().join(name), b"").unwrap();
    }
    assert_eq!(log_names(dir.path()).unwrap(), ["000009.log", "999999.log", "1000000.log"]);
}
