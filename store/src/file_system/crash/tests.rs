use std::collections::BTreeSet;
use std::ops::ControlFlow;

use rustix::io::Errno;

use super::*;
use crate::file_system::Change;

const SEEDS: std::ops::Range<u64> = 0..300;

fn bytes_of(fs: &CrashFileSystem, path: &str) -> Option<Vec<u8>> {
    let file = fs.open(Path::new(path)).ok()?;
    let mut bytes = vec![0; file.len_bytes().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

fn names(fs: &CrashFileSystem, path: &str) -> Vec<String> {
    fs.list(Path::new(path)).unwrap().into_iter().map(|entry| entry.name).collect()
}

/// Returns a file whose name is durable and whose bytes are synced as far as `synced`.
fn written(bytes: &[u8], synced: usize) -> (CrashFileSystem, Box<dyn FileWriter>) {
    let fs = CrashFileSystem::new(1);
    let mut file = fs.create(Path::new("a")).unwrap();
    fs.sync(Path::new("/")).unwrap();
    file.append(&bytes[..synced]).unwrap();
    file.sync().unwrap();
    file.append(&bytes[synced..]).unwrap();
    (fs, file)
}

fn outcomes<T: Ord>(fs: &CrashFileSystem, look: impl Fn(&CrashFileSystem) -> T) -> BTreeSet<T> {
    SEEDS.map(|seed| look(&fs.after_loss(seed))).collect()
}

#[test]
fn what_was_synced_stays_and_what_was_not_is_there_cut_torn_or_gone() {
    let bytes: Vec<u8> = (0..3000u32).map(|i| (i % 251) as u8 + 1).collect();
    let (fs, _file) = written(&bytes, 1000);
    let found = outcomes(&fs, |fs| bytes_of(fs, "a").unwrap());
    assert!(found.iter().all(|found| found[..1000] == bytes[..1000] && found.len() <= 3000));
    assert!(found.contains(&bytes) && found.contains(&bytes[..1000]));
    let full = || found.iter().filter(|found| found.len() == 3000);
    assert!(
        full().any(|found| found[1000..1024] == bytes[1000..1024] && found[1024..1536] == [0; 512])
    );
    assert!(
        full().any(|found| found[2048..2560] != bytes[2048..2560] && found[2048..2560] != [0; 512])
    );
    assert!(found.iter().any(|found| !found.len().is_multiple_of(512)), "any length");
    fs.sync(Path::new("a")).unwrap();
    assert_eq!(outcomes(&fs, |fs| bytes_of(fs, "a").unwrap()), [bytes].into());
}

#[test]
fn a_synced_file_without_a_durable_name_may_be_gone() {
    let fs = CrashFileSystem::new(1);
    let mut file = fs.create(Path::new("a")).unwrap();
    file.append(b"rows").unwrap();
    file.sync().unwrap();
    let found = outcomes(&fs, |fs| bytes_of(fs, "a"));
    assert_eq!(found, [None, Some(b"rows".to_vec())].into());
    fs.sync(Path::new(".")).unwrap();
    assert_eq!(outcomes(&fs, |fs| bytes_of(fs, "a")), [Some(b"rows".to_vec())].into());
}

#[test]
fn changes_of_names_happen_each_on_its_own_and_a_rename_keeps_one_name() {
    let (fs, _file) = written(b"old", 3);
    fs.create(Path::new("b")).unwrap();
    fs.rename(Path::new("a"), Path::new("c")).unwrap();
    let found = outcomes(&fs, |fs| names(fs, "").join(" "));
    assert_eq!(found, ["a", "a b", "b c", "c"].map(String::from).into());
    fs.sync(Path::new("")).unwrap();
    fs.replace(Path::new("b"), Path::new("c")).unwrap();
    let found = outcomes(&fs, |fs| (names(fs, "").join(" "), bytes_of(fs, "c")));
    let (old, new) = (Some(b"old".to_vec()), Some(Vec::new()));
    assert_eq!(found, [("b c".to_owned(), old), ("c".to_owned(), new)].into());
    fs.remove_file(Path::new("c")).unwrap();
    let found = outcomes(&fs, |fs| names(fs, "").join(" "));
    assert_eq!(found, ["", "b c", "c"].map(String::from).into());
    assert!(names(&fs, "").is_empty());
}

#[test]
fn names_are_refused_as_a_file_system_refuses_them() {
    let (fs, _file) = written(b"old", 3);
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    let path = Path::new;
    fs.create_dir(path("d")).unwrap();
    fs.create_dir(path("/d")).unwrap();
    fs.create(path("d/b")).unwrap();
    assert_eq!(kind(fs.create(path("a")).map(|_| ())), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(fs.create_dir(path("a"))), io::ErrorKind::NotADirectory);
    assert_eq!(kind(fs.create_dir(path("x/y"))), io::ErrorKind::NotFound);
    assert_eq!(kind(fs.create(path("a/b")).map(|_| ())), io::ErrorKind::NotADirectory);
    assert_eq!(kind(fs.open(path("d")).map(|_| ())), io::ErrorKind::IsADirectory);
    assert_eq!(kind(fs.rename(path("a"), path("d"))), io::ErrorKind::AlreadyExists);
    fs.create_dir(path("e")).unwrap();
    assert_eq!(kind(fs.rename(path("e"), path("e/e"))), io::ErrorKind::InvalidInput);
    fs.create(path("e/c")).unwrap();
    fs.rename(path("e"), path("d/e")).unwrap();
    assert!(fs.exists(path("d/e/c")) && !fs.exists(path("e")));
    fs.remove_dir_all(path("d/e")).unwrap();
    fs.rename(path("a"), path("d/a")).unwrap();
    fs.rename(path("d/a"), path("a")).unwrap();
    assert_eq!(kind(fs.replace(path("a"), path("d"))), io::ErrorKind::IsADirectory);
    assert_eq!(kind(fs.remove_file(path("d"))), io::ErrorKind::IsADirectory);
    assert_eq!(kind(fs.remove_dir_all(path("a"))), io::ErrorKind::NotADirectory);
    assert_eq!(kind(fs.remove_file(path("d/../a"))), io::ErrorKind::InvalidInput);
    assert_eq!((names(&fs, "d"), names(&fs, "")), (vec!["b".into()], vec!["a".into(), "d".into()]));
    fs.remove_dir_all(path("d")).unwrap();
    assert!(!fs.exists(path("d")) && fs.exists(path("a")));
}

#[test]
fn an_open_file_outlives_its_name() {
    let (fs, _file) = written(b"rows", 4);
    let reader = fs.open(Path::new("a")).unwrap();
    fs.remove_file(Path::new("a")).unwrap();
    let mut bytes = [0; 2];
    reader.read_exact_at(&mut bytes, 1).unwrap();
    assert_eq!(&bytes, b"ow");
}

#[test]
fn a_file_that_is_pinned_keeps_its_name() {
    let fs = CrashFileSystem::new(1);
    fs.create_dir(Path::new("d")).unwrap();
    let path = Path::new("d/f");
    fs.create(path).unwrap();
    let reader = fs.open(path).unwrap();
    reader.pin().unwrap();
    assert!(!fs.remove_if_unpinned(path).unwrap() && fs.exists(path));
    drop(reader);
    assert!(fs.remove_if_unpinned(path).unwrap() && !fs.exists(path));
    assert!(fs.remove_if_unpinned(path).unwrap(), "what is not there is gone");
    assert!(fs.remove_if_unpinned(Path::new("none/f")).unwrap());
}

#[test]
fn a_failed_sync_has_forgotten_what_it_was_for() {
    let (fs, mut file) = written(b"rows and more", 4);
    fs.arm(Some(Plan { fault: Fault::Errno(Errno::IO), after: 0, sticky: false }));
    assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
    file.sync().unwrap();
    assert_eq!(bytes_of(&fs, "a").unwrap(), b"rows and more");
    let found = outcomes(&fs, |fs| bytes_of(fs, "a").unwrap());
    assert!(found.contains(b"rows".as_slice()) && found.contains(b"rows and more".as_slice()));
    assert!(found.iter().all(|found| found.starts_with(b"rows")));
    fs.create(Path::new("b")).unwrap();
    fs.arm(Some(Plan { fault: Fault::Errno(Errno::IO), after: 0, sticky: false }));
    fs.sync(Path::new("")).unwrap_err();
    fs.sync(Path::new("")).unwrap();
    assert_eq!(outcomes(&fs, |fs| names(fs, "").len()), [1, 2].into());
    // Nothing is forgotten by a sync that was not begun.
    file.append(b"!").unwrap();
    fs.arm(Some(Plan { fault: Fault::Errno(Errno::MFILE), after: 0, sticky: false }));
    file.sync().unwrap_err();
    file.sync().unwrap();
    assert!(outcomes(&fs, |fs| bytes_of(fs, "a").unwrap()[13..] == *b"!").contains(&true));
}

#[test]
fn faults_come_when_they_are_planned_once_or_for_ever() {
    let (fs, mut file) = written(&[7; 100], 100);
    let reader = fs.open(Path::new("a")).unwrap();
    let read = || reader.read_at(&mut [0; 10], 0);
    fs.arm(Some(Plan { fault: Fault::ShortRead, after: 1, sticky: false }));
    assert_eq!([read(), read(), read()].map(Result::unwrap), [10, 5, 10]);
    assert!(fs.has_struck());
    reader.read_exact_at(&mut [0; 100], 0).unwrap();
    let no_space = Fault::Errno(Errno::NOSPC);
    fs.arm(Some(Plan { fault: no_space, after: 0, sticky: true }));
    assert_eq!(read().unwrap(), 10);
    for _ in 0..3 {
        assert_eq!(file.append(&[8; 9]).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
    fs.arm(None);
    file.append(&[9]).unwrap();
    let bytes = bytes_of(&fs, "a").unwrap();
    assert!((101..128).contains(&bytes.len()) && bytes.ends_with(&[9]));
}

#[test]
fn nothing_works_after_the_power_went_and_the_last_operation_may_have_happened() {
    let (fs, mut file) = written(b"rows", 4);
    fs.arm(Some(Plan { fault: Fault::PowerLoss, after: 0, sticky: false }));
    let reader = fs.open(Path::new("a")).unwrap();
    fs.rename(Path::new("a"), Path::new("b")).unwrap_err();
    assert!(reader.read_at(&mut [0], 0).is_err() && file.append(b"x").is_err());
    assert!(file.sync().is_err() && fs.list(Path::new("")).is_err());
    assert!(fs.sync(Path::new("")).is_err() && !fs.exists(Path::new("a")));
    let found = outcomes(&fs, |fs| names(fs, "").join(" "));
    assert_eq!(found, ["a", "b"].map(String::from).into());
}

#[test]
fn the_same_seed_has_the_same_outcome() {
    let (fs, _file) = written(&[1; 5000], 700);
    fs.create_dir(Path::new("d")).unwrap();
    let look = |fs: CrashFileSystem| (names(&fs, ""), bytes_of(&fs, "a"));
    for seed in SEEDS {
        assert_eq!(look(fs.after_loss(seed)), look(fs.after_loss(seed)));
    }
}

fn put(key: &[u8], value: &[u8]) -> Change {
    Change::Put(key.to_vec(), value.to_vec())
}

fn keys(pairs: &dyn KeyValues, prefix: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut each = |key: &[u8], _: &[u8]| {
        found.push(key.to_vec());
        ControlFlow::Continue(())
    };
    pairs.scan_from(prefix, &mut each).unwrap();
    found.retain(|key| key.starts_with(prefix));
    found
}

#[test]
fn batches_of_pairs_are_durable_when_written_and_whole_when_not() {
    let (fs, dir) = (CrashFileSystem::new(1), Path::new("db"));
    let pairs = fs.key_values(dir, Access::Create).unwrap();
    fs.sync(Path::new("")).unwrap();
    pairs.write(&[put(b"a", b"1"), put(b"b", b"2"), put(b"c", b"3")]).unwrap();
    let range = Change::DeleteRange(b"a".to_vec(), b"b".to_vec());
    fs.arm(Some(Plan { fault: Fault::PowerLoss, after: 0, sticky: false }));
    pairs.write(&[range, Change::Delete(b"c".to_vec())]).unwrap_err();
    let found =
        outcomes(&fs, |fs| keys(&*fs.key_values(dir, Access::Write).unwrap(), b"").concat());
    assert_eq!(found, [b"abc".to_vec(), b"b".to_vec()].into());
}

#[test]
fn a_store_of_pairs_has_one_writer_and_readers_see_it_as_they_found_it() {
    let (fs, dir) = (CrashFileSystem::new(1), Path::new("db"));
    assert!(fs.key_values(dir, Access::Write).is_err());
    let writer = fs.key_values(dir, Access::Create).unwrap();
    writer.write(&[put(b"k/1", b"1"), put(b"l", b"")]).unwrap();
    let reader = fs.key_values(dir, Access::Read).unwrap();
    assert!(fs.key_values(dir, Access::Write).is_err());
    assert!(fs.key_values(dir, Access::Create).is_err());
    writer.write(&[put(b"k/1", b"2"), put(b"k/2", b"2")]).unwrap();
    assert_eq!(reader.get(b"k/1").unwrap().unwrap(), b"1");
    assert!(reader.write(&[]).is_err());
    let found = [b"k/1", b"k/2", b"k/3"].map(|key| writer.get(key).unwrap());
    assert_eq!(found, [Some(b"2".to_vec()), Some(b"2".to_vec()), None]);
    assert_eq!(keys(&*writer, b"k/"), [b"k/1", b"k/2"]);
    drop(writer);
    fs.key_values(dir, Access::Write).unwrap();
}

#[test]
fn a_failed_write_of_pairs_closes_the_store_and_may_show_up_when_it_is_opened_again() {
    let mut seen = BTreeSet::new();
    for seed in SEEDS {
        let (fs, dir) = (CrashFileSystem::new(seed), Path::new("db"));
        let pairs = fs.key_values(dir, Access::Create).unwrap();
        fs.arm(Some(Plan { fault: Fault::Errno(Errno::NOSPC), after: 0, sticky: false }));
        pairs.write(&[put(b"a", b"1")]).unwrap_err();
        pairs.write(&[put(b"b", b"1")]).unwrap_err();
        assert!(pairs.get(b"a").unwrap().is_none());
        drop(pairs);
        let pairs = fs.key_values(dir, Access::Write).unwrap();
        pairs.write(&[put(b"c", b"1")]).unwrap();
        assert!(pairs.get(b"b").unwrap().is_none());
        let found = pairs.get(b"a").unwrap().is_some();
        fs.sync(Path::new("")).unwrap();
        let after = fs.after_loss(seed).key_values(dir, Access::Read).unwrap();
        assert_eq!(after.get(b"a").unwrap().is_some(), found, "decided once");
        seen.insert(found);
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_store_of_pairs_that_was_being_made_or_removed_is_there_or_not_or_broken() {
    let (fs, dir) = (CrashFileSystem::new(1), Path::new("db"));
    fs.create_dir(dir).unwrap();
    fs.sync(Path::new("")).unwrap();
    let opened = |fs: &CrashFileSystem| {
        fs.key_values(dir, Access::Write).map(|_| ()).map_err(|error| error.kind())
    };
    fs.arm(Some(Plan { fault: Fault::PowerLoss, after: 0, sticky: false }));
    fs.key_values(dir, Access::Create).unwrap_err();
    let missing = Err(io::ErrorKind::NotFound);
    assert_eq!(outcomes(&fs, opened), [Ok(()), missing].into());
    let fs = fs.after_loss(0);
    if opened(&fs).is_err() {
        fs.key_values(dir, Access::Create).unwrap();
    }
    fs.key_values(dir, Access::Write).unwrap().write(&[put(b"a", b"1")]).unwrap();
    fs.remove_dir_all(dir).unwrap();
    let broken = Err(io::ErrorKind::InvalidData);
    assert_eq!(outcomes(&fs, opened), [Ok(()), missing, broken].into());
}
