//! A file for code that reads files: it has a path, and lives in memory.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};

/// A nameless file with a path of this process.
pub struct Scratch {
    file: File,
    path: PathBuf,
    /// Target of a link with another name.
    _dir: Option<tempfile::TempDir>,
}

impl Scratch {
    /// Returns an empty file.
    pub fn new() -> Self {
        let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memory file"));
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Self { file, path, _dir: None }
    }

    /// Returns an empty file whose path ends with `name`.
    pub fn named(name: &str) -> Self {
        let (scratch, dir) = (Self::new(), tempfile::tempdir().expect("a folder"));
        let path = dir.path().join(name);
        std::os::unix::fs::symlink(&scratch.path, &path).expect("a link");
        Self { path, _dir: Some(dir), ..scratch }
    }

    /// Returns the path, at which the file now holds nothing but `bytes`.
    pub fn with(&mut self, bytes: &[u8]) -> &std::path::Path {
        let written = self.file.rewind().and_then(|()| self.file.write_all(bytes));
        let cut = written.and_then(|()| self.file.set_len(bytes.len() as u64));
        cut.expect("room in memory");
        &self.path
    }
}
