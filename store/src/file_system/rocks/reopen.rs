//! A RocksDB that is closed and opened again in place once a write to it has failed.
//!
//! After a write that found the disk full RocksDB takes no other. Its log may then have all of the
//! batch, a part that the next opening drops, or nothing. RocksDB's memory is as before, since a
//! batch goes there after the log. So the old values are read from memory before the store is
//! closed, and written back after it is open again.
//!
//! A batch that removes a range is not undone, since the pairs in the range are not known. It is
//! there as a whole, or not at all.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use lodestore_graph::lock::IgnorePoison;
use rustix::fs::statvfs;

use super::Rocks;
use crate::file_system::{Access, Change, EachPair, KeyValues};

/// Bytes that must be free before a store is opened again, besides twice those of its logs. Logs
/// become tables then, beside a new log, a manifest and settings.
const FREE_BYTES_MIN: u64 = 4 << 20;

/// An open RocksDB that recovers in place.
#[derive(Debug)]
pub(in crate::file_system) struct Reopening {
    dir: PathBuf,
    access: Access,
    /// Held for each read and write, and alone while the store is opened again. `None` after an
    /// opening that has failed in all ways.
    store: RwLock<Option<Rocks>>,
    doubt: Mutex<Option<Doubt>>,
}

/// State of the writes that have failed.
#[derive(Debug)]
struct Doubt {
    /// The first failure.
    reason: String,
    /// Keys that they were to change, but for batches that cannot be undone.
    keys: BTreeSet<Vec<u8>>,
    /// Writes that restore those, once that has been read.
    undo: Option<Vec<Change>>,
}

impl Reopening {
    pub(in crate::file_system) fn open(dir: &Path, access: Access) -> io::Result<Self> {
        let store = RwLock::new(Some(Rocks::open(dir, access)?));
        Ok(Self { dir: dir.to_owned(), access, store, doubt: Mutex::default() })
    }

    fn read<T>(&self, read: impl FnOnce(&Rocks) -> io::Result<T>) -> io::Result<T> {
        match &*self.store() {
            Some(store) => read(store),
            None => Err(io::Error::other(format!(
                "it could not be opened again after a write that failed ({}); the next put tries \
                 it",
                self.doubt().as_ref().map_or("", |doubt| &doubt.reason)
            ))),
        }
    }

    /// Makes a change, unless one has failed before.
    fn change(
        &self,
        changes: &[Change],
        change: impl FnOnce(&Rocks) -> io::Result<()>,
    ) -> io::Result<()> {
        self.read(|store| {
            if let Some(doubt) = &*self.doubt() {
                return Err(io::Error::other(format!("an earlier write failed: {}", doubt.reason)));
            }
            // Before the store is released: nothing is recovered in between.
            change(store).inspect_err(|error| self.note(error, changes))
        })
    }

    fn note(&self, error: &io::Error, changes: &[Change]) {
        let can_be_undone = !changes.iter().any(Change::is_range);
        let mut doubt = self.doubt();
        let doubt = doubt.get_or_insert_with(|| Doubt {
            reason: error.to_string(),
            keys: BTreeSet::new(),
            undo: None,
        });
        let key = |change: &Change| match change {
            Change::Put(key, _) | Change::Delete(key) => Some(key.clone()),
            Change::DeleteRange(..) => None,
        };
        doubt.keys.extend(changes.iter().filter(|_| can_be_undone).filter_map(key));
    }

    /// Opens the store again, and puts back what is in doubt.
    fn reopen(&self, store: &mut Option<Rocks>, undo: &[Change]) -> io::Result<()> {
        // Its lock goes with it, and what it still does in the background.
        drop(store.take());
        match Rocks::open(&self.dir, Access::Write) {
            Ok(opened) => {
                let undone = if undo.is_empty() { Ok(()) } else { opened.write(undo) };
                // Readable in either case.
                *store = Some(opened);
                undone
            }
            Err(error) => {
                *store = Rocks::open(&self.dir, Access::Read)
                    .inspect_err(|error| tracing::warn!("{}: {error}", self.dir.display()))
                    .ok();
                Err(error)
            }
        }
    }

