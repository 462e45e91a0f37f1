//! Graphs that are damaged in every way that we could think of, repaired, and compared with what
//! they were.

mod carried;
mod catalogs;
mod cut_off;
mod descriptions;
mod doubles;
mod lists;
mod refused;
mod salvaged;
mod segments;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions as FileOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lodestore_graph::NodeId;
use lodestore_graph::npy::NpyType;
use tempfile::TempDir;

use super::*;
use crate::codec::CodecChoice;
use crate::embedded::EmbeddedStore;
use crate::fixture::{Ring, npy, row};
use crate::import::TensorOptions;
use crate::reader::OpenOptions;
use crate::source::DenseSource;
use crate::update::{GraphHandle, OpenMode};
use crate::verify::{VerifyReport, verify, verify_parts};

const PAGE: u64 = 4096;
const N_NODES: u32 = 1000;

/// Tensors with their widths in bytes and codecs. Each partition has 12 pages of `feat` and at
/// least 2 of `packed`.
const TENSORS: [(&str, usize, CodecChoice); 3] = [
    ("feat", 99, CodecChoice::Raw),
    ("packed", 200, CodecChoice::Zstd),
    ("mark", 1, CodecChoice::Zstd),
];

/// Returns a row of a tensor: rows of `packed` shrink, but not to nothing.
fn row_of(tensor: &str, id: u32, width: usize) -> Vec<u8> {
    let noise = row(id.wrapping_mul(2_654_435_761), width);
    match tensor {
        "feat" => noise,
        _ => noise.iter().enumerate().map(|(i, &b)| if i % 4 == 0 { b } else { 0 }).collect(),
    }
}

/// The original that a copy of a graph is made from.
struct Model {
    dir: TempDir,
}

impl Model {
    fn path(&self) -> PathBuf {
        self.dir.path().join("graph")
    }
}

fn import() -> Model {
    let ring = Ring::new(N_NODES, 2, 2);
    let mut importer = ring.begin();
    for (name, width, codec) in TENSORS {
        let rows: Vec<u8> = (0..N_NODES).flat_map(|id| row_of(name, id, width)).collect();
        let path = ring.dir.path().join(format!("{name}.npy"));
        let file = npy(path, NpyType::U8, &[N_NODES.into(), width as u64], &rows);
        let options = TensorOptions { codec, ..TensorOptions::default() };
        let source = DenseSource::open_npy(&file).unwrap();
        importer.add_tensor(name, &source, options, &ring.nodes, &mut |_, _| {}).unwrap();
    }
    ring.commit(importer).unwrap();
    Model { dir: ring.dir }
}

/// Returns an imported graph.
fn plain() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(import)
}

/// Returns an imported graph with rows put over it: committed at versions 2 and 3, and pending.
fn updated() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        let model = import();
        let graph = Graph::open(&model.path()).unwrap();
        let live =
            GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
        for version in 2..=4u8 {
            for (tensor, width, _) in TENSORS {
                let ids: Vec<NodeId> =
                    (0..N_NODES).step_by(usize::from(version) * 9).map(NodeId).collect();
                live.put_rows(tensor, &ids, &vec![version; ids.len() * width]).unwrap();
            }
            if version < 4 {
                live.commit_version().unwrap();
            }
        }
        model
    })
}

/// Every row of every tensor, by tensor and node; `None` for one that cannot be read.
type Rows = BTreeMap<(String, u32), Option<Vec<u8>>>;

/// A copy of a graph that may be damaged.
struct Patient {
    dir: TempDir,
}

impl Patient {
    fn of(model: &Model) -> Self {
        let dir = tempfile::tempdir().unwrap();
        copy_all(&model.path(), &dir.path().join("graph"));
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("graph").join(name)
    }

    fn graph(&self) -> PathBuf {
        self.dir.path().join("graph")
    }

    /// Overwrites bytes of a file with noise that differs from them in every byte.
    fn damage(&self, name: &str, offset: u64, n_bytes: usize) {
        let file = FileOptions::new().read(true).write(true).open(self.path(name)).unwrap();
        let mut bytes = vec![0; n_bytes];
        file.read_exact_at(&mut bytes, offset).unwrap();
        bytes.iter_mut().zip((1u8..=255).cycle()).for_each(|(byte, i)| *byte ^= i);
        file.write_all_at(&bytes, offset).unwrap();
    }

    fn cut(&self, name: &str, n_bytes: u64) {
        FileOptions::new().write(true).open(self.path(name)).unwrap().set_len(n_bytes).unwrap();
    }

    fn bytes(&self, name: &str) -> u64 {
        fs::metadata(self.path(name)).unwrap().len()
    }

