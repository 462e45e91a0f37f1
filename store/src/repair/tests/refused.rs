//! A system that refuses to look says nothing about the files.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use super::*;
use crate::file_system::{Access, Entry, FileReader, FileWriter, KeyValues};
use crate::verify::verify_on;

/// A disk that opens this many files and folders, and refuses the rest.
#[derive(Debug)]
struct Refusing {
    left: AtomicU64,
    errno: Errno,
}

impl Refusing {
    fn after(n_opened: u64, errno: Errno) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(n_opened), errno })
    }

    fn spends(&self) -> io::Result<()> {
        let one_less = |left: u64| left.checked_sub(1);
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        left.map(drop).map_err(|_| self.errno.into())
    }
}

impl FileSystem for Refusing {
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>> {
        self.spends().and_then(|()| Disk.open(path))
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        self.spends().and_then(|()| Disk.create(path))
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        Disk.create_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.spends().and_then(|()| Disk.list(dir))
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
        self.spends().and_then(|()| Disk.sync(path))
    }
    fn key_values(&self, dir: &Path, access: Access) -> io::Result<Box<dyn KeyValues>> {
        // RocksDB reports a refusal in words only.
        let refused = |error: io::Error| {
            let words = error.to_string();
            let words = words.split(" (os error").next().unwrap_or_default();
            io::Error::other(format!("IO error: While open a file: {words}"))
        };
        self.spends().map_err(refused).and_then(|()| Disk.key_values(dir, access))
    }
}

#[test]
fn what_the_system_refuses_to_show_is_not_repaired_and_not_called_damaged() {
    let patient = Patient::of(updated());
    fs::remove_file(patient.path("part-001/halo.bin")).unwrap();
    patient.repair();
    let before: Vec<String> = contents(&patient.graph()).into_keys().collect();
    for errno in [Errno::MFILE, Errno::ACCESS, Errno::NOMEM] {
        let (mut n_opened, mut n_refused) = (0, 0);
        loop {
            let fs = Refusing::after(n_opened, errno);
            match repair_on(fs, &patient.graph(), RepairMode::Apply, 1, &mut |_, _| {}) {
                Ok(report) => {
                    assert_eq!((report.ok, &report.done), (true, &vec![]), "{report:?}");
                    break;
                }
                Err(error) => {
                    assert_eq!(error.origin(), ErrorOrigin::System, "{n_opened}: {error}");
                }
            }
            let fs = Refusing::after(n_opened, errno);
            match verify_on(fs, &patient.graph(), 2, &mut |_, _| {}) {
                Ok(report) => assert!(report.ok, "{n_opened}: {report:?}"),
                Err(error) => {
                    assert_eq!(error.origin(), ErrorOrigin::System, "{n_opened}: {error}");
                }
            }
            (n_opened, n_refused) = (n_opened + 1, n_refused + 1);
        }
        assert!(n_refused > 10, "{n_refused}");
    }
    let is_ours = |path: &&String| !path.contains("/catalog/");
    let after: Vec<String> = contents(&patient.graph()).into_keys().collect();
    let (before, after) = (before.iter().filter(is_ours), after.iter().filter(is_ours));
    assert_eq!(before.collect::<Vec<_>>(), after.collect::<Vec<_>>());
    assert!(patient.verify().ok);
}
