//! Folders for as long as a process lives, and what killed processes have left of theirs.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A folder in the system's place for temporary ones, which goes when this is dropped. Its owner holds a
/// lock on it, which the system lets go of whatever ends the process: a folder of the same kind that
/// nobody holds is of a process that was killed, and is removed when the next one is made.
pub(crate) struct ScratchFolder {
    dir: TempDir,
    /// Dropped after the folder is removed.
    _lock: File,
}

impl ScratchFolder {
    /// Makes a folder whose name begins with `kind`.
    pub(crate) fn new(kind: &str) -> Result<Self> {
        Self::new_in(&std::env::temp_dir(), kind)
    }

    fn new_in(parent: &Path, kind: &str) -> Result<Self> {
        sweep(parent, kind);
        let failed = || format!("{}: cannot make a folder in it", parent.display());
        loop {
            let dir = tempfile::Builder::new().prefix(kind).tempdir_in(parent);
            let dir = dir.with_context(failed)?;
            // Another process may have taken it for an abandoned one before it was locked.
            match locked(dir.path()) {
                Ok(Some(lock)) if dir.path().is_dir() => return Ok(Self { dir, _lock: lock }),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(failed),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes the folders of `kind` that nobody holds; what cannot be removed is somebody else's.
fn sweep(parent: &Path, kind: &str) {
    for entry in parent.read_dir().into_iter().flatten().flatten() {
        let is_one = entry.file_name().to_string_lossy().starts_with(kind)
            && entry.file_type().is_ok_and(|of| of.is_dir());
        if is_one && let Ok(Some(_lock)) = locked(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The folder, if nobody holds it.
fn locked(dir: &Path) -> io::Result<Option<File>> {
    let dir = File::open(dir)?;
    match dir.try_lock() {
        Ok(()) => Ok(Some(dir)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_holds_goes_and_what_is_held_or_of_another_kind_stays() {
        let parent = tempfile::tempdir().unwrap();
        let names = || {
            let entries = parent.path().read_dir().unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        for left in ["a-killed", "a-killed-too", "b-other"] {
            fs::create_dir(parent.path().join(left)).unwrap();
            fs::write(parent.path().join(left).join("schedule"), "x").unwrap();
        }
        fs::write(parent.path().join("a-file"), "x").unwrap();
        let first = ScratchFolder::new_in(parent.path(), "a-").unwrap();
        fs::write(first.path().join("schedule"), "x").unwrap();
        let second = ScratchFolder::new_in(parent.path(), "a-").unwrap();
        assert!(first.path().join("schedule").exists() && second.path().is_dir());
        let kept = [first.path(), second.path()].map(|path| path.file_name().unwrap().to_owned());
        let mut expected = vec!["a-file".into(), "b-other".into()];
        expected.extend(kept);
        expected.sort();
        assert_eq!(names(), expected);
        drop((first, second));
        assert_eq!(names(), ["a-file", "b-other"]);
    }
}
