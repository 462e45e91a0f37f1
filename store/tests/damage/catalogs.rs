//! Single flipped bits of the files of a catalog.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lodestore_store::file_system::{Access, Disk, FileSystem};
use lodestore_store::verify::verify;

use crate::damage::{Numbers, n_trials};
use testing::sample::{import, update};

pub(crate) type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns all that a catalog answers, or why it does not.
pub(crate) fn pairs(dir: &Path, access: Access) -> Result<Pairs, String> {
    let store = Disk.key_values(dir, access).map_err(|error| error.to_string())?;
    let mut pairs = Pairs::new();
    let mut each = |key: &[u8], value: &[u8]| {
        pairs.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    };
    store.scan_from(b"", &mut each).map_err(|error| error.to_string())?;
    for (key, value) in &pairs {
        match store.get(key) {
            Ok(Some(found)) if found == *value => {}
            other => return Err(format!("{other:?} for {key:?}")),
        }
    }
    Ok(pairs)
}

/// Results of flips in a file's bits.
#[derive(Debug, Default)]
struct Tally {
    reported: u64,
    harmless: u64,
}

/// Flips `n` bits, one at a time, all over the files of a catalog: what was there is answered, or
/// an error.
fn flip_all_over(dir: &Path, n: u64, seed: u64) -> BTreeMap<String, Tally> {
    let whole = pairs(dir, Access::Read).unwrap();
    let files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    let sizes: Vec<u64> = files.iter().map(|file| fs::metadata(file).unwrap().len()).collect();
    let mut numbers = Numbers(seed);
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for _ in 0..n {
        let mut byte = numbers.below(sizes.iter().sum());
        let mut i = 0;
        while byte >= sizes[i] {
            byte -= sizes[i];
            i += 1;
        }
        let bit = numbers.below(8);
        let file = OpenOptions::new().read(true).write(true).open(&files[i]).unwrap();
        let mut found = [0];
        file.read_exact_at(&mut found, byte).unwrap();
        file.write_all_at(&[found[0] ^ (1 << bit)], byte).unwrap();
        let answer = pairs(dir, Access::Read);
        file.write_all_at(&found, byte).unwrap();
        let name = files[i].file_name().unwrap().to_string_lossy().into_owned();
        let tally = tallies.entry(name.clone()).or_default();
        match answer {
            Err(_) => tally.reported += 1,
            Ok(answer) => {
                assert!(answer == whole, "{name} byte {byte} bit {bit} changes what is there");
                tally.harmless += 1;
            }
        }
    }
    assert_eq!(pairs(dir, Access::Read).unwrap(), whole);
    tallies
}

/// RocksDB's own settings and its name of itself are not read.
fn check(tallies: &BTreeMap<String, Tally>) {
    println!("{tallies:#?}");
    for (name, tally) in tallies {
        let is_read = !name.starts_with("OPTIONS") && name != "IDENTITY";
        assert!(!is_read || tally.harmless == 0, "{name}: {tally:?}");
    }
}

#[test]
fn every_flipped_bit_of_a_catalog_is_reported_or_changes_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let graph = import(&temp.path().join("graph"));
    let catalog = temp.path().join("graph/part-000/catalog");
    let copy = |name: &str| {
        copy_tree(&catalog, &temp.path().join(name));
        temp.path().join(name)
    };
    // No write is in the log of a catalog that was closed.
    let in_no_log = |mut tallies: BTreeMap<String, Tally>| {
        tallies.retain(|name, _| !name.ends_with(".log"));
        tallies
    };
    check(&in_no_log(flip_all_over(&copy("imported"), n_trials() / 4, 4)));
    let live = update(graph);
    // As a kill leaves it: the rows are in the log.
    let open = flip_all_over(&copy("open"), n_trials() / 2, 5);
    assert!(open.keys().any(|name| name.ends_with(".log")));
    check(&open);
    drop(live);
    check(&in_no_log(flip_all_over(&copy("closed"), n_trials() / 4, 6)));
}

/// Flips a bit of a file for as long as `look` takes.
fn with_flip<T>(path: &Path, numbers: &mut Numbers, look: impl FnOnce(u64) -> T) -> T {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let bit = numbers.below(8 * file.metadata().unwrap().len());
    let mut found = [0];
    file.read_exact_at(&mut found, bit / 8).unwrap();
    file.write_all_at(&[found[0] ^ (1 << (bit % 8))], bit / 8).unwrap();
    let seen = look(bit);
    file.write_all_at(&found, bit / 8).unwrap();
    seen
}

/// Every kind of file of a catalog as often as every other. Verification names the file, or the
/// catalog answers as before, also to a writer.
#[test]
fn verification_names_the_file_of_a_catalog_with_a_flipped_bit() {
    let temp = tempfile::tempdir().unwrap();
    let [path, copy] = ["graph", "copy"].map(|name| temp.path().join(name));
    let live = update(import(&path));
    // As a kill leaves it: tables, and rows in the log.
    let killed = temp.path().join("killed");
    copy_tree(&path, &killed);
    drop(live);
    let catalog = killed.join("part-000/catalog");
    let whole = pairs(&catalog, Access::Read).unwrap();
    let mut names: Vec<String> = fs::read_dir(&catalog)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| fs::metadata(catalog.join(name)).unwrap().len() > 0);
    names.sort();
    let kinds = [".sst", ".log", "MANIFEST", "CURRENT", "OPTIONS", "IDENTITY", "ACKNOWLEDGED"];
    assert!(kinds.iter().all(|kind| names.iter().any(|name| name.contains(kind))), "{names:?}");
    let (mut numbers, mut tallies) = (Numbers(8), BTreeMap::<String, Tally>::new());
    for i in 0..n_trials().min(6000) / 2 {
        let name = names[i as usize % names.len()].as_str();
        let tally = tallies.entry(name.to_owned()).or_default();
        with_flip(&catalog.join(name), &mut numbers, |bit| {
            let report = verify(&killed, &mut |_, _| {}).unwrap();
            // RocksDB does not say which of its tables it cannot open.
            let is_told = |reason: &str| {
                reason.contains(name)
                    || name.ends_with(".sst") && reason.contains("one of its tables (.sst)")
            };
            let is_named = report.damaged.iter().any(|damage| is_told(&damage.reason));
            assert!(report.ok || is_named, "{name} bit {bit}: {report:#?}");
            if !report.ok {
                tally.reported += 1;
                return;
            }
            tally.harmless += 1;
            assert!(pairs(&catalog, Access::Read).as_ref() == Ok(&whole), "{name} bit {bit}");
            copy_tree(&catalog, &copy);
            let written = pairs(&copy, Access::Write);
            fs::remove_dir_all(&copy).unwrap();
            assert!(written.as_ref() == Ok(&whole), "{name} bit {bit}: {written:?}");
        });
    }
    check(&tallies);
    assert!(verify(&killed, &mut |_, _| {}).unwrap().ok);
}

/// Copies a folder and all below it.
pub(crate) fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) = entry.map(|e| (e.path(), to.join(e.file_name()))).unwrap();
        if path.is_dir() {
            copy_tree(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
        }
    }
}
