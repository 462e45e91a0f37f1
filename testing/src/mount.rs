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
pub struct Disk {
    dir: TempDir,
}

impl Disk {
    /// Mounts a file system in memory. `None`, and a line that says so, where the system does not
    /// let us.
    pub fn tmpfs(n_bytes: u64) -> Option<Self> {
        let size = format!("size={n_bytes}");
        Self::mounted(&["-t", "tmpfs", "-o", &size, "tmpfs"]).map_or_else(|why| skipped(&why), Some)
    }

    /// Mounts a file system on a loop device, so that it has the caches and the late refusals of a
    /// real one. `None`, and a line that says so, where that is not possible.
    pub fn ext4(n_bytes: u64) -> Option<Self> {
        // The loop device holds it; its name is gone before a kill could leave it.
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(n_bytes).unwrap();
        let path = image.path().to_str().unwrap();
        // No blocks are reserved for root, which runs this.
        let made = run(&["mkfs.ext4", "-q", "-F", "-m", "0", path]);
        made.and_then(|()| Self::mounted(&["-o", "loop", path]))
            .map_or_else(|why| skipped(&why), Some)
    }

    fn mounted(what: &[&str]) -> Result<Self, String> {
        let dir = tempfile::tempdir().unwrap();
        run(&[&["mount"], what, &[dir.path().to_str().unwrap()]].concat())?;
        Ok(Self { dir })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Changes the mount: another size, `ro` or `rw`.
    pub fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        run(&["mount", "-o", &options, self.dir.path().to_str().unwrap()]).unwrap();
    }

    /// Fills it with a file up to `left` bytes, or a little more; again if there is room again.
    pub fn fill(&self, left: u64) {
        let filler = self.path("filler");
        let file = File::options().create(true).append(true).open(filler).unwrap();
        let stat = rustix::fs::statvfs(self.dir.path()).unwrap();
        let mut n_bytes = (stat.f_bavail * stat.f_frsize).saturating_sub(left);
        while n_bytes > 0 {
            let end = file.metadata().unwrap().len();
            match fallocate(&file, FallocateFlags::empty(), end, n_bytes) {
                Ok(()) => return,
                // The space of a file system for the map of the file is not known before.
                Err(Errno::NOSPC) => n_bytes = n_bytes.saturating_sub(FILLER_STEP_BYTES),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Makes room again.
    pub fn empty(&self) {
        std::fs::remove_file(self.path("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A drop that fails leaves a mount, which is no reason to abort.
        let _ = run(&["umount", "-l", self.dir.path().to_str().unwrap()]);
    }
}

/// Returns a line that says so; a failure where `LODE_NEEDS_DISK` is set.
fn skipped(why: &str) -> Option<Disk> {
    assert!(std::env::var_os("LODE_NEEDS_DISK").is_none(), "no disk of its own: {why}");
    println!("SKIPPED: only root can mount, and loop devices and mkfs.ext4 must be there: {why}");
    None
}

/// Returns what a command that failed has said.
fn run(line: &[&str]) -> Result<(), String> {
    let output = Command::new(line[0]).args(&line[1..]).output();
    let output = output.map_err(|error| format!("{}: {error}", line[0]))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| stderr.trim().to_owned())
}
