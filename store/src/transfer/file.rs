//! A file that is coming: under another name until it is whole and synced.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::StoreError;
use crate::file_system::{FileSystem, FileWriter};
use crate::graph::TEMPORARY_SUFFIX;
use crate::new_file::remove_if_there;

/// A file that is being written.
#[derive(Debug)]
pub struct ArrivingFile {
    device: Arc<dyn FileSystem>,
    path: PathBuf,
    temporary: PathBuf,
    file: Box<dyn FileWriter>,
}

impl ArrivingFile {
    pub(super) fn create(device: &Arc<dyn FileSystem>, path: &Path) -> Result<Self, StoreError> {
        let mut temporary = path.to_owned().into_os_string();
        temporary.push(TEMPORARY_SUFFIX);
        let temporary = PathBuf::from(temporary);
        remove_if_there(&**device, &temporary)?;
        let file = device.create(&temporary).map_err(StoreError::io(&temporary, "create"))?;
        Ok(Self { device: Arc::clone(device), path: path.to_owned(), temporary, file })
    }

    /// Appends what has come.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.append(bytes).map_err(StoreError::io(&self.temporary, "write"))
    }

    /// Syncs it and returns it its name.
    pub fn finish(mut self) -> Result<(), StoreError> {
        self.file.sync().map_err(StoreError::io(&self.temporary, "sync"))?;
        let renamed = self.device.replace(&self.temporary, &self.path);
        renamed.map_err(StoreError::io(&self.path, "rename to"))
    }
}
