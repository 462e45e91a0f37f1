//! Making a tree of files durable.

use std::path::Path;

use crate::device::Device;
use crate::error::StoreError;

/// Syncs every file and folder below `dir`, and `dir` itself last.
pub(super) fn sync_tree(device: &dyn Device, dir: &Path) -> Result<(), StoreError> {
    for entry in device.list(dir).map_err(StoreError::io(dir, "list"))? {
        let path = dir.join(&entry.name);
        if entry.is_dir { sync_tree(device, &path)? } else { sync(device, &path)? }
    }
    sync(device, dir)
}

pub(super) fn sync(device: &dyn Device, path: &Path) -> Result<(), StoreError> {
    device.sync(path).map_err(StoreError::io(path, "sync"))
}
