//! RocksDB as a key-value store.
//!
//! Opening for reading takes no lock and creates no file, so that it works on read-only mounts and
//! from several processes concurrently. Every write is synced; writes of several threads share a
//! sync. Damage to a log is distinguished from a write that a crash cut off by [`acknowledged`].

mod acknowledged;
mod forked;
mod reopen;
mod scan;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, thread};

use lodestore_graph::fork::PerProcess;
use rocksdb::{BlockBasedOptions, InfoLogger, LogLevel, Options, ReadOptions, WriteBatch};
use rocksdb::{ColumnFamilyDescriptor, DB, DBRecoveryMode, DEFAULT_COLUMN_FAMILY_NAME};
use rocksdb::{WriteBufferManager, WriteOptions};

use self::forked::Use;
use crate::error_origin::ErrorOrigin;
use crate::file_system::{Access, Change, EachPair, HardLinks, KeyValues};
use crate::limits::WRITE_BUFFER_BYTES;
use acknowledged::{Acknowledged, FILE_NAME as ACKNOWLEDGED_FILE};

pub(super) use reopen::Reopening;

/// Attempts to open a store for reading beside a writer that moves files meanwhile.
const MAX_READ_ATTEMPTS: usize = 50;

/// Room on disk that a log takes ahead, over and over as it grows.
const LOG_ROOM_BYTES: u64 = 256 << 10;

/// Bytes of each table that a scan reads at a time.
const SCAN_AHEAD_BYTES: usize = 1 << 20;

/// Bytes of a block of a table: rows are read by scans, which check and parse each block.
const TABLE_BLOCK_BYTES: usize = 64 << 10;

/// Memory that rows which were put are given at a time.
const ARENA_BLOCK_BYTES: usize = 64 << 10;

/// An open RocksDB.
///
/// It has threads, locks and at most one writer. A forked child opens it again to read, refuses to
/// write, and never closes that of its parent. See [`forked`].
#[derive(Debug)]
pub(super) struct Rocks {
    dir: PathBuf,
    access: Access,
    db: PerProcess<Open>,
    /// Where it was opened for writing.
    acknowledged: Option<Acknowledged>,
}

#[derive(Debug)]
struct Open {
    db: DB,
    /// Where it is open for writing.
    _writing: Option<Use>,
}

/// How much of the logs counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replay {
    /// All, but for a record that the end of a log cuts off; damage is an error.
    Whole,
    /// The writes before the first damage.
    UpToDamage,
    /// The same, if logs are missing, too.
    Salvage,
}

impl Rocks {
    pub(super) fn open(dir: &Path, access: Access) -> io::Result<Self> {
        let open = Self::open_here(dir, access)?;
        let sequence = open.db.latest_sequence_number();
        let acknowledged = match access {
            Access::Create => Some(Acknowledged::create(dir, sequence)?),
            Access::Write => Some(Acknowledged::open(dir, sequence)?),
            Access::Read | Access::Salvage => None,
        };
        Ok(Self { dir: dir.to_owned(), access, db: PerProcess::with(open), acknowledged })
    }

    /// Returns that of this process.
    fn db(&self) -> io::Result<&DB> {
        let open = self.db.get_or_try(|_| match self.access {
            Access::Read | Access::Salvage => Self::open_here(&self.dir, self.access),
            Access::Create | Access::Write => {
                Err(io::Error::other("the process that this one was forked from writes to it"))
            }
        })?;
        Ok(&open.db)
    }

    /// Opens it for this process.
    fn open_here(dir: &Path, access: Access) -> io::Result<Open> {
        let opening = Use::begin(access)?;
        let db = Self::open_db(dir, access)?;
        let is_for_writing = matches!(access, Access::Create | Access::Write);
        Ok(Open { db, _writing: is_for_writing.then_some(opening) })
    }

