use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::{Rocks, acknowledged, names, scan};
use crate::file_system::{Access, Change, KeyValues};

const BLOCK_BYTES: usize = 32 << 10;
const HEADER_BYTES: usize = 7;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn pairs(store: &Rocks) -> Pairs {
    let mut pairs = Pairs::new();
    let mut each = |key: &[u8], value: &[u8]| {
        pairs.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    };
    store.scan_from(b"", &mut each).unwrap();
    pairs
}

/// Opens a store and returns all of it, or the words of the error.
fn open(dir: &Path, access: Access) -> Result<Pairs, String> {
    match Rocks::open(dir, access) {
        Ok(store) => Ok(pairs(&store)),
        Err(error) => {
            let words = error.to_string();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{words}");
            Err(words)
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in names(from).unwrap() {
        fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |name: String| (name.clone(), fs::read(dir.join(name)).unwrap());
    names(dir).unwrap().into_iter().map(read).collect()
}

fn put(store: &Rocks, key: u8, n_bytes: usize) {
    store.write(&[Change::Put(vec![key], vec![key; n_bytes])]).unwrap();
}

/// A store that was killed with a table and a log of such writes.
struct Killed {
    temp: tempfile::TempDir,
    /// Its pairs before the first write of the log, and after each.
    after: Vec<Pairs>,
    /// The bytes of the log at these times, and what was acknowledged.
    ends: Vec<(usize, Vec<u8>)>,
}

impl Killed {
    fn after(writes: impl Iterator<Item = usize>) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let open = temp.path().join("open");
        let store = Rocks::open(&open, Access::Create).unwrap();
        put(&store, 255, 100);
        store.flush().unwrap();
        let mut killed = Self { temp, after: Vec::new(), ends: Vec::new() };
        let note = |killed: &mut Self| {
            let log = open.join(scan::log_names(&open).unwrap().pop().unwrap());
            let acknowledged = fs::read(open.join("ACKNOWLEDGED")).unwrap();
            killed.after.push(pairs(&store));
            killed.ends.push((fs::metadata(log).unwrap().len() as usize, acknowledged));
        };
        note(&mut killed);
        for (key, n_bytes) in writes.enumerate() {
            put(&store, key as u8 + 1, n_bytes);
            note(&mut killed);
        }
        copy(&open, &killed.dir());
        assert_eq!(scan::log_names(&killed.dir()).unwrap().len(), 1);
        killed
    }

    fn dir(&self) -> PathBuf {
        self.temp.path().join("killed")
    }

    fn log(&self) -> String {
        scan::log_names(&self.dir()).unwrap().pop().unwrap()
    }

    fn whole(&self) -> &Pairs {
        self.after.last().unwrap()
    }

    /// Sets back what was acknowledged to the first `n` writes of the log.
    fn acknowledge(&self, n: usize) {
        fs::write(self.dir().join("ACKNOWLEDGED"), &self.ends[n].1).unwrap();
    }

    /// Replaces the bytes of a file.
    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.dir().join(name), bytes).unwrap();
    }

    /// Asserts that both ways to open fail, name the file and say what to do, and change nothing on
    /// disk.
    #[track_caller]
    fn assert_refused(&self, name: &str, what: &str) {
        let before = contents(&self.dir());
        for access in [Access::Read, Access::Write] {
            let Err(words) = open(&self.dir(), access) else { panic!("{what}: it opens") };
            assert!(words.contains(name), "{what}: {words}");
            assert!(!name.ends_with(".log") || words.contains("lode repair"), "{what}: {words}");
        }
        let mut after = contents(&self.dir());
        after.retain(|name, _| before.contains_key(name));
        assert!(before == after, "{what}: a refused opening changed files");
    }
}

/// Returns where the headers of a log's records are.
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
fn every_bit_of_every_header_is_reported_and_salvage_returns_the_writes_before() {
    let killed = Killed::after((0..60).map(|_| 1500));
    let log = killed.log();
    for name in [log.clone(), manifest(&killed.dir())] {
        let name = name.as_str();
        let bytes = fs::read(killed.dir().join(name)).unwrap();
        assert!(name != log || bytes.len() > 2 * BLOCK_BYTES);
        for at in headers(&bytes) {
            for bit in 8 * at..8 * (at + HEADER_BYTES) {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                killed.write(name, &damaged);
                killed.assert_refused(name, &format!("{name} bit {bit}"));
                if name == log && bit % 11 == 0 {
                    // The writes that end before the record.
                    let n = killed.ends.iter().rposition(|(end, _)| *end <= at).unwrap_or(0);
                    let salvaged = open(&killed.dir(), Access::Salvage);
                    assert!(salvaged.as_ref() == Ok(&killed.after[n]), "bit {bit}");
                }
            }
        }
        killed.write(name, &bytes);
    }
    assert!(open(&killed.dir(), Access::Write).as_ref() == Ok(killed.whole()));
}

