//! The file system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, fadvise};
use rustix::process::{Resource, getrlimit};

use super::locks::{lock_folder, pin, remove_if_unpinned, system_flock};
use super::moves::move_to_free;
use super::rocks::Reopening;
use super::{Access, Entry, FileReader, FileSystem, FileWriter, Guard, KeyValues};

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl FileSystem for Disk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>> {
        Ok(Box::new(File::open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(NewFile { file, n_bytes: 0, n_begun: 0 }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            created => created,
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(Entry { name, is_dir: entry.file_type()?.is_dir() });
        }
        entries.sort();
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        move_to_free(from, to)
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_if_unpinned(&self, path: &Path) -> io::Result<bool> {
        remove_if_unpinned(path, &system_flock)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn max_files(&self) -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }

    fn lock(&self, dir: &Path) -> io::Result<Guard> {
        lock_folder(dir, &system_flock)
    }

    fn key_values(&self, dir: &Path, access: Access) -> io::Result<Box<dyn KeyValues>> {
        Ok(Box::new(Reopening::open(dir, access)?))
    }
}

impl FileReader for File {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn drop_cached(&self) -> io::Result<()> {
        Ok(fadvise(self, 0, None, Advice::DontNeed)?)
    }

    fn as_file(&self) -> Option<&File> {
        Some(self)
    }

    fn pin(&self) -> io::Result<()> {
        pin(self, &system_flock)
    }
}

/// Bytes after which the disk begins to write what was appended.
const WRITE_BEHIND_BYTES: u64 = 8 << 20;

/// A file that is being written: the disk writes while more is appended, and a sync waits for less.
#[derive(Debug)]
struct NewFile {
    file: File,
    n_bytes: u64,
    /// Bytes of these whose writeback was started.
    n_begun: u64,
}

impl FileWriter for NewFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.n_bytes += bytes.len() as u64;
        if let Some(length) = NonZero::new(self.n_bytes - self.n_begun)
            && length.get() >= WRITE_BEHIND_BYTES
        {
            // Linux begins to write dirty pages, and forgets those that are clean: none of these.
            // What it says of it does not matter; the sync reports errors.
            let _ = fadvise(&self.file, self.n_begun, Some(length), Advice::DontNeed);
            self.n_begun = self.n_bytes;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::ReadWriteFlags;

    use super::*;

    const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

    /// Reads what memory has of a file; none of it where that would wait for the disk.
    fn cached_bytes(file: &File) -> usize {
        let mut page = [0; 4096];
        let buffers = &mut [io::IoSliceMut::new(&mut page)];
        rustix::io::preadv2(file, buffers, 0, ReadWriteFlags::NOWAIT).unwrap_or(0)
    }

    #[test]
    fn after_a_drop_of_what_memory_holds_reads_wait_for_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows");
        let mut written = Disk.create(&path).unwrap();
        written.append(&[7; 1 << 16]).unwrap();
        written.sync().unwrap();
        let file = File::open(&path).unwrap();
        if cached_bytes(&file) == 0 || rustix::fs::fstatfs(&file).unwrap().f_type == TMPFS_MAGIC {
            return println!("SKIPPED: the file system does not say what memory holds");
        }
        file.drop_cached().unwrap();
        assert_eq!(cached_bytes(&file), 0, "memory still holds it");
        let mut bytes = [0; 4096];
        FileReader::read_exact_at(&file, &mut bytes, 0).unwrap();
        assert_eq!((bytes, cached_bytes(&file)), ([7; 4096], 4096));
    }
}