    fn open_db(dir: &Path, access: Access) -> io::Result<DB> {
        if access == Access::Create {
            let mut options = options(Replay::Whole)?;
            options.create_if_missing(true);
            options.set_error_if_exists(true);
            return DB::open(&options, dir).map_err(failed);
        }
        if !dir.join("CURRENT").is_file() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is none (no file CURRENT)"));
        }
        match access {
            Access::Create | Access::Write => Self::open_for_writing(dir),
            Access::Read => Self::open_for_reading(dir).map(|(db, _)| db),
            Access::Salvage => Self::salvage(dir),
        }
    }

    /// Opens for writing what can be opened for reading.
    ///
    /// It moves what logs hold into tables and removes them, so that it must not begin before it is
    /// known that nothing is lost.
    fn open_for_writing(dir: &Path) -> io::Result<DB> {
        check_links(dir)?;
        let (read, replay) = Self::open_for_reading(dir)?;
        drop(read);
        DB::open(&options(replay)?, dir).map_err(|error| match is_locked(&error) {
            true => io::Error::new(io::ErrorKind::WouldBlock, error.into_string()),
            false => failed_to_open(error),
        })
    }

    /// Opens a consistent state beside a process that writes.
    ///
    /// RocksDB reads its manifest first and its logs after. A log whose rows went into tables in
    /// between is in neither. So it is opened again where logs are gone afterwards, or where it
    /// failed while files came and went.
    fn open_for_reading(dir: &Path) -> io::Result<(DB, Replay)> {
        for _ in 0..MAX_READ_ATTEMPTS {
            let before = names(dir)?;
            let db = Self::read_acknowledged(dir);
            let after = names(dir)?;
            let is_log = |name: &&String| name.ends_with(".log");
            let lost_a_log = before.iter().filter(is_log).any(|log| !after.contains(log));
            match db {
                Ok(db) if !lost_a_log => return Ok(db),
                Err(error) if before == after => return Err(error),
                _ => thread::sleep(Duration::from_millis(1)),
            }
        }
        let message = "its writer moved files at every attempt to open it for reading; try again";
        Err(io::Error::new(io::ErrorKind::WouldBlock, message))
    }

    /// Opens for reading, and fails if anything is missing that was acknowledged.
    fn read_acknowledged(dir: &Path) -> io::Result<(DB, Replay)> {
        scan::check(dir)?;
        // Before the logs, which a writer may append to meanwhile.
        let acknowledged = acknowledged::read(dir)?;
        let is_whole = |db: &DB| acknowledged.is_none_or(|n| db.latest_sequence_number() >= n);
        let reason = match Self::read_only(Replay::Whole, dir, dir) {
            Ok(db) if is_whole(&db) => return Ok((db, Replay::Whole)),
            Ok(_) => "they end too early".to_owned(),
            Err(error) if error.kind() != io::ErrorKind::InvalidData => return Err(error),
            Err(error) => {
                // What fails here, too, is not in the logs.
                let db = Self::read_only(Replay::UpToDamage, dir, dir)?;
                if acknowledged.is_some() && is_whole(&db) {
                    tracing::warn!(
                        "{}: a write that was not acknowledged is left out, since the log does \
                         not hold all of it ({error})",
                        dir.display()
                    );
                    return Ok((db, Replay::UpToDamage));
                }
                error.to_string()
            }
        };
        let message = format!(
            "its logs ({}) do not hold all that was written to them: {reason}; run `lode repair` \
             on the graph: it keeps what was written before the damage, and reports what is lost",
            scan::log_names(dir)?.join(", ")
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }

    /// Opens for reading what logs hold up to the first damage.
    fn salvage(dir: &Path) -> io::Result<DB> {
        scan::check_manifest(dir)?;
        let logs = tempfile::tempdir()?;
        scan::copy_sound(dir, logs.path())?;
        // Logs are read while it opens, and not later.
        Self::read_only(Replay::Salvage, dir, logs.path())
    }

    fn read_only(replay: Replay, dir: &Path, log_dir: &Path) -> io::Result<DB> {
        let mut options = options(replay)?;
        options.set_wal_dir(log_dir);
        // Without a name RocksDB would first try to open it as a store that has no logs.
        let rows = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
        let db = DB::open_cf_descriptors_read_only(&options, dir, [rows], false);
        db.map_err(failed_to_open)
    }
}

