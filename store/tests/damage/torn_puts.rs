//! Losses of power in a write: the log of a catalog lacks sectors of its last record.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lodestore_graph::{NodeId, splitmix64};
use lodestore_store::Graph;
use lodestore_store::file_system::{Access, Change, Disk, FileSystem};
use lodestore_store::repair::{RepairMode, repair};
use lodestore_store::verify::verify;
use proptest::prelude::*;

use crate::damage::catalogs::{Pairs, copy_tree, pairs};
use testing::sample::{N_NODES, all_rows, import, update};

const SECTOR_BYTES: usize = 512;

fn log_of(dir: &Path) -> PathBuf {
    let mut logs = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    logs.find(|path| path.extension().is_some_and(|end| end == "log")).unwrap()
}

/// Zeros in place of the sectors of `record` that `is_lost` names; of its share of the first.
fn lose(log: &mut [u8], record: Range<usize>, is_lost: impl Fn(usize) -> bool) {
    let mut at = record.start;
    while at < record.end {
        let end = record.end.min((at / SECTOR_BYTES + 1) * SECTOR_BYTES);
        if is_lost(at / SECTOR_BYTES) {
            log[at..end].fill(0);
        }
        at = end;
    }
}

/// The file with the number of the last write that was acknowledged.
const ACKNOWLEDGED: &str = "ACKNOWLEDGED";

/// A store that was killed in the last of some writes, all of which are in its log.
struct Killed {
    dir: tempfile::TempDir,
    /// Where each is in the log, and what the store held after it.
    writes: Vec<(Range<usize>, Pairs)>,
}

