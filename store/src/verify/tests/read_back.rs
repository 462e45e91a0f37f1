//! Written bytes are read back from the disk, and not from the memory that they were written
//! through.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use lodestore_graph::NodeId;

use crate::error::StoreError;
use crate::file_system::{Access, Disk, Entry, FileReader, FileSystem, FileWriter, KeyValues};
use crate::fixture::{Ring, WIDTH};
use crate::graph::Graph;
use crate::import::{ImportError, Importer};
use crate::reader::OpenOptions;
use crate::update::{GraphHandle, OpenMode};

/// A byte of the first page of rows, which the disk has got wrong.
const BAD_BYTE: u64 = 4096 + 17;

/// A disk with one byte wrong in files of this name, behind a memory that has it right.
#[derive(Clone, Debug)]
struct BadDisk {
    name: &'static str,
    /// How many of these it gets wrong, before it is mended.
    n_bad: Arc<Mutex<usize>>,
    /// Files of which memory holds nothing any more.
    dropped: Arc<Mutex<HashSet<PathBuf>>>,
}

impl BadDisk {
    fn new(name: &'static str) -> Self {
        Self { name, n_bad: Arc::new(Mutex::new(usize::MAX)), dropped: Arc::default() }
    }
}

#[derive(Debug)]
struct BadFile {
    disk: BadDisk,
    path: PathBuf,
    file: File,
}

impl FileReader for BadFile {
    fn len_bytes(&self) -> io::Result<u64> {
        self.file.len_bytes()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let n_read = FileReader::read_at(&self.file, buffer, offset)?;
        let is_dropped = self.disk.dropped.lock().unwrap().contains(&self.path);
        if is_dropped && (offset..offset + n_read as u64).contains(&BAD_BYTE) {
            buffer[(BAD_BYTE - offset) as usize] ^= 1;
        }
        Ok(n_read)
    }
    fn drop_cached(&self) -> io::Result<()> {
        let mut n_bad = self.disk.n_bad.lock().unwrap();
        let mut dropped = self.disk.dropped.lock().unwrap();
        dropped.remove(&self.path);
        if self.path.display().to_string().contains(self.disk.name) && *n_bad > 0 {
            *n_bad -= 1;
            dropped.insert(self.path.clone());
        }
        Ok(())
    }
    fn as_file(&self) -> Option<&File> {
        None
    }
    fn pin(&self) -> io::Result<()> {
        self.file.pin()
    }
}

impl FileSystem for BadDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>> {
        let (disk, path, file) = (self.clone(), path.to_owned(), File::open(path)?);
        Ok(Box::new(BadFile { disk, path, file }))
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        Disk.create(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        Disk.create_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        Disk.list(dir)
    }
    fn exists(&self, path: &Path) -> bool {
        Disk.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk.rename(from, to)
    }
    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk.replace(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        Disk.remove_file(path)
    }
    fn remove_if_unpinned(&self, path: &Path) -> io::Result<bool> {
        Disk.remove_if_unpinned(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        Disk.remove_dir_all(path)
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        Disk.sync(path)
    }
    fn key_values(&self, dir: &Path, access: Access) -> io::Result<Box<dyn KeyValues>> {
        Disk.key_values(dir, access)
    }
}

#[test]
fn an_import_finds_what_the_disk_has_got_wrong() {
    let ring = Ring::new(500, 1, 1);
    for (name, is_bad) in [("feat.v1.seg", true), ("other.v1.seg", false)] {
        let fs = Arc::new(BadDisk::new(name));
        let mut importer = Importer::begin_on(fs, &ring.out()).unwrap();
        let added = ring.add(&mut importer, &ring.features(500));
        match added {
            Ok(()) => assert!(!is_bad, "{name}: the page in memory was checked"),
            Err(ImportError::Store(StoreError::DamagedPage { page: 0, .. })) => assert!(is_bad),
            Err(error) => panic!("{name}: {error}"),
        }
        assert_eq!(ring.names().len(), 1);
        drop(importer);
        assert!(ring.names().is_empty());
    }
}

#[test]
fn a_compaction_finds_it_too_and_changes_nothing() {
    let ring = Ring::new(500, 1, 1);
    ring.import();
    let graph = Graph::open_on(Arc::new(BadDisk::new("feat.v2.seg")), &ring.out()).unwrap();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    live.put_rows("feat", &[NodeId(3)], &[7; WIDTH]).unwrap();
    live.commit_version().unwrap();
    let error = live
        .compact(None, None, crate::update::Folding::All, &mut |_, _| ControlFlow::Continue(()))
        .unwrap_err();
    assert!(matches!(error, StoreError::DamagedPage { page: 0, .. }), "{error}");
    drop(live);
    assert!(ring.out().join("part-000/feat.v1.seg").exists());
    assert!(!ring.out().join("part-000/feat.v2.seg").exists());
    assert!(ring.verify().ok);
}

/// A commit removes the rows that a delta was made of: it is their only copy then.
#[test]
fn a_commit_writes_again_what_the_disk_has_got_wrong_and_else_keeps_its_rows_pending() {
    let ring = Ring::new(500, 1, 1);
    ring.import();
    let disk = BadDisk::new("feat.v2.delta");
    let graph = Graph::open_on(Arc::new(disk.clone()), &ring.out()).unwrap();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    live.put_rows("feat", &[NodeId(3)], &[7; WIDTH]).unwrap();
    let error = live.commit_version().unwrap_err();
    assert!(matches!(error, StoreError::DamagedPage { page: 0, .. }), "{error}");
    assert!(!ring.out().join("part-000/feat.v2.delta").exists());
    assert_eq!(live.version(), 1);
    // The next try finds one more that is wrong, and then none.
    *disk.n_bad.lock().unwrap() = 1;
    assert_eq!(live.commit_version().unwrap(), 2);
    drop(live);
    assert!(ring.verify().ok);
    let store = crate::embedded::EmbeddedStore::open(ring.out(), None).unwrap();
    let mut row = [0; WIDTH];
    store.gather("feat", &[NodeId(3)], &mut row).unwrap();
    assert_eq!(row, [7; WIDTH]);
}

#[test]
fn a_fold_of_deltas_finds_it_and_keeps_them() {
    let ring = Ring::new(500, 1, 1);
    ring.import();
    let disk = BadDisk::new("feat.v2-3.delta");
    let graph = Graph::open_on(Arc::new(disk), &ring.out()).unwrap();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    for value in [7, 8] {
        live.put_rows("feat", &[NodeId(value)], &[value as u8; WIDTH]).unwrap();
        live.commit_version().unwrap();
    }
    let mut go_on = |_, _| ControlFlow::Continue(());
    let error = live.compact(None, None, crate::update::Folding::Deltas, &mut go_on).unwrap_err();
    assert!(matches!(error, StoreError::DamagedPage { page: 0, .. }), "{error}");
    drop(live);
    assert!(ring.out().join("part-000/feat.v2.delta").exists());
    assert!(ring.verify().ok);
}
