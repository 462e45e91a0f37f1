//! Locks of folders and pins of files, on file systems that lock differently.
//!
//! A local file system locks any descriptor. NFS locks exclusively what is open for writing only,
//! and no folder is: there a file in the folder, [`LOCK_FILE`], is locked in its place. All
//! processes of a mount meet the same refusal, so that they lock the same thing. A file system
//! without any locks is refused for writing: RocksDB could not lock its folder there either.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lodestore_graph::fork::Generation;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::Guard;

/// Name of the file that is locked in place of a folder; it stays.
pub(crate) const LOCK_FILE: &str = "lock";

/// Time after which a held lock counts as another process's.
const LOCK_PATIENCE: Duration = Duration::from_millis(250);

/// Takes a lock of an open file or folder.
pub(super) type Flock<'a> = &'a dyn Fn(&File, FlockOperation) -> Result<(), Errno>;

/// A lock of an open folder or file. Forked children have its descriptor as well, and the system
/// would hold it until the last of them ends. So the process that took it releases it, and no child
/// does.
#[derive(Debug)]
struct HeldLock {
    file: File,
    process: Generation,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if self.process.is_current() {
            // It is released with the descriptor at the latest.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// Locks a folder by `flock`, or the lock file in it where the file system locks no folders.
///
/// Fails with [`io::ErrorKind::WouldBlock`] while it is locked, and with
/// [`io::ErrorKind::Unsupported`] where the file system locks neither.
pub(super) fn lock_folder(dir: &Path, flock: Flock<'_>) -> io::Result<Guard> {
    let folder = File::open(dir)?;
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    match patiently(|| flock(&folder, exclusive)) {
        Err(Errno::BADF | Errno::ISDIR | Errno::INVAL) => {}
        Err(error) if knows_no_locks(error) => {}
        locked => {
            locked?;
            return Ok(held(folder));
        }
    }
    let path = dir.join(LOCK_FILE);
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    match patiently(|| flock(&file, exclusive)) {
        Err(error) if knows_no_locks(error) || error == Errno::BADF => {
            let message = format!("the file system locks neither folders nor files ({error})");
            Err(io::Error::new(io::ErrorKind::Unsupported, message))
        }
        locked => {
            locked?;
            Ok(held(file))
        }
    }
}

fn held(file: File) -> Guard {
    Box::new(HeldLock { file, process: Generation::now() })
}

/// Acts on a file while no open file can pin it; `None` where some open file has pinned it already,
/// or where the file system has no locks and it may be pinned.
pub(super) fn while_unpinned<T>(
    path: &Path,
    flock: Flock<'_>,
    act: impl FnOnce() -> io::Result<T>,
) -> io::Result<Option<T>> {
    // Pins conflict with its lock until it is closed, which is after the act.
    let file = open_to_lock(path)?;
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

/// Opens a file for writing, which NFS demands for an exclusive lock; for reading where this process
/// may not write it.
fn open_to_lock(path: &Path) -> io::Result<File> {
    match OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => File::open(path),
        opened => opened,
    }
}

/// Pins an open file until it is closed, however the process ends.
///
/// Passes on a file system that has no locks: no file is removed there for want of a pin, see
/// [`while_unpinned`].
pub(super) fn pin(file: &File, flock: Flock<'_>) -> io::Result<()> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        // A server that has no lock to spare for this file may have one for who removes it.
        Err(error) if knows_no_locks(error) && error != Errno::NOLCK => Ok(()),
        pinned => Ok(pinned?),
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

/// Returns whether the file system has no locks.
fn knows_no_locks(error: Errno) -> bool {
    matches!(error, Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Locks as the system does.
pub(super) fn system_flock(file: &File, operation: FlockOperation) -> Result<(), Errno> {
    flock(file, operation)
}

/// Locks as NFS does: exclusively only what is open for writing.
#[cfg(any(test, feature = "testing"))]
pub(super) fn nfs_flock(file: &File, operation: FlockOperation) -> Result<(), Errno> {
    let is_exclusive = matches!(operation, FlockOperation::NonBlockingLockExclusive);
    let flags = rustix::fs::fcntl_getfl(file)?;
    if is_exclusive && !flags.intersects(rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::RDWR) {
        return Err(Errno::BADF);
    }
    flock(file, operation)
}

/// Removes a file that no open file has pinned; returns whether it is gone.
pub(super) fn remove_if_unpinned(path: &Path, flock: Flock<'_>) -> io::Result<bool> {
    match while_unpinned(path, flock, || fs::remove_file(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        removed => Ok(removed?.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_released_in_a_moment_is_waited_for_and_another_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock_folder(dir.path(), &system_flock).unwrap();
        let start = Instant::now();
        let error = lock_folder(dir.path(), &system_flock).err().unwrap();
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
        lock_folder(dir.path(), &system_flock).unwrap();
        letting_go.join().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a local lock leaves nothing");
    }

    /// Each open file has a lock of its own, in one process as in two.
    #[test]
    fn a_file_is_removed_while_no_other_can_pin_it() {
        for flock in [&system_flock as Flock<'_>, &nfs_flock] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("segment");
            fs::write(&path, b"rows").unwrap();
            let early = File::open(&path).unwrap();
            let late = File::open(&path).unwrap();
            pin(&early, flock).unwrap();
            assert!(!remove_if_unpinned(&path, flock).unwrap() && path.exists(), "it is pinned");
            drop(early);
            let pinned =
                while_unpinned(&path, flock, || Ok(pin(&late, flock).map_err(|it| it.kind())));
            assert_eq!(pinned.unwrap(), Some(Err(io::ErrorKind::WouldBlock)));
            assert!(remove_if_unpinned(&path, flock).unwrap() && !path.exists());
            assert!(remove_if_unpinned(&path, flock).unwrap(), "what is not there is gone");
            // A reader that comes too late pins it, and sees that its name is gone.
            pin(&late, flock).unwrap();
        }
    }

    #[test]
    fn where_folders_cannot_be_locked_a_file_in_them_is() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock_folder(dir.path(), &nfs_flock).unwrap();
        let error = lock_folder(dir.path(), &nfs_flock).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(held);
        drop(lock_folder(dir.path(), &nfs_flock).unwrap());
    }

    #[test]
    fn without_locks_no_folder_counts_as_locked_and_no_file_as_unpinned() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        fs::write(&path, b"rows").unwrap();
        let file = File::open(&path).unwrap();
        for refusal in [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK] {
            let none = |_: &File, _: FlockOperation| Err(refusal);
            let error = lock_folder(dir.path(), &none).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{refusal}");
            assert!(!remove_if_unpinned(&path, &none).unwrap() && path.exists());
            // One that has run out of locks may have one again for who removes the file.
            assert_eq!(pin(&file, &none).is_ok(), refusal != Errno::NOLCK);
        }
    }
}