    fn check_room(&self) -> io::Result<()> {
        let needed = FREE_BYTES_MIN + 2 * log_bytes(&self.dir)?;
        let disk = statvfs(&self.dir)?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free >= needed {
            return Ok(());
        }
        let message = format!(
            "No space left on device: {free} bytes are free, and {needed} are needed to continue"
        );
        Err(io::Error::new(io::ErrorKind::StorageFull, message))
    }

    fn store(&self) -> RwLockReadGuard<'_, Option<Rocks>> {
        self.store.read().ignore_poison()
    }

    fn doubt(&self) -> MutexGuard<'_, Option<Doubt>> {
        self.doubt.lock().ignore_poison()
    }
}

impl KeyValues for Reopening {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.read(|store| store.get(key))
    }

    fn scan_from(&self, key: &[u8], each: &mut EachPair<'_>) -> io::Result<()> {
        self.read(|store| store.scan_from(key, each))
    }

    fn write(&self, changes: &[Change]) -> io::Result<()> {
        self.change(changes, |store| store.write(changes))
    }

    fn flush(&self) -> io::Result<()> {
        self.change(&[], KeyValues::flush)
    }

    fn recover(&self) -> io::Result<()> {
        if !matches!(self.access, Access::Create | Access::Write) {
            let message = "it was opened for reading";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        self.check_room()?;
        // Readers in flight finish first.
        let mut store = self.store.write().ignore_poison();
        let mut doubt = self.doubt();
        let Some(known) = &mut *doubt else { return Ok(()) };
        if known.undo.is_none()
            && let Some(store) = &*store
        {
            known.undo = Some(undo_of(store, &known.keys)?);
        }
        self.reopen(&mut store, known.undo.as_deref().unwrap_or_default())?;
        *doubt = None;
        Ok(())
    }

    fn reclaim(&self, from: &[u8], to: &[u8]) {
        let is_sound = self.doubt().is_none();
        if let Some(store) = self.store().as_ref().filter(|_| is_sound) {
            store.reclaim(from, to);
        }
    }
}

/// Returns the changes that give each key the value that it has in `store`, or none.
fn undo_of(store: &Rocks, keys: &BTreeSet<Vec<u8>>) -> io::Result<Vec<Change>> {
    keys.iter().map(|key| Ok(Change::set(key.clone(), store.get(key)?))).collect()
}

