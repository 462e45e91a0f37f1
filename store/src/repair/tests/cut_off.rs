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
        Ok(Box::new(DyingWriter { fs: self.clone(), file }))
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
        Ok(Box::new(DyingPairs { fs: self.clone(), pairs }))
    }
}

#[derive(Debug)]
struct DyingWriter {
    fs: Dying,
    file: Box<dyn FileWriter>,
}

impl FileWriter for DyingWriter {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = &mut self.file;
        // Half of it arrives.
        match self.fs.change(|| Ok(())) {
            Ok(()) => file.append(bytes),
            Err(error) => file.append(&bytes[..bytes.len() / 2]).and(Err(error)),
        }
    }
    fn sync(&mut self) -> io::Result<()> {
        let file = &mut self.file;
        self.fs.change(|| file.sync())
    }
}

#[derive(Debug)]
struct DyingPairs {
    fs: Dying,
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
        self.fs.change(|| self.pairs.write(changes))
    }
    fn flush(&self) -> io::Result<()> {
        self.fs.change(|| self.pairs.flush())
    }
}

/// Changes by which a repair of two partitions tries whether files can be moved there.
const N_TRIED: u64 = 6;

/// Returns where in the graph what was lost, and of which tensor.
fn places(patient: &Patient, lost: &[Lost]) -> Vec<(String, Option<String>)> {
    let dir = patient.graph().display().to_string();
    lost.iter().map(|lost| (lost.file.replace(&dir, ""), lost.tensor.clone())).collect()
}

/// Returns the files of the losses in the reports that repairs have kept.
fn kept_losses(patient: &Patient) -> Vec<String> {
    let Ok(entries) = fs::read_dir(patient.path("quarantine")) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    let reports = paths.filter(|path| path.extension().is_some_and(|it| it == "json"));
    let mut files = Vec::new();
    for report in reports {
        let report: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
        let lost = report["lost"].as_array().unwrap();
        files.extend(lost.iter().map(|lost| lost["file"].as_str().unwrap().to_owned()));
    }
    files
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
        let fs = Arc::new(Dying::after(n_changes));
        let first = repair_on(fs, &patient.graph(), RepairMode::Apply, 2, &mut |_, _| {});
        let died = first.as_ref().map_or(true, |report| report.stopped.is_some());
        // A process that is killed prints nothing: what it has kept in a file counts.
        let kept = kept_losses(&patient);
        let before = contents(&patient.graph());
        let report = repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap();
        let after = contents(&patient.graph());
        for (path, bytes) in before {
            let is_kept = after.values().any(|found| *found == bytes);
            let ours = [".building", ".repaired", "quarantine/report-1.json.tmp"];
            let is_ours = ours.iter().any(|name| path.contains(name));
            assert!(is_kept || is_ours || path.contains("/catalog/"), "{n_changes}: {path}");
        }
        let lost = |report: &RepairReport| report.lost.iter().map(|lost| lost.rows).sum::<u64>();
        assert_eq!(lost(&report), lost(&expected), "after {n_changes} changes: {report:?}");
        // All losses are reported, by the second one if the first died before its report was kept.
        for (place, tensor) in places(&whole, &expected.lost) {
            let is_told = places(&patient, &report.lost).contains(&(place.clone(), tensor));
            let is_kept = kept.iter().any(|file| file.ends_with(&place));
            assert!(is_told || is_kept, "{n_changes}: {place} {report:?}");
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
fn a_dry_run_says_that_an_earlier_repair_is_to_be_finished_first() {
    for name in ["graph.toml", "part-000/feat.v1.seg", "part-000/halo.bin", "part-001/catalog"] {
        let patient = Patient::of(updated());
        let rows = patient.rows();
        fs::rename(patient.path(name), patient.path(&format!("{name}.repaired"))).unwrap();
        let before = contents(&patient.graph());
        let told = repair(&patient.graph(), RepairMode::DryRun, &mut |_, _| {}).unwrap();
        assert_eq!(contents(&patient.graph()), before, "a dry run has changed something");
        assert!(!told.ok && told.lost.is_empty() && told.quarantined.is_empty(), "{told:?}");
        assert!(told.stopped.as_ref().unwrap().contains("an earlier repair"), "{told:?}");
        let report = repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap();
        assert_eq!(report.done, told.done, "{name}");
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

/// Returns a graph that was compacted at version 2 and committed at version 3, with an earlier copy
/// of its first catalog.
fn moved_on() -> (Model, TempDir) {
    let (model, old) = (import(), tempfile::tempdir().unwrap());
    fs::remove_dir(old.path()).unwrap();
    copy_all(&model.path().join("part-000/catalog"), old.path());
    let graph = Graph::open(&model.path()).unwrap();
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    let put = |n_nodes: u32, value: u8| {
        let ids: Vec<NodeId> = (0..n_nodes).map(NodeId).collect();
        live.put_rows("feat", &ids, &vec![value; ids.len() * 99]).unwrap();
        live.commit_version().unwrap();
    };
    put(N_NODES, 5);
    let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
    live.compact(None, None, crate::update::Folding::All, &mut go_on).unwrap();
    put(40, 6);
    drop(live);
    assert!(!model.path().join("part-000/feat.v1.seg").exists());
    (model, old)
}

#[test]
fn a_writer_removes_nothing_before_a_repair_that_died_is_finished() {
    let patient = Patient::of(updated());
    let name = "part-000/feat.v2.delta";
    patient.damage(name, 20, 4);
    let damaged = fs::read(patient.path(name)).unwrap();
    patient.remove("part-000/catalog");
    // Until the catalog can be opened again: the second one has moved it to its place, no more.
    let opened = (0..).find_map(|n_changes| {
        for n_changes in [n_changes, N_TRIED + 1] {
            let fs = Arc::new(Dying::after(n_changes));
            let _ = repair_on(fs, &patient.graph(), RepairMode::Apply, 1, &mut |_, _| {});
        }
        let graph = Graph::open(&patient.graph()).unwrap();
        GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).ok()
    });
    drop(opened);
    let all = contents(&patient.graph());
    assert!(all.values().any(|bytes| *bytes == damaged), "{:?}", all.keys());
    let report = repair(&patient.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap();
    assert!(report.lost.iter().any(|lost| lost.file.ends_with(name)), "{report:?}");
    assert!(patient.path("part-000/quarantine/feat.v2.delta.1").exists());
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
    // A page and its entry in the table: nothing proves the segment, and the catalog changes.
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
    // A delta that nothing proves, beside a catalog that is current, lost, or an old copy.
    dies_anywhere(updated(), &|p| p.damage("part-000/feat.v2.delta", 20, 4));
    dies_anywhere(updated(), &|p| {
        p.damage("part-000/feat.v2.delta", 20, 4);
        p.remove("part-000/catalog");
    });
    let (moved_on, old_catalog) = moved_on();
    dies_anywhere(&moved_on, &|p| {
        p.damage("part-000/feat.v3.delta", 20, 4);
        p.remove("part-000/catalog");
        copy_all(old_catalog.path(), &p.path("part-000/catalog"));
    });
    // Loses what was put over segments, and that must not be forgotten.
    dies_anywhere(updated(), &|p| {
        p.remove("part-000/catalog");
        p.remove("part-001/halo.bin");
    });
}
