//! Files that are in the way and may be the only copy of something: they move, and are not removed.

use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::file_system::FileSystem;

/// Folder, of a graph or of a partition, with what was taken out of the way.
pub(crate) const QUARANTINE_DIR: &str = "quarantine";

/// Most files of one name in quarantine.
const MAX_QUARANTINED: u32 = 1_000_000;

/// Returns where [`quarantine`] would move what is at `path`: the first free name in the quarantine
/// of its folder.
pub(crate) fn quarantine_place(fs: &dyn FileSystem, path: &Path) -> Result<PathBuf, StoreError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.with_file_name(QUARANTINE_DIR);
    let taken = match fs.exists(&folder) {
        true => fs.list(&folder).map_err(StoreError::io(&folder, "list"))?,
        false => Vec::new(),
    };
    let is_free = |place: &String| taken.iter().all(|entry| entry.name != *place);
    let place = (1..MAX_QUARANTINED).map(|n| format!("{name}.{n}")).find(is_free);
    let full = || StoreError::io(&folder, "list")(std::io::ErrorKind::StorageFull.into());
    place.map(|place| folder.join(place)).ok_or_else(full)
}

/// Moves what is at `path` to the quarantine of its folder, durably; returns where it is then.
pub(crate) fn quarantine(fs: &dyn FileSystem, path: &Path) -> Result<PathBuf, StoreError> {
    let to = quarantine_place(fs, path)?;
    let dir = path.parent().unwrap_or(path);
    let folder = make_quarantine(fs, dir)?;
    fs.rename(path, &to).map_err(StoreError::io(path, "move"))?;
    for dir in [&folder, dir] {
        fs.sync(dir).map_err(StoreError::io(dir, "sync"))?;
    }
    Ok(to)
}

/// Makes the quarantine of a folder, durably, if it is not there; returns its path.
pub(crate) fn make_quarantine(fs: &dyn FileSystem, dir: &Path) -> Result<PathBuf, StoreError> {
    let folder = dir.join(QUARANTINE_DIR);
    fs.create_dir(&folder).map_err(StoreError::io(&folder, "create"))?;
    fs.sync(dir).map_err(StoreError::io(dir, "sync"))?;
    Ok(folder)
}