impl Killed {
    /// Checks that each write has as many bytes in keys of its own, and changes a key that all
    /// have.
    fn after(writes: &[usize], seed: u64) -> Self {
        let (dir, temp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (open, mut held) = (temp.path().join("open"), Pairs::new());
        let store = Disk.key_values(&open, Access::Create).unwrap();
        let (mut done, mut acknowledged) = (Vec::new(), Vec::new());
        for (i, &n_bytes) in writes.iter().enumerate() {
            let start = fs::metadata(log_of(&open)).unwrap().len() as usize;
            let byte = |at: usize| splitmix64(seed ^ (i as u64) << 32 ^ at as u64) as u8;
            let bytes: Vec<u8> = (0..n_bytes).map(byte).collect();
            let key = |j| format!("{i:03} {j:05}").into_bytes();
            let own = bytes.chunks(700).enumerate().map(|(j, value)| (key(j), value.to_vec()));
            let put: Pairs = own.chain([(b"all".to_vec(), vec![i as u8; 30])]).collect();
            held.extend(put.clone());
            let changes = put.into_iter().map(|(key, value)| Change::Put(key, value));
            acknowledged = fs::read(open.join(ACKNOWLEDGED)).unwrap();
            store.write(&changes.collect::<Vec<_>>()).unwrap();
            let end = fs::metadata(log_of(&open)).unwrap().len() as usize;
            done.push((start..end, held.clone()));
        }
        copy_tree(&open, dir.path());
        fs::write(dir.path().join(ACKNOWLEDGED), acknowledged).unwrap();
        Self { dir, writes: done }
    }
}

fn config() -> ProptestConfig {
    let cases = if std::env::var_os("LODE_LONG").is_some() { 1000 } else { 40 };
    ProptestConfig { cases, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_write_that_lacks_sectors_is_left_out_and_the_store_continues(
        writes in prop::collection::vec(prop_oneof![1..2000usize, 30_000..150_000usize], 2..5),
        seed: u64, share in 1..=4u64, cut in prop::option::of(any::<u64>()),
    ) {
        let killed = Killed::after(&writes, seed);
        let (dir, log) = (killed.dir.path(), log_of(killed.dir.path()));
        let [.., (_, before), (last, after)] = &killed.writes[..] else { unreachable!() };
        let whole = fs::read(&log).unwrap();
        let mut bytes = whole.clone();
        lose(&mut bytes, last.clone(), |sector| splitmix64(seed ^ sector as u64).is_multiple_of(share));
        if let Some(cut) = cut {
            bytes.truncate(last.start + (cut % last.len() as u64) as usize);
        }
        fs::write(&log, &bytes).unwrap();
        let expected = if bytes == whole { after } else { before };
        let read = pairs(dir, Access::Read);
        prop_assert!(read.as_ref() == Ok(expected), "{:?}", read.map(|pairs| pairs.len()));
        prop_assert!(fs::read(&log).unwrap() == bytes, "a reader writes nothing");
        let mut expected = expected.clone();
        for i in 0..3u8 {
            prop_assert!(pairs(dir, Access::Write).as_ref() == Ok(&expected));
            let store = Disk.key_values(dir, Access::Write).unwrap();
            store.write(&[Change::Put(b"all".to_vec(), vec![i])]).unwrap();
            expected.insert(b"all".to_vec(), vec![i]);
        }
        prop_assert!(pairs(dir, Access::Read).as_ref() == Ok(&expected));
    }

    #[test]
    fn an_earlier_write_that_lacks_sectors_is_damage_and_says_what_to_do(
        writes in prop::collection::vec(prop_oneof![1..2000usize, 30_000..150_000usize], 2..5),
        seed: u64, which: prop::sample::Index, share in 1..=4u64,
    ) {
        let killed = Killed::after(&writes, seed);
        let (dir, log) = (killed.dir.path(), log_of(killed.dir.path()));
        let (earlier, _) = &killed.writes[which.index(writes.len() - 1)];
        let whole = fs::read(&log).unwrap();
        let mut bytes = whole.clone();
        lose(&mut bytes, earlier.clone(), |sector| splitmix64(seed ^ sector as u64).is_multiple_of(share));
        prop_assume!(bytes != whole);
        fs::write(&log, &bytes).unwrap();
        for access in [Access::Read, Access::Write] {
            let told = pairs(dir, access).unwrap_err();
            prop_assert!(told.contains(".log") && told.contains("lode repair"), "{}", told);
        }
    }
}

/// The graph opens, is sound, and has all that was acknowledged.
#[test]
fn a_graph_whose_last_put_lacks_sectors_opens_and_is_sound() {
    let temp = tempfile::tempdir().unwrap();
    let [path, at_loss] = ["graph", "loss"].map(|name| temp.path().join(name));
    let live = update(import(&path));
    let catalog = path.join("part-000/catalog");
    let start = fs::metadata(log_of(&catalog)).unwrap().len() as usize;
    let acknowledged = all_rows(Graph::open(&path).unwrap()).unwrap();
    let number = fs::read(catalog.join(ACKNOWLEDGED)).unwrap();
    let ids: Vec<NodeId> = (0..N_NODES / 2).map(NodeId).collect();
    let noise: Vec<u8> = (0..ids.len() * 99).map(|i| splitmix64(i as u64) as u8).collect();
    live.put_rows("feat", &ids, &noise).unwrap();
    copy_tree(&path, &at_loss);
    fs::write(at_loss.join("part-000/catalog").join(ACKNOWLEDGED), number).unwrap();
    let log = log_of(&at_loss.join("part-000/catalog"));
    let mut bytes = fs::read(&log).unwrap();
    assert!(bytes.len() > start + 20_000);
    let record = start..bytes.len();
    lose(&mut bytes, record, |sector| sector % 11 == 5);
    fs::write(&log, bytes).unwrap();
    let is_sound = || {
        let report = verify(&at_loss, &mut |_, _| {}).unwrap();
        assert!(report.ok, "{report:?}");
        assert!(all_rows(Graph::open(&at_loss).unwrap()).unwrap() == acknowledged);
    };
    is_sound();
    let report = repair(&at_loss, RepairMode::Apply, &mut |_, _| {}).unwrap();
    assert!(report.ok && report.done.is_empty() && report.lost.is_empty(), "{report:?}");
    is_sound();
    drop(live);
}
