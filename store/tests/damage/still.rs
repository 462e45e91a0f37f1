//! A file system that holds a picture of a graph in memory and shows it with damage.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use lodestore_store::file_system::{
    Access, Change, Disk, EachPair, Entry, FileReader, FileSystem, FileWriter, KeyValues,
};

type Bytes = Arc<Vec<u8>>;
type Pairs = Arc<BTreeMap<Vec<u8>, Vec<u8>>>;

/// The picture. Nothing can be written to it.
#[derive(Debug, Default)]
pub(crate) struct Still {
    files: BTreeMap<PathBuf, Bytes>,
    folders: BTreeMap<PathBuf, Vec<Entry>>,
    pairs: BTreeMap<PathBuf, Pairs>,
    /// Files that are shown otherwise than they were.
    damaged: RwLock<BTreeMap<PathBuf, Bytes>>,
}

impl Still {
    /// Takes the picture of all that is below `dir`.
    pub(crate) fn of(dir: &Path) -> Arc<Self> {
        let mut still = Self::default();
        still.add(dir);
        Arc::new(still)
    }

    fn add(&mut self, dir: &Path) {
        let entries = Disk.list(dir).unwrap();
        for entry in &entries {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                self.add(&path);
            } else {
                self.files.insert(path.clone(), Arc::new(std::fs::read(&path).unwrap()));
            }
        }
        if dir.ends_with("catalog") {
            let mut pairs = BTreeMap::new();
            let store = Disk.key_values(dir, Access::Read).unwrap();
            let mut each = |key: &[u8], value: &[u8]| {
                pairs.insert(key.to_vec(), value.to_vec());
                std::ops::ControlFlow::Continue(())
            };
            store.scan_from(b"", &mut each).unwrap();
            self.pairs.insert(dir.to_owned(), Arc::new(pairs));
        }
        self.folders.insert(dir.to_owned(), entries);
    }

    /// Returns all files but those of catalogs, with their bytes as they were.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&PathBuf, &Bytes)> {
        let in_catalog = |path: &Path| path.parent().is_some_and(|dir| dir.ends_with("catalog"));
        self.files.iter().filter(move |(path, _)| !in_catalog(path))
    }

    /// Shows files otherwise for as long as `look` looks.
    pub(crate) fn with<T>(
        &self,
        damaged: impl IntoIterator<Item = (PathBuf, Vec<u8>)>,
        look: impl FnOnce() -> T,
    ) -> T {
        let damaged = damaged.into_iter().map(|(path, bytes)| (path, Arc::new(bytes)));
        *self.damaged.write().unwrap() = damaged.collect();
        let seen = look();
        self.damaged.write().unwrap().clear();
        seen
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl FileSystem for Still {
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>> {
        let damaged = self.damaged.read().unwrap().get(path).cloned();
        let bytes = damaged.or_else(|| self.files.get(path).cloned());
        Ok(Box::new(StillFile { bytes: bytes.ok_or(io::ErrorKind::NotFound)? }))
    }
    fn create(&self, _: &Path) -> io::Result<Box<dyn FileWriter>> {
        refused()
    }
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.folders.get(dir).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    fn exists(&self, path: &Path) -> bool {
        self.files.contains_key(path) || self.folders.contains_key(path)
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
    fn key_values(&self, dir: &Path, _: Access) -> io::Result<Box<dyn KeyValues>> {
        let pairs = self.pairs.get(dir).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(StillPairs { pairs }))
    }
}

#[derive(Debug)]
struct StillFile {
    bytes: Bytes,
}

impl FileReader for StillFile {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = self.bytes.get(offset as usize..).unwrap_or_default();
        let n = rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
    fn as_file(&self) -> Option<&std::fs::File> {
        None
    }
    fn pin(&self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct StillPairs {
    pairs: Pairs,
}

impl KeyValues for StillPairs {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.pairs.get(key).cloned())
    }
    fn scan_from(&self, key: &[u8], each: &mut EachPair<'_>) -> io::Result<()> {
        for (key, value) in self.pairs.range(key.to_vec()..) {
            if each(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
    fn write(&self, _: &[Change]) -> io::Result<()> {
        refused()
    }
    fn flush(&self) -> io::Result<()> {
        refused()
    }
}
