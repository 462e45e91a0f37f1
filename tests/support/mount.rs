//! A file system of a test's own, as large as it wants it.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tempfile::TempDir;

/// Left to be taken by others while the filler is made.
const FILLER_STEP_BYTES: u64 = 64 << 10;

/// A mounted file system; unmounted on drop.
pub(crate) struct Disk {
    dir: TempDir,
    /// Of one in a file: that file.
    _image: Option<tempfile::NamedTempFile>,
}

impl Disk {
    /// In memory. `None`, and a line that says so, where the system does not let us mount.
    pub(crate) fn tmpfs(n_bytes: u64) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={n_bytes}");
        Self::mounted(dir, None, &["-t", "tmpfs", "-o", &size, "tmpfs"])
    }

    /// On a loop device, so that it has the caches and the late refusals of a real one. `None`, and a
    /// line that says so, where that cannot be had.
    pub(crate) fn ext4(n_bytes: u64) -> Option<Self> {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(n_bytes).unwrap();
        let path = image.path().to_str().unwrap().to_owned();
        // Nothing is kept for root, who runs this.
        if !ran(&["mkfs.ext4", "-q", "-F", "-m", "0", &path]) {
            println!("SKIPPED: there is no mkfs.ext4");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        Self::mounted(dir, Some(image), &["-o", "loop", &path])
    }

    fn mounted(
        dir: TempDir,
        image: Option<tempfile::NamedTempFile>,
        what: &[&str],
    ) -> Option<Self> {
        let at = dir.path().to_str().unwrap();
        if !ran(&[&["mount"], what, &[at]].concat()) {
            println!("SKIPPED: only root can mount, and loop devices must be there");
            return None;
        }
        Some(Self { dir, _image: image })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Changes the mount: another size, `ro` or `rw`.
    pub(crate) fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        assert!(ran(&["mount", "-o", &options, self.dir.path().to_str().unwrap()]), "{options}");
    }

    /// Fills it with a file up to `left` bytes, or a little more; again if there is room again.
    pub(crate) fn fill(&self, left: u64) {
        let filler = self.path("filler");
        let file = File::options().create(true).append(true).open(filler).unwrap();
        let stat = rustix::fs::statvfs(self.dir.path()).unwrap();
        let mut n_bytes = (stat.f_bavail * stat.f_frsize).saturating_sub(left);
        while n_bytes > 0 {
            let end = file.metadata().unwrap().len();
            match fallocate(&file, FallocateFlags::empty(), end, n_bytes) {
                Ok(()) => return,
                // What a file system needs to note where the file lies is not to be known before.
                Err(Errno::NOSPC) => n_bytes = n_bytes.saturating_sub(FILLER_STEP_BYTES),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Makes room again.
    pub(crate) fn empty(&self) {
        std::fs::remove_file(self.path("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        ran(&["umount", "-l", self.dir.path().to_str().unwrap()]);
    }
}

fn ran(line: &[&str]) -> bool {
    let output = Command::new(line[0]).args(&line[1..]).output();
    output.is_ok_and(|output| output.status.success())
}
