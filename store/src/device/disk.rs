//! The file system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock};
use rustix::io::Errno;

use super::rocks::Rocks;
use super::{Access, Device, Entry, FileReader, FileWriter, Guard, KeyValues};

/// How long a lock may be held before it is somebody else's.
const LOCK_PATIENCE: Duration = Duration::from_millis(250);

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Device for Disk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>> {
        Ok(Box::new(File::open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        Ok(Box::new(OpenOptions::new().write(true).create_new(true).open(path)?))
    }

    fn append(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        Ok(Box::new(OpenOptions::new().append(true).open(path)?))
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
        Ok(Box::new(folder))
    }

    fn key_values(&self, dir: &Path, access: Access) -> io::Result<Box<dyn KeyValues>> {
        Ok(Box::new(Rocks::open(dir, access)?))
    }
}

/// Tries again while a lock is held, for a moment: a process that starts another one has, until
/// that runs, its locks twice, and letting go of one is not enough.
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

    fn as_file(&self) -> Option<&File> {
        Some(self)
    }

    fn pin(&self) -> io::Result<()> {
        // The kernel lets go of it when the file is closed, however the process ends.
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

/// A file system without locks: nobody can pin there, so every file counts as pinned.
fn knows_no_locks(error: Errno) -> bool {
    matches!(error, Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP)
}

impl FileWriter for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_let_go_of_in_a_moment_is_waited_for_and_another_is_not() {
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
}