impl KeyValues for Rocks {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.db()?.get(key).map_err(failed)
    }

    fn scan_from(&self, key: &[u8], each: &mut EachPair<'_>) -> io::Result<()> {
        let mut options = ReadOptions::default();
        // A scan reads each block once, and may read all of them.
        options.fill_cache(false);
        options.set_readahead_size(SCAN_AHEAD_BYTES);
        let mut pairs = self.db()?.raw_iterator_opt(options);
        pairs.seek(key);
        while let Some((key, value)) = pairs.item() {
            if each(key, value).is_break() {
                return Ok(());
            }
            pairs.next();
        }
        // Damage ends it as the last pair does.
        pairs.status().map_err(failed)
    }

    fn write(&self, changes: &[Change]) -> io::Result<()> {
        let mut batch = WriteBatch::default();
        for change in changes {
            match change {
                Change::Put(key, value) => batch.put(key, value),
                Change::Delete(key) => batch.delete(key),
                Change::DeleteRange(from, to) => batch.delete_range(from, to),
            }
        }
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        let db = self.db()?;
        db.write_opt(batch, &synced).map_err(failed)?;
        if let Some(acknowledged) = &self.acknowledged {
            // Every write is synced before its number is seen here, those of other threads too.
            acknowledged.note(db.latest_sequence_number());
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.db()?.flush().map_err(failed)
    }

    fn reclaim(&self, from: &[u8], to: &[u8]) {
        if let Ok(db) = self.db() {
            db.compact_range(Some(from), Some(to));
        }
    }
}

/// Names in a folder.
fn names(dir: &Path) -> io::Result<BTreeSet<String>> {
    let name = |entry: io::Result<fs::DirEntry>| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    fs::read_dir(dir)?.map(name).collect()
}

/// Fails where a file that is written in place has other names: a copy of the folder by hard links
/// (`cp -al`) would change with it, and could not be opened any more.
fn check_links(dir: &Path) -> io::Result<()> {
    for name in names(dir)? {
        let is_written_in_place =
            name.ends_with(".log") || name.starts_with("MANIFEST-") || name == ACKNOWLEDGED_FILE;
        let file = dir.join(name);
        // One that is gone is no log any more.
        let Ok(metadata) = fs::symlink_metadata(&file) else { continue };
        let n_links = metadata.nlink();
        if is_written_in_place && n_links > 1 {
            let links = HardLinks { file, n_links };
            return Err(io::Error::new(io::ErrorKind::TooManyLinks, links));
        }
    }
    Ok(())
}

/// Returns whether a lock is taken, which RocksDB reports only in words.
fn is_locked(error: &rocksdb::Error) -> bool {
    let words = error.as_ref();
    words.contains("lock hold by current process") || words.contains("While lock file")
}

/// Returns what the process holds of rows that were put and are not in tables yet, all partitions
/// together.
fn write_buffers() -> &'static WriteBufferManager {
    static BUFFERS: PerProcess<WriteBufferManager> = PerProcess::new();
    // A put does not wait for room: the partition that is written to moves its rows into tables.
    let stalls = false;
    BUFFERS.get_or(|_| WriteBufferManager::new_write_buffer_manager(WRITE_BUFFER_BYTES, stalls))
}