#[test]
fn every_bit_of_the_first_a_middle_and_the_last_write_is_reported() {
    let killed = Killed::after([40, 0, 70, 33_000, 50].into_iter());
    let log = killed.log();
    let bytes = fs::read(killed.dir().join(&log)).unwrap();
    for write in [0, 2, 4] {
        let range = killed.ends[write].0..killed.ends[write + 1].0;
        for bit in 8 * range.start..8 * range.end {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            killed.write(&log, &damaged);
            let what = format!("write {write} bit {bit}");
            killed.assert_refused(&log, &what);
            let salvaged = open(&killed.dir(), Access::Salvage);
            assert!(salvaged.as_ref() == Ok(&killed.after[write]), "{what}");
        }
    }
}

#[test]
fn a_log_of_any_length_is_whole_up_to_what_was_acknowledged_or_refused() {
    let killed = Killed::after([40, 0, 90].into_iter());
    let log = killed.log();
    let bytes = fs::read(killed.dir().join(&log)).unwrap();
    let before = contents(&killed.dir());
    for len in 0..=bytes.len() {
        for n_acknowledged in 0..killed.after.len() {
            killed.write(&log, &bytes[..len]);
            killed.acknowledge(n_acknowledged);
            let n_left = killed.ends.iter().rposition(|(end, _)| *end <= len).unwrap_or(0);
            if n_left < n_acknowledged {
                killed.assert_refused(&log, &format!("{len} bytes, {n_acknowledged} writes"));
                continue;
            }
            let expected = Ok(&killed.after[n_left]);
            assert!(open(&killed.dir(), Access::Read).as_ref() == expected, "{len} bytes");
            assert!(open(&killed.dir(), Access::Write).as_ref() == expected, "{len} bytes");
            fs::remove_dir_all(killed.dir()).unwrap();
            fs::create_dir(killed.dir()).unwrap();
            before.iter().for_each(|(name, bytes)| killed.write(name, bytes));
        }
    }
}

#[test]
fn every_missing_sector_of_what_was_acknowledged_is_reported() {
    let killed = Killed::after((0..60).map(|i| 1200 + 13 * i));
    let log = killed.log();
    let bytes = fs::read(killed.dir().join(&log)).unwrap();
    for sector_bytes in [512, 4096, BLOCK_BYTES] {
        for start in (0..bytes.len()).step_by(sector_bytes) {
            let mut damaged = bytes.clone();
            damaged[start..bytes.len().min(start + sector_bytes)].fill(0);
            killed.write(&log, &damaged);
            killed.assert_refused(&log, &format!("{sector_bytes} zeros at {start}"));
        }
    }
}

/// Zeros that begin with a record, and a record that begins with the next block. The writes after
/// the zeros have the sequence numbers that were acknowledged.
#[test]
fn zeros_over_whole_writes_before_a_block_are_reported() {
    // The log's last write of a block ends with it.
    let killed = Killed::after([1000, BLOCK_BYTES - 1100, 100, 100].into_iter());
    let log = killed.log();
    let bytes = fs::read(killed.dir().join(&log)).unwrap();
    let end = killed.ends[2].0;
    assert!((end..end + HEADER_BYTES).contains(&BLOCK_BYTES) || end < BLOCK_BYTES, "{end}");
    let room = BLOCK_BYTES - end;
    let killed = Killed::after([1000, BLOCK_BYTES - 1100 + room, 100, 100].into_iter());
    assert_eq!(killed.ends[2].0, BLOCK_BYTES);
    let mut damaged = fs::read(killed.dir().join(&log)).unwrap();
    assert!(damaged.len() > bytes.len());
    damaged[..512].fill(0);
    killed.write(&log, &damaged);
    killed.assert_refused(&log, "zeros");
    let salvaged = open(&killed.dir(), Access::Salvage);
    assert!(salvaged.as_ref() == Ok(&killed.after[0]));
}

#[test]
fn a_missing_log_is_reported_and_salvage_returns_the_tables() {
    let killed = Killed::after([40, 50].into_iter());
    fs::remove_file(killed.dir().join(killed.log())).unwrap();
    killed.assert_refused("WAL", "no log");
    let salvaged = open(&killed.dir(), Access::Salvage);
    assert!(salvaged.as_ref() == Ok(&killed.after[0]));
}

