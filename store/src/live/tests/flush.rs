//! A catalog that cannot move its log into tables: rows are still put, and nothing is removed.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::device::{
    Access, Change, Device, Disk, EachPair, Entry, FileReader, FileWriter, KeyValues,
};

/// A disk that refuses flushes while it is told to, and nothing else.
#[derive(Clone, Debug, Default)]
struct Unflushed {
    refuses: Arc<AtomicBool>,
}

impl Device for Unflushed {
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>> {
        Disk.open(path)
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
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        Disk.remove_dir_all(path)
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        Disk.sync(path)
    }
    fn key_values(&self, dir: &Path, access: Access) -> io::Result<Box<dyn KeyValues>> {
        let pairs = Disk.key_values(dir, access)?;
        Ok(Box::new(UnflushedPairs { device: self.clone(), pairs }))
    }
}

#[derive(Debug)]
struct UnflushedPairs {
    device: Unflushed,
    pairs: Box<dyn KeyValues>,
}

impl KeyValues for UnflushedPairs {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.pairs.get(key)
    }
    fn get_sorted(&self, keys: &[Vec<u8>], found: &mut dyn FnMut(usize, &[u8])) -> io::Result<()> {
        self.pairs.get_sorted(keys, found)
    }
    fn scan(&self, prefix: &[u8], each: &mut EachPair<'_>) -> io::Result<()> {
        self.pairs.scan(prefix, each)
    }
    fn write(&self, changes: &[Change]) -> io::Result<()> {
        self.pairs.write(changes)
    }
    fn flush(&self) -> io::Result<()> {
        if self.device.refuses.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.pairs.flush()
    }
}

#[test]
fn a_flush_that_fails_leaves_old_segments_for_later_and_puts_go_on() {
    let ring = ring(100, 1, 1);
    let device = Unflushed::default();
    let graph = Graph::open_on(Arc::new(device.clone()), &ring.out()).unwrap();
    let live = LiveGraph::open(graph, None, LiveMode::Write, &OpenOptions::default());
    let live = Arc::new(live.unwrap());
    put(&live, "feat", &[1, 2], 1);
    live.commit_version().unwrap();
    device.refuses.store(true, Ordering::Relaxed);
    assert_eq!(compact(&live), 2);
    let old = ring.out().join("part-000/feat.v1.seg");
    assert_eq!(
        (live.sweep().unwrap(), old.exists()),
        (1, true),
        "its successor is in the log only"
    );
    put(&live, "feat", &[3], 2);
    live.commit_version().unwrap();
    assert_eq!(seqs(&latest(&live), "feat")[..4], [0, 1, 1, 2]);
    device.refuses.store(false, Ordering::Relaxed);
    assert_eq!((live.sweep().unwrap(), old.exists()), (0, false));
    assert_eq!(seqs(&latest(&live), "feat")[..4], [0, 1, 1, 2]);
}
