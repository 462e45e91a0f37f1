//! A repair that dies at any of its steps is finished by the next.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::file_system::{Access, Change, EachPair, Entry, FileReader, FileWriter, KeyValues};

/// A disk on which a number of changes succeed, and nothing after them.
#[derive(Clone, Debug)]
struct Dying {
    left: Arc<AtomicU64>,
}

impl Dying {
    fn after(n_changes: u64) -> Self {
        Self { left: Arc::new(AtomicU64::new(n_changes)) }
    }

    fn change<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let one_less = |left: u64| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(_) => act(),
            Err(_) => Err(io::Error::other("dead")),
        }
    }
}

impl FileSystem for Dying {
    fn open(&self, path: &Path) -> io::Result<Box<dyn FileReader>> {
        Disk.open(path)
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn FileWriter>> {
        let file = self.change(|| Disk.create(path))?;
        Ok(Box::new(DyingWriter { device: self.clone(), file }))
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.change(|| Disk.create_dir(path))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        Disk.list(dir)
    }
    fn exists(&self, path: &Path) -> bool {
        Disk.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(|| Disk.rename(from, to))
    }
    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(|| Disk.replace(from, to))
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.change(|| Disk.remove_file(path))
    }
    fn remove_if_unpinned(&self, path: &Path) -> io::Result<bool> {
        self.change(|| Disk.remove_if_unpinned(path))
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.change(|| Disk.remove_dir_all(path))
    }
    fn sync(&self, path: &Path) -> io::Result<()> {
        self.change(|| Disk.sync(path))
    }
    fn key_values(&self, dir: &Path, access: Access) -> io::Result<Box<dyn KeyValues>> {
        let pairs = match access {
            Access::Create => self.change(|| Disk.key_values(dir, access))?,
            _ => Disk.key_values(dir, access)?,
        };
        Ok(Box::new(DyingPairs { device: self.clone(), pairs }))
    }
}

#[derive(Debug)]
struct DyingWriter {
    device: Dying,
    file: Box<dyn FileWriter>,
}

impl FileWriter for DyingWriter {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = &mut self.file;
        // Half of it arrives.
        match self.device.change(|| Ok(())) {
            Ok(()) => file.append(bytes),
            Err(error) => file.append(&bytes[..bytes.len() / 2]).and(Err(error)),
        }
    }
    fn sync(&mut self) -> io::Result<()> {
        let file = &mut self.file;
        self.device.change(|| file.sync())
    }
}

#[derive(Debug)]
struct DyingPairs {
    device: Dying,
    pairs: Box<dyn KeyValues>,
}

impl KeyValues for DyingPairs {
    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.pairs.get(key)
    }
    fn scan_from(&self, key: &[u8], each: &mut EachPair<'_>) -> io::Result<()> {
        self.pairs.scan_from(key, each)
    }
    fn write(&self, changes: &[Change]) -> io::Result<()> {
        self.device.change(|| self.pairs.write(changes))
    }
    fn flush(&self) -> io::Result<()> {
        self.device.change(|| self.pairs.flush())
    }
}

/// Returns where in the graph what was lost, and of which tensor.
fn places(patient: &Patient, lost: &[Lost]) -> Vec<(String, Option<String>)> {
    let dir = patient.graph().display().to_string();
    lost.iter().map(|lost| (lost.file.replace(&dir, ""), lost.tensor.clone())).collect()
}

