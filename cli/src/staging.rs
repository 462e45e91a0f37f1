//! A folder that appears whole or not at all.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::interrupt::RemovedOnInterrupt;

/// A folder under a temporary name beside its place; removed unless committed.
pub(crate) struct Staging {
    place: PathBuf,
    dir: TempDir,
    interrupt: RemovedOnInterrupt,
}

impl Staging {
    /// Makes the folder; `place` must not exist and its parent must.
    pub(crate) fn begin(place: &Path) -> Result<Self> {
        if place.symlink_metadata().is_ok() {
            bail!("{} exists already; choose another name or remove it", place.display());
        }
        let parent = match place.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let dir = tempfile::Builder::new()
            .prefix(".lode-")
            .tempdir_in(parent)
            .with_context(|| format!("{}: cannot create a folder in it", parent.display()))?;
        let interrupt = RemovedOnInterrupt::watch(dir.path())?;
        Ok(Self { place: place.to_owned(), dir, interrupt })
    }

    /// Returns the folder to write to.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Moves the folder to its place.
    pub(crate) fn commit(self) -> Result<()> {
        let Self { place, dir, interrupt } = self;
        let failed = || format!("{}: cannot rename the finished folder to it", place.display());
        set_usual_permissions(dir.path()).with_context(failed)?;
        std::fs::rename(dir.path(), &place).with_context(failed)?;
        // It is no longer temporary: nothing must remove it.
        let _ = dir.keep();
        drop(interrupt);
        Ok(())
    }
}

/// Sets the permissions that a new folder usually has, since temporary folders are private.
fn set_usual_permissions(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let probe = dir.join(".permissions");
    std::fs::create_dir(&probe)?;
    let usual = std::fs::metadata(&probe)?.permissions().mode();
    std::fs::remove_dir(&probe)?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(usual))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appears_whole_or_not_at_all() {
        let parent = tempfile::tempdir().unwrap();
        let place = parent.path().join("graph");
        drop(Staging::begin(&place).unwrap());
        assert_eq!(parent.path().read_dir().unwrap().count(), 0);

        let staging = Staging::begin(&place).unwrap();
        std::fs::write(staging.path().join("file"), "x").unwrap();
        assert!(!place.exists());
        staging.commit().unwrap();
        assert_eq!(std::fs::read(place.join("file")).unwrap(), b"x");
        assert_eq!(parent.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn what_exists_is_not_touched() {
        let parent = tempfile::tempdir().unwrap();
        let error = Staging::begin(parent.path()).err().unwrap().to_string();
        assert!(error.contains("exists already"), "{error}");
        let missing = parent.path().join("no/graph");
        assert!(Staging::begin(&missing).is_err());
    }
}