/// As a kill while a table is written leaves it: two logs that count, the first complete.
#[test]
fn an_earlier_log_that_is_missing_or_too_short_is_reported() {
    let killed = Killed::after([40, 50, 60].into_iter());
    let first = killed.log();
    let open_dir = killed.temp.path().join("writes");
    copy(&killed.dir(), &open_dir);
    let store = Rocks::open(&open_dir, Access::Write).unwrap();
    put(&store, 9, 70);
    let earlier = scan::log_names(&open_dir).unwrap().pop().unwrap();
    let two = killed.temp.path().join("two");
    copy(&open_dir, &two);
    store.flush().unwrap();
    put(&store, 10, 80);
    let whole = pairs(&store);
    let later = scan::log_names(&open_dir).unwrap().pop().unwrap();
    assert!(first < earlier && earlier < later);
    for name in [later.as_str(), "ACKNOWLEDGED"] {
        fs::copy(open_dir.join(name), two.join(name)).unwrap();
    }
    assert!(open(&two, Access::Read).as_ref() == Ok(&whole));
    let bytes = fs::read(two.join(&earlier)).unwrap();
    for len in 0..bytes.len() {
        fs::write(two.join(&earlier), &bytes[..len]).unwrap();
        let words = open(&two, Access::Read).unwrap_err();
        assert!(words.contains(&earlier) && words.contains("lode repair"), "{len}: {words}");
    }
    fs::remove_file(two.join(&earlier)).unwrap();
    let words = open(&two, Access::Read).unwrap_err();
    let number = earlier.trim_start_matches('0').trim_end_matches(".log");
    assert!(words.contains(&format!("Missing WAL of log number {number}")), "{words}");
    fs::write(two.join(&earlier), bytes).unwrap();
    assert!(open(&two, Access::Write).as_ref() == Ok(&whole));
}

/// A log does not say whose it is: one of another store is noticed where it is shorter.
#[test]
fn a_shorter_log_of_another_store_is_reported() {
    let [killed, other] = [3, 2].map(|n| Killed::after((0..n).map(|i| 40 + i)));
    let log = killed.log();
    assert_eq!(log, other.log());
    killed.write(&log, &fs::read(other.dir().join(&log)).unwrap());
    killed.assert_refused(&log, "swapped");
}

/// Returns the name of the manifest that counts.
fn manifest(dir: &Path) -> String {
    fs::read_to_string(dir.join("CURRENT")).unwrap().trim_end().to_owned()
}

#[test]
fn a_manifest_of_any_length_is_reported_or_loses_nothing() {
    let killed = Killed::after([40, 50].into_iter());
    let again = killed.temp.path().join("again");
    copy(&killed.dir(), &again);
    let mut store = Rocks::open(&again, Access::Write).unwrap();
    put(&store, 8, 70);
    store.flush().unwrap();
    drop(store);
    store = Rocks::open(&again, Access::Write).unwrap();
    put(&store, 9, 70);
    let reopened = killed.temp.path().join("reopened");
    copy(&again, &reopened);
    for (dir, whole) in [(killed.dir(), killed.whole().clone()), (reopened, pairs(&store))] {
        let name = manifest(&dir);
        let bytes = fs::read(dir.join(&name)).unwrap();
        let mut n_reported = 0;
        for len in 0..bytes.len() {
            fs::write(dir.join(&name), &bytes[..len]).unwrap();
            match open(&dir, Access::Read) {
                Ok(found) => assert!(found == whole, "{len} of {} bytes", bytes.len()),
                Err(words) => {
                    n_reported += 1;
                    assert!(words.contains(&name) || words.contains("WAL"), "{words}");
                }
            }
        }
        assert!(n_reported > bytes.len() / 2, "{n_reported} of {}", bytes.len());
    }
}

#[test]
fn a_missing_manifest_and_one_that_is_none_are_reported() {
    let killed = Killed::after([40].into_iter());
    let name = manifest(&killed.dir());
    fs::remove_file(killed.dir().join(&name)).unwrap();
    killed.assert_refused(&name, "no manifest");
    killed.write("CURRENT", b"../../etc/passwd\n");
    killed.assert_refused("names no manifest", "CURRENT");
}

#[test]
fn a_store_without_the_file_opens_and_gets_one() {
    let killed = Killed::after([40, 50].into_iter());
    fs::remove_file(killed.dir().join("ACKNOWLEDGED")).unwrap();
    assert!(open(&killed.dir(), Access::Read).as_ref() == Ok(killed.whole()));
    assert_eq!(acknowledged::read(&killed.dir()).unwrap(), None, "a reader writes nothing");
    assert!(open(&killed.dir(), Access::Write).as_ref() == Ok(killed.whole()));
    assert!(acknowledged::read(&killed.dir()).unwrap().is_some());
}

#[test]
fn logs_are_in_the_order_of_their_numbers_whatever_their_length() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["1000000.log", "000009.log", "999999.log", "MANIFEST-000001"] {
        fs::write(dir.path().join(name), b"").unwrap();
    }
    assert_eq!(scan::log_names(dir.path()).unwrap(), ["000009.log", "999999.log", "1000000.log"]);
}