fn options(replay: Replay) -> io::Result<Options> {
    // A log notes which one it follows, so that a missing one is noticed.
    let track = format!("track_and_verify_wals={}", replay != Replay::Salvage);
    let mut options = Options::default().get_options_from_string(track).map_err(failed)?;
    options.set_paranoid_checks(true);
    // It aborts the process where a thread is refused: it starts none to open its few tables.
    options.set_max_file_opening_threads(1);
    options.set_wal_recovery_mode(match replay {
        Replay::Whole => DBRecoveryMode::TolerateCorruptedTailRecords,
        Replay::UpToDamage | Replay::Salvage => DBRecoveryMode::PointInTime,
    });
    // A log takes room on disk ahead, by default for the whole write buffer: 70 MB for each
    // partition that is written to. With one family of keys this bounds that and nothing else.
    options.set_max_total_wal_size(LOG_ROOM_BYTES);
    options.set_write_buffer_manager(write_buffers());
    // What a partition that is hardly written to holds: it counts towards all partitions' bound,
    // and only a put to it moves it into tables.
    options.set_arena_block_size(ARENA_BLOCK_BYTES);
    let mut tables = BlockBasedOptions::default();
    tables.set_block_size(TABLE_BLOCK_BYTES);
    options.set_block_based_table_factory(&tables);
    // A logger of our own keeps RocksDB from writing LOG files, also when it only reads.
    options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Warn, |_, line| {
        // Its settings at every opening pass any level; errors come back as results anyway.
        tracing::debug!(target: "rocksdb", "{}", line.trim_end());
    }));
    Ok(options)
}

/// Corrects an error of opening: RocksDB blames its manifest for a table that it cannot open, and
/// for a system that refuses.
fn failed_to_open(error: rocksdb::Error) -> io::Error {
    let error = failed(error);
    let message = match error.to_string().split_once("The file") {
        Some((_, blamed)) if !blamed.contains("MANIFEST-") => return error,
        Some((reason, blamed)) if ErrorOrigin::of(&error) == ErrorOrigin::Damage => {
            format!("{reason}The file{blamed} If it is sound, one of its tables (.sst) is not.")
        }
        Some((reason, _)) => reason.trim_end().to_owned(),
        None => return error,
    };
    io::Error::new(error.kind(), message)
}

fn failed(error: rocksdb::Error) -> io::Error {
    let kind = match error.kind() {
        rocksdb::ErrorKind::Corruption => io::ErrorKind::InvalidData,
        rocksdb::ErrorKind::NotFound => io::ErrorKind::NotFound,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error.into_string())
}

#[cfg(test)]
mod damage_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn put(db: &Rocks, key: u32, n_bytes: usize) {
        db.write(&[Change::Put(key.to_be_bytes().to_vec(), vec![7; n_bytes])]).unwrap();
    }

    #[test]
    fn a_small_put_takes_little_room_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let db = Rocks::open(dir.path(), Access::Create).unwrap();
        put(&db, 1, 400);
        let logs = names(dir.path()).unwrap().into_iter().filter(|name| name.ends_with(".log"));
        let room = |name: String| fs::metadata(dir.path().join(name)).unwrap().blocks() * 512;
        let rooms: Vec<u64> = logs.map(room).collect();
        assert!(!rooms.is_empty() && rooms.iter().all(|&room| room <= 1 << 20), "{rooms:?}");
    }

    #[test]
    fn what_many_partitions_hold_of_puts_is_bounded() {
        let dirs: Vec<_> = (0..12).map(|_| tempfile::tempdir().unwrap()).collect();
        let open = |dir: &tempfile::TempDir| Rocks::open(dir.path(), Access::Create).unwrap();
        let dbs: Vec<Rocks> = dirs.iter().map(open).collect();
        for key in 0..3 {
            for db in &dbs {
                put(db, key, 8 << 20);
                // What is being moved into tables, and one put, come on top.
                let held =
                    |db: &Rocks| db.db().unwrap().property_int_value("rocksdb.size-all-mem-tables");
                let held: u64 = dbs.iter().map(|db| held(db).unwrap().unwrap()).sum();
                assert!(held > 0 && held <= 2 * WRITE_BUFFER_BYTES as u64, "{held}");
            }
        }
        let sum = (0..3u32).flat_map(|key| dbs.iter().map(move |db| db.get(&key.to_be_bytes())));
        assert_eq!(sum.map(|row| row.unwrap().unwrap().len()).sum::<usize>(), 36 * (8 << 20));
    }
}
