//! A file system in memory that is as large as a test wants it.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// A mounted tmpfs; unmounted on drop.
pub(crate) struct Tmpfs {
    dir: TempDir,
}

impl Tmpfs {
    /// `None`, and a line that says so, where the system does not let us mount.
    pub(crate) fn mount(n_bytes: u64) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={n_bytes}");
        let path = dir.path().to_str().unwrap();
        if !ran(&["mount", "-t", "tmpfs", "-o", &size, "tmpfs", path]) {
            println!("SKIPPED: only root can mount");
            return None;
        }
        Some(Self { dir })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Changes the mount: another size, `ro` or `rw`.
    pub(crate) fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        assert!(ran(&["mount", "-o", &options, self.dir.path().to_str().unwrap()]), "{options}");
    }

    /// Fills it with a file up to `left` bytes.
    pub(crate) fn fill(&self, left: u64) {
        let stat = rustix::fs::statvfs(self.dir.path()).unwrap();
        let n_bytes = (stat.f_bavail * stat.f_frsize).saturating_sub(left);
        let mut file = File::create(self.path("filler")).unwrap();
        file.write_all(&vec![1; n_bytes as usize]).unwrap();
    }

    /// Makes room again.
    pub(crate) fn empty(&self) {
        std::fs::remove_file(self.path("filler")).unwrap();
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        ran(&["umount", "-l", self.dir.path().to_str().unwrap()]);
    }
}

fn ran(line: &[&str]) -> bool {
    let output = Command::new(line[0]).args(&line[1..]).output();
    output.is_ok_and(|output| output.status.success())
}