/// Repairs with a death after each number of changes, then again without, and compares with a
/// repair that lived.
fn dies_anywhere(model: &Model, damage: &dyn Fn(&Patient)) {
    let whole = Patient::of(model);
    damage(&whole);
    let expected = repair(&whole.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap();
    let (rows, verified) = (whole.rows(), whole.verify());
    for n_changes in 0.. {
        let patient = Patient::of(model);
        damage(&patient);
        let device = Arc::new(Dying::after(n_changes));
        let first = repair_on(device, &patient.graph(), RepairMode::Apply, 2, &mut |_, _| {});
        let died = first.as_ref().map_or(true, |report| report.stopped.is_some());
        let told = first.map_or(Vec::new(), |report| report.lost);
        let before = contents(&patient.graph());
        let report = repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap();
        let after = contents(&patient.graph());
        for (path, bytes) in before {
            let is_kept = after.values().any(|found| *found == bytes);
            let is_ours = path.contains(".building") || path.contains(".repaired");
            assert!(is_kept || is_ours || path.contains("/catalog/"), "{n_changes}: {path}");
        }
        let lost = |report: &RepairReport| report.lost.iter().map(|lost| lost.rows).sum::<u64>();
        assert_eq!(lost(&report), lost(&expected), "after {n_changes} changes: {report:?}");
        // All losses of the first one are reported, if not by it then by the second.
        for (place, tensor) in places(&whole, &expected.lost) {
            let is_told = |told: &[Lost]| {
                places(&patient, told).iter().any(|other| *other == (place.clone(), tensor.clone()))
            };
            assert!(is_told(&report.lost) || is_told(&told), "{n_changes}: {place} {report:?}");
        }
        assert_eq!(patient.rows(), rows, "after {n_changes} changes");
        let found = patient.verify();
        assert_eq!((found.ok, found.damaged.len()), (verified.ok, verified.damaged.len()));
        assert_eq!(found.unknown, [""; 0], "after {n_changes} changes");
        if !died {
            assert!(n_changes > 5, "{n_changes} changes only");
            return;
        }
    }
}

#[test]
fn a_dry_run_sees_what_is_only_to_be_put_in_its_place() {
    for name in ["graph.toml", "part-000/feat.v1.seg", "part-001/topology.csr", "part-001/catalog"]
    {
        let patient = Patient::of(updated());
        let rows = patient.rows();
        fs::rename(patient.path(name), patient.path(&format!("{name}.repaired"))).unwrap();
        let report = patient.repair();
        assert!(report.ok && report.done.len() == 1, "{name}: {report:?}");
        assert!(report.quarantined.is_empty(), "{name}: {report:?}");
        assert_eq!(patient.rows(), rows, "{name}");
    }
}

#[test]
fn what_only_looks_like_a_repair_that_was_cut_off_stays() {
    let dir = tempfile::tempdir().unwrap();
    let names =
        ["site.building/deep", "page.repaired", "part-000/notes.building/deep", "a.building"];
    for name in names {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"dear").unwrap();
    }
    repair(dir.path(), RepairMode::Apply, &mut |_, _| {}).unwrap_err();
    assert!(names.iter().all(|name| dir.path().join(name).is_file()));
}

#[test]
fn a_repair_that_died_anywhere_is_finished_by_the_next() {
    dies_anywhere(plain(), &|p| {
        p.damage("part-000/feat.v1.seg", 0, 4096);
        p.remove("graph.toml");
        p.remove("part-001/halo.bin");
    });
    dies_anywhere(updated(), &|p| {
        p.remove("part-001/feat.v1.seg");
        p.damage("part-000/topology.csr", 0, 20);
    });
    // A page and its entry in the table: nothing proves the table, and the catalog changes.
    dies_anywhere(plain(), &|p| {
        let bytes = p.bytes("part-000/feat.v1.seg");
        p.damage("part-000/feat.v1.seg", bytes - 2 * PAGE, 4);
        p.damage("part-000/feat.v1.seg", PAGE, 4);
    });
    dies_anywhere(updated(), &|p| {
        let colour = Change::Put(b"colour".to_vec(), b"red".to_vec());
        let pairs = Disk.key_values(&p.path("part-000/catalog"), Access::Write).unwrap();
        pairs.write(&[colour]).unwrap();
    });
    dies_anywhere(plain(), &|p| p.remove("part-001/catalog"));
    // Loses what was put over segments, and that must not be forgotten.
    dies_anywhere(updated(), &|p| {
        p.remove("part-000/catalog");
        p.remove("part-001/halo.bin");
    });
}
