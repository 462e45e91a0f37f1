//! Folders for as long as a process lives, and what killed processes have left of theirs.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A scratch folder that may be removed as soon as it has no holder. Whether it is ours must not
/// hang on its name: a user's own folder can have any.
const MARKER: &str = ".lode-scratch";

/// A folder in the system's place for temporary ones, which goes when this is dropped. Its owner
/// holds a lock on it, which the system releases however the process ends. A folder of the same
/// kind without a holder is of a killed process, and is removed when the next one is made.
pub(crate) struct ScratchFolder {
    dir: TempDir,
    /// Dropped after the folder is removed. None where the file system has no locks.
    _lock: Option<File>,
}

impl ScratchFolder {
    /// Makes a folder whose name begins with `kind`.
    pub(crate) fn new(kind: &str) -> Result<Self> {
        Self::new_in(&std::env::temp_dir(), kind)
    }

    fn new_in(parent: &Path, kind: &str) -> Result<Self> {
        sweep(parent, kind);
        let failed = || format!("{}: cannot make a folder in it", parent.display());
        let dir = tempfile::Builder::new().prefix(kind).tempdir_in(parent);
        let dir = dir.with_context(failed)?;
        // The marker comes after the lock, so that no process takes the folder for an abandoned one
        // in between. Without a lock there is no marker, and only the owner ever removes the
        // folder.
        let lock = locked(dir.path());
        if lock.is_some() {
            File::create_new(dir.path().join(MARKER)).with_context(failed)?;
        }
        Ok(Self { dir, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes the folders of `kind` that are marked and have no holder; one that cannot be removed
/// belongs to another user.
fn sweep(parent: &Path, kind: &str) {
    for entry in parent.read_dir().into_iter().flatten().flatten() {
        let is_one = entry.file_name().to_string_lossy().starts_with(kind)
            && entry.file_type().is_ok_and(|of| of.is_dir())
            && entry.path().join(MARKER).is_file();
        if is_one && let Some(_lock) = locked(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the folder, if it can be locked: it has no holder, and its file system has locks.
fn locked(dir: &Path) -> Option<File> {
    let dir = File::open(dir).ok()?;
    dir.try_lock().is_ok().then_some(dir)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn names(parent: &Path) -> Vec<OsString> {
        let entries = parent.read_dir().unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    /// Makes a folder with a schedule in it.
    fn folder(parent: &Path, name: &str) {
        fs::create_dir(parent.join(name)).unwrap();
        fs::write(parent.join(name).join("schedule"), "x").unwrap();
    }

    #[test]
    fn unlocked_folders_go_and_locked_or_other_ones_stay() {
        let parent = tempfile::tempdir().unwrap();
        for left in ["a-killed", "a-killed-too", "b-other"] {
            folder(parent.path(), left);
            fs::write(parent.path().join(left).join(MARKER), "").unwrap();
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
        assert_eq!(names(parent.path()), expected);
        drop((first, second));
        assert_eq!(names(parent.path()), ["a-file", "b-other"]);
    }

    #[test]
    fn a_users_folder_stays_whatever_its_name() {
        let parent = tempfile::tempdir().unwrap();
        let users = ["lode-train-abc123", "lode-train-graph"];
        users.iter().for_each(|name| folder(parent.path(), name));
        drop(ScratchFolder::new_in(parent.path(), "lode-train-").unwrap());
        assert_eq!(names(parent.path()), users);
        let kept = fs::read(parent.path().join(users[1]).join("schedule")).unwrap();
        assert_eq!(kept, b"x");
    }

    #[test]
    fn a_killed_owners_folder_goes_with_the_next() {
        let parent = tempfile::tempdir().unwrap();
        let killed = ScratchFolder::new_in(parent.path(), "a-").unwrap();
        // As after SIGKILL: the lock is released, the folder is there.
        let ScratchFolder { dir, _lock: lock } = killed;
        let left = dir.keep();
        drop(lock);
        assert!(left.is_dir());
        drop(ScratchFolder::new_in(parent.path(), "a-").unwrap());
        assert!(names(parent.path()).is_empty());
    }
}
