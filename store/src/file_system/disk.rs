//! The file system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lodestore_graph::fork::Generation;
use rustix::fs::{Advice, CWD, FlockOperation, RenameFlags, fadvise, flock};
use rustix::io::Errno;

use super::rocks::Reopening;
use super::{Access, Entry, FileReader, FileSystem, FileWriter, Guard, KeyValues};

/// Time after which a held lock counts as another process's.
const LOCK_PATIENCE: Duration = Duration::from_millis(250);

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl FileSystem for Disk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>> {
        Ok(Box::new(File::open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(NewFile { file, n_bytes: 0, n_begun: 0 }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            created => created,
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(Entry { name, is_dir: entry.file_type()?.is_dir() });
        }
        entries.sort();
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_if_unpinned(&self, path: &Path) -> io::Result<bool> {
        let removed = while_unpinned(path, || fs::remove_file(path));
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            removed => Ok(removed?.is_some()),
        }
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn lock(&self, dir: &Path) -> io::Result<Guard> {
        let folder = File::open(dir)?;
        match patiently(|| flock(&folder, FlockOperation::NonBlockingLockExclusive)) {
            // Some network file systems lock what is open for writing only, and no folder is.
            Err(Errno::BADF) => {}
            Err(error) if knows_no_locks(error) => {}
            locked => locked?,
        }
        Ok(Box::new(FolderLock { folder, process: Generation::now() }))
    }

    fn key_values(&self, dir: &Path, access: Access) -> io::Result<Box<dyn KeyValues>> {
        Ok(Box::new(Reopening::open(dir, access)?))
    }
}

/// A lock of a folder. Forked children have its descriptor as well, and the system would hold it
/// until the last of them ends. So the process that took it releases it, and no child does.
#[derive(Debug)]
struct FolderLock {
    folder: File,
    process: Generation,
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        if self.process.is_current() {
            // Where the system knows no locks there was none.
            let _ = flock(&self.folder, FlockOperation::Unlock);
        }
    }
}

/// Acts on a file while no open file can pin it; `None` where some open file has pinned it already.
fn while_unpinned<T>(path: &Path, act: impl FnOnce() -> io::Result<T>) -> io::Result<Option<T>> {
    // Pins conflict with its lock until it is closed, which is after the act.
    let file = File::open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) if knows_no_locks(error) => Ok(None),
        locked => {
            locked?;
            let acted = act();
            drop(file);
            acted.map(Some)
        }
    }
}

/// Tries again while a lock is held, for a moment. A process that starts another holds its locks
/// twice until the other runs; to release one is not enough.
fn patiently(lock: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    let end = Instant::now() + LOCK_PATIENCE;
    loop {
        match lock() {
            Err(Errno::WOULDBLOCK) if Instant::now() < end => thread::sleep(LOCK_PATIENCE / 50),
            done => return done,
        }
    }
}

impl FileReader for File {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn drop_cached(&self) -> io::Result<()> {
        Ok(fadvise(self, 0, None, Advice::DontNeed)?)
    }

    fn as_file(&self) -> Option<&File> {
        Some(self)
    }

    fn pin(&self) -> io::Result<()> {
        // The kernel releases it when the file is closed, however the process ends.
        match flock(self, FlockOperation::NonBlockingLockShared) {
            Err(error) if knows_no_locks(error) => Ok(()),
            pinned => Ok(pinned?),
        }
    }

    fn is_pinned(&self) -> io::Result<bool> {
        match flock(self, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(flock(self, FlockOperation::Unlock).map(|()| false)?),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) if knows_no_locks(error) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns a file system without locks: no pin is possible there, so every file counts as pinned.
fn knows_no_locks(error: Errno) -> bool {
    matches!(error, Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Bytes after which the disk begins to write what was appended.
const WRITE_BEHIND_BYTES: u64 = 8 << 20;

/// A file that is being written: the disk writes while more is appended, and a sync waits for less.
#[derive(Debug)]
struct NewFile {
    file: File,
    n_bytes: u64,
    /// Bytes of these whose writeback was started.
    n_begun: u64,
}

impl FileWriter for NewFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.n_bytes += bytes.len() as u64;
        if let Some(length) = NonZero::new(self.n_bytes - self.n_begun)
            && length.get() >= WRITE_BEHIND_BYTES
        {
            // Linux begins to write dirty pages, and forgets those that are clean: none of these.
            // What it says of it does not matter; the sync reports errors.
            let _ = fadvise(&self.file, self.n_begun, Some(length), Advice::DontNeed);
            self.n_begun = self.n_bytes;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::ReadWriteFlags;

    use super::*;

    const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

    #[test]
    fn a_lock_that_is_released_in_a_moment_is_waited_for_and_another_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let held = Disk.lock(dir.path()).unwrap();
        let start = Instant::now();
        let error = Disk.lock(dir.path()).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(start.elapsed() >= LOCK_PATIENCE);
        // What a process that is being started has of it.
        let folder = File::open(dir.path()).unwrap();
        drop(held);
        flock(&folder, FlockOperation::NonBlockingLockExclusive).unwrap();
        let letting_go = thread::spawn(move || {
            thread::sleep(LOCK_PATIENCE / 5);
            drop(folder);
        });
        Disk.lock(dir.path()).unwrap();
        letting_go.join().unwrap();
    }

    /// Each open file has a lock of its own, in one process as in two.
    #[test]
    fn a_file_is_removed_while_no_other_can_pin_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        fs::write(&path, b"rows").unwrap();
        let [early, late] = [(); 2].map(|()| Disk.open(&path).unwrap());
        early.pin().unwrap();
        assert!(!Disk.remove_if_unpinned(&path).unwrap() && path.exists(), "it is pinned");
        drop(early);
        let pinned = while_unpinned(&path, || Ok(late.pin().map_err(|error| error.kind())));
        assert_eq!(pinned.unwrap(), Some(Err(io::ErrorKind::WouldBlock)));
        assert!(Disk.remove_if_unpinned(&path).unwrap() && !path.exists());
        assert!(Disk.remove_if_unpinned(&path).unwrap(), "what is not there is gone");
        // A reader that comes too late pins it, and sees that its name is gone.
        late.pin().unwrap();
        assert!(!Disk.exists(&path));
    }

    /// Reads what memory has of a file; none of it where that would wait for the disk.
    fn cached_bytes(file: &File) -> usize {
        let mut page = [0; 4096];
        let buffers = &mut [io::IoSliceMut::new(&mut page)];
        rustix::io::preadv2(file, buffers, 0, ReadWriteFlags::NOWAIT).unwrap_or(0)
    }

    #[test]
    fn after_a_drop_of_what_memory_holds_reads_wait_for_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows");
        let mut written = Disk.create(&path).unwrap();
        written.append(&[7; 1 << 16]).unwrap();
        written.sync().unwrap();
        let file = File::open(&path).unwrap();
        if cached_bytes(&file) == 0 || rustix::fs::fstatfs(&file).unwrap().f_type == TMPFS_MAGIC {
            return println!("SKIPPED: the file system does not say what memory holds");
        }
        file.drop_cached().unwrap();
        assert_eq!(cached_bytes(&file), 0, "memory still holds it");
        let mut bytes = [0; 4096];
        FileReader::read_exact_at(&file, &mut bytes, 0).unwrap();
        assert_eq!((bytes, cached_bytes(&file)), ([7; 4096], 4096));
    }
}
