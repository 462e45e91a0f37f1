//! The disk with the refusals of NFS: no rename that replaces nothing, and no exclusive lock of
//! what is open for reading. For tests.

use std::fs::File;
use std::io;
use std::path::Path;

use super::locks::{lock_folder, nfs_flock, pin, remove_if_unpinned};
use super::moves::move_without_flag;
use super::{Access, Disk, Entry, FileReader, FileSystem, FileWriter, Guard, KeyValues};

/// The file system of this machine, as if it were mounted by NFS.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nfs;

impl FileSystem for Nfs {
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>> {
        Ok(Box::new(NfsReader(File::open(path)?)))
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
        move_without_flag(from, to)
    }
    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk.replace(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        Disk.remove_file(path)
    }
    fn remove_if_unpinned(&self, path: &Path) -> io::Result<bool> {
        remove_if_unpinned(path, &nfs_flock)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        Disk.remove_dir_all(path)
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        Disk.sync(path)
    }
    fn lock(&self, dir: &Path) -> io::Result<Guard> {
        lock_folder(dir, &nfs_flock)
    }
    fn key_values(&self, dir: &Path, access: Access) -> io::Result<Box<dyn KeyValues>> {
        Disk.key_values(dir, access)
    }
}

/// An open file of it.
#[derive(Debug)]
struct NfsReader(File);

impl FileReader for NfsReader {
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileReader::read_at(&self.0, buffer, offset)
    }
    fn drop_cached(&self) -> io::Result<()> {
        self.0.drop_cached()
    }
    fn as_file(&self) -> Option<&File> {
        Some(&self.0)
    }
    fn pin(&self) -> io::Result<()> {
        pin(&self.0, &nfs_flock)
    }
}