    fn remove(&self, name: &str) {
        let path = self.path(name);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    fn verify(&self) -> VerifyReport {
        verify(&self.graph(), &mut |_, _| {}).unwrap()
    }

    fn rows(&self) -> Rows {
        let store = EmbeddedStore::open(self.graph(), None).unwrap();
        let mut rows = Rows::new();
        for spec in &store.graph().meta().tensors {
            let all: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
            let row_bytes = spec.row_bytes();
            let mut out = vec![0; all.len() * row_bytes];
            let gathered = store.gather(&spec.name, &all, &mut out);
            for (id, bytes) in (0..N_NODES).zip(out.chunks_exact(row_bytes)) {
                let mut one = bytes.to_vec();
                let alone = match &gathered {
                    Ok(()) => Ok(()),
                    Err(_) => store.gather(&spec.name, &[NodeId(id)], &mut one),
                };
                rows.insert((spec.name.clone(), id), alone.is_ok().then_some(one));
            }
        }
        rows
    }

    /// Repairs after a dry run that must report the same and change nothing. Afterwards a second
    /// repair has nothing to do, and nothing that was there before is gone.
    fn repair(&self) -> RepairReport {
        let before = contents(&self.graph());
        let told = repair(&self.graph(), RepairMode::DryRun, &mut |_, _| {}).unwrap();
        assert_eq!(contents(&self.graph()), before, "a dry run has changed something");
        let report = repair(&self.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap();
        let told = RepairReport { dry_run: false, kept_in: report.kept_in.clone(), ..told };
        assert_eq!(told, report, "a dry run reports otherwise");
        let after = contents(&self.graph());
        for (path, bytes) in before {
            // Catalogs are open for writing, and RocksDB moves its own files.
            let is_kept = after.values().any(|found| *found == bytes);
            let is_catalog = path.contains("/catalog/") || path.contains("/catalog.repaired/");
            assert!(is_kept || is_catalog, "{path} is gone: {report:?}");
        }
        let again = repair(&self.graph(), RepairMode::Apply, &mut |_, _| {}).unwrap();
        assert_eq!((&again.done, &again.quarantined), (&vec![], &vec![]), "after {report:?}");
        let is_told =
            |a: &Lost, b: &Lost| (&a.file, &a.tensor, &a.nodes) == (&b.file, &b.tensor, &b.nodes);
        let all_told = again.lost.iter().all(|a| report.lost.iter().any(|b| is_told(a, b)));
        assert!(all_told, "{again:?} after {report:?}");
        report
    }
}

/// Returns every file below `dir` but those of catalogs that were not moved, with its bytes.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.display().to_string(), fs::read(&path).unwrap());
        }
    }
    found
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = entry.map(|entry| (entry.path(), to.join(entry.file_name()))).unwrap();
        if from.is_dir() { copy_all(&from, &to) } else { fs::copy(&from, &to).map(|_| ()).unwrap() }
    }
}

/// Returns the rows that differ between before and after. Fails the test for a wrong row, or for a
/// lost one that was not reported.
fn lost_rows(was: &Rows, is: &Rows, report: &RepairReport) -> usize {
    let mut n_lost = 0;
    for ((tensor, id), bytes) in was {
        let found = &is[&(tensor.clone(), *id)];
        if found == bytes {
            continue;
        }
        assert_eq!(*found, None, "a wrong row: {tensor} {id}");
        let covers = |lost: &Lost| {
            lost.tensor.as_ref() == Some(tensor)
                && lost.nodes.iter().any(|[first, end]| (*first..*end).contains(id))
        };
        assert!(
            report.lost.iter().any(covers),
            "{tensor} {id} is lost and not reported: {report:?}"
        );
        n_lost += 1;
    }
    n_lost
}

/// Expected result of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Everything is as it was.
    Whole,
    /// This many rows fail; all others are as they were.
    Lost(usize),
}

/// Damages a copy of a model, repairs it, and compares.
fn check(model: &Model, damage: &dyn Fn(&Patient), expected: Outcome, what: &str) -> RepairReport {
    let patient = Patient::of(model);
    let (was, mut unknown) = (patient.rows(), patient.verify().unknown);
    damage(&patient);
    let report = patient.repair();
    let n_lost = lost_rows(&was, &patient.rows(), &report);
    let is_told = |lost: &Lost| lost.tensor.is_none() || lost.reason.contains("from a copy");
    assert!(report.lost.iter().all(is_told), "{what}: what to restore: {report:?}");
    let found = if report.ok { Outcome::Whole } else { Outcome::Lost(n_lost) };
    assert_eq!(found, expected, "{what}: {report:?}");
    let verified = patient.verify();
    assert!(verified.ok || !report.ok, "{what}: {verified:?}");
    unknown.retain(|name| report.quarantined.iter().all(|moved| moved.from != *name));
    assert_eq!(verified.unknown, unknown, "{what}");
    for damage in &verified.damaged {
        let is_told = report.lost.iter().any(|lost| lost.file == damage.file);
        assert!(is_told, "{what}: {damage:?} is not in {report:?}");
    }
    report
}