fn log_bytes(dir: &Path) -> io::Result<u64> {
    let mut n_bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "log") {
            // A log may be removed between the two.
            n_bytes += entry.metadata().map_or(0, |file| file.len());
        }
    }
    Ok(n_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Change {
        Change::Put(key.as_bytes().to_vec(), value.as_bytes().to_vec())
    }

    fn value(store: &Reopening, key: &str) -> Option<String> {
        let value = store.get(key.as_bytes()).unwrap();
        value.map(|value| String::from_utf8(value).unwrap())
    }

    fn created() -> (tempfile::TempDir, Reopening) {
        let dir = tempfile::tempdir().unwrap();
        let store = Reopening::open(&dir.path().join("db"), Access::Create).unwrap();
        (dir, store)
    }

    fn fail(store: &Reopening, changes: &[Change]) {
        let error = || io::Error::from(io::ErrorKind::StorageFull);
        store.change(changes, |_| Err(error())).unwrap_err();
    }

    #[test]
    fn after_a_failed_write_none_is_taken_until_the_store_is_open_again() {
        let (_dir, store) = created();
        store.recover().unwrap();
        store.write(&[put("a", "1")]).unwrap();
        fail(&store, &[put("a", "2"), put("b", "2")]);
        let error = store.write(&[put("c", "3")]).unwrap_err().to_string();
        assert!(error.contains("an earlier write failed: no storage space"), "{error}");
        store.flush().unwrap_err();
        assert_eq!(value(&store, "a").as_deref(), Some("1"), "reads continue");
        store.recover().unwrap();
        store.write(&[put("c", "3")]).unwrap();
        store.flush().unwrap();
        let found = ["a", "b", "c"].map(|key| value(&store, key));
        assert_eq!(found, [Some("1".to_owned()), None, Some("3".to_owned())]);
    }

    /// Writes a batch whole into the log although its sync failed; the next opening finds it there.
    fn reach_the_log(store: &Reopening, batch: &[Change]) {
        fail(store, batch);
        // What was there is read from memory before the log is gone through.
        let (held, mut doubt) = (store.store(), store.doubt());
        let known = doubt.as_mut().unwrap();
        known.undo = Some(undo_of(held.as_ref().unwrap(), &known.keys).unwrap());
        held.as_ref().unwrap().write(batch).unwrap();
    }

    #[test]
    fn a_failed_write_that_reached_the_log_is_taken_back() {
        for n_failures in [1, 2] {
            let (dir, store) = created();
            store.write(&[put("a", "1"), put("gone", "1")]).unwrap();
            let batch = [put("a", "2"), put("b", "2"), Change::Delete(b"gone".to_vec())];
            reach_the_log(&store, &batch);
            for _ in 1..n_failures {
                let unwritable = dir.path().join("elsewhere");
                fs::rename(dir.path().join("db"), &unwritable).unwrap();
                store.recover().unwrap_err();
                fs::rename(&unwritable, dir.path().join("db")).unwrap();
            }
            store.recover().unwrap();
            let check = |store: &Reopening| {
                let found = ["a", "b", "gone"].map(|key| value(store, key));
                assert_eq!(found, [Some("1".to_owned()), None, Some("1".to_owned())]);
            };
            check(&store);
            drop(store);
            check(&Reopening::open(&dir.path().join("db"), Access::Write).unwrap());
        }
    }

    /// Rows that a range removed are nowhere else: what was written in their place must stay.
    #[test]
    fn a_failed_write_that_removes_a_range_is_whole_or_not_there() {
        let batch = [
            put("delta", "of row"),
            Change::DeleteRange(b"row".to_vec(), b"rox".to_vec()),
            put("prepared", "2"),
        ];
        for is_in_log in [false, true] {
            let (dir, store) = created();
            store.write(&[put("row 1", "1"), put("row 2", "1")]).unwrap();
            match is_in_log {
                true => reach_the_log(&store, &batch),
                false => fail(&store, &batch),
            }
            store.recover().unwrap();
            let check = |store: &Reopening| {
                let found = ["delta", "prepared", "row 1", "row 2"].map(|key| value(store, key));
                assert_eq!(
                    found.map(|it| it.is_some()),
                    [is_in_log, is_in_log, !is_in_log, !is_in_log]
                );
            };
            check(&store);
            drop(store);
            check(&Reopening::open(&dir.path().join("db"), Access::Write).unwrap());
        }
    }

    #[test]
    fn readers_in_flight_finish_before_the_store_is_closed() {
        let (_dir, store) = created();
        let pairs: Vec<Change> = (0..2000).map(|i| put(&format!("{i:05}"), "value")).collect();
        store.write(&pairs).unwrap();
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut n_pairs = 0;
                        for _ in 0..20 {
                            let mut each = |_: &[u8], _: &[u8]| {
                                n_pairs += 1;
                                std::ops::ControlFlow::Continue(())
                            };
                            store.scan_from(b"", &mut each).unwrap();
                        }
                        n_pairs
                    })
                })
                .collect();
            for _ in 0..5 {
                fail(&store, &[put("00001", "other")]);
                store.recover().unwrap();
            }
            readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), 40_000));
        });
    }

    #[test]
    fn a_store_that_cannot_be_opened_again_says_so_until_it_can() {
        let (dir, store) = created();
        store.write(&[put("a", "1")]).unwrap();
        fail(&store, &[put("a", "2")]);
        let current = dir.path().join("db/CURRENT");
        let manifest = fs::read(&current).unwrap();
        fs::write(&current, "nonsense").unwrap();
        store.recover().unwrap_err();
        let error = store.get(b"a").unwrap_err().to_string();
        assert!(error.contains("could not be opened again"), "{error}");
        fs::write(&current, manifest).unwrap();
        store.recover().unwrap();
        assert_eq!(value(&store, "a").as_deref(), Some("1"));
    }
}
