//! A device as it will be once what an earlier repair has left is in its place: for dry runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::file_system::{Access, Entry, FileReader, FileSystem, FileWriter, KeyValues};

/// Shows one file or folder under another name, and changes nothing.
#[derive(Debug)]
pub(super) struct InPlace {
    pub(super) device: Arc<dyn FileSystem>,
    /// The path on disk, and the path in reports.
    pub(super) from: PathBuf,
    pub(super) place: PathBuf,
}

impl InPlace {
    fn real(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.place) {
            Ok(rest) if rest.as_os_str().is_empty() => self.from.clone(),
            Ok(rest) => self.from.join(rest),
            Err(_) => path.to_owned(),
        }
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl FileSystem for InPlace {
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>> {
        self.device.open(&self.real(path))
    }

    fn create(&self, _: &Path) -> io::Result<Box<dyn FileWriter>> {
        refused()
    }

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = self.device.list(&self.real(dir))?;
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        for entry in entries.iter_mut().filter(|entry| dir.join(&entry.name) == self.from) {
            entry.name = name(&self.place).unwrap_or_default();
        }
        entries.sort();
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> bool {
        path != self.from && self.device.exists(&self.real(path))
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    fn replace(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    fn remove_file(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn remove_if_unpinned(&self, _: &Path) -> io::Result<bool> {
        refused()
    }

    fn remove_dir_all(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn sync(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn key_values(&self, dir: &Path, access: Access) -> io::Result<Box<dyn KeyValues>> {
        match access {
            Access::Create | Access::Write => refused(),
            Access::Read | Access::Salvage => self.device.key_values(&self.real(dir), access),
        }
    }
}
