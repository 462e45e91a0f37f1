//! Making a tree of files durable.

use std::fs::{self, File};
use std::path::Path;

use crate::error::StoreError;

/// Syncs every file and folder below `dir`, and `dir` itself last.
pub(super) fn sync_tree(dir: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(dir).map_err(StoreError::io(dir, "list"))? {
        let entry = entry.map_err(StoreError::io(dir, "list"))?;
        let kind = entry.file_type().map_err(StoreError::io(dir, "list"))?;
        if kind.is_dir() { sync_tree(&entry.path())? } else { sync(&entry.path())? }
    }
    sync(dir)
}

pub(super) fn sync(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(StoreError::io(path, "sync"))
}
