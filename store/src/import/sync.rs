//! Making a tree of files durable.

use std::path::Path;

use crate::error::StoreError;
use crate::file_system::FileSystem;

/// Syncs every file and folder below `dir`, and `dir` itself last.
pub(super) fn sync_tree(device: &dyn FileSystem, dir: &Path) -> Result<(), StoreError> {
    for entry in device.list(dir).map_err(StoreError::io(dir, "list"))? {
        let path = dir.join(&entry.name);
        if entry.is_dir { sync_tree(device, &path)? } else { sync(device, &path)? }
    }
    sync(device, dir)
}

pub(super) fn sync(device: &dyn FileSystem, path: &Path) -> Result<(), StoreError> {
    device.sync(path).map_err(StoreError::io(path, "sync"))
}
