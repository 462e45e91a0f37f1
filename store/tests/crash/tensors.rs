//! Tensors that come to a graph and go from it: whole or not at all, whatever happens.

use std::collections::BTreeSet;
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use lodestore_graph::NodeId;
use lodestore_store::codec::SegmentCodec;
use lodestore_store::file_system::crash::{CrashFileSystem, Fault, Neglect, Plan};
use lodestore_store::file_system::{Entry, FileSystem};
use lodestore_store::update::{Folding, drop_tensor};
use lodestore_store::verify::verify_on;
use lodestore_store::{
    Dtype, EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind, StoreError,
    TensorSpec, View,
};
use rustix::io::Errno;

use crate::crash::import::imported;
use crate::crash::small::{N_NODES, OUT};
use crate::crash::sweep::{Scenario, n_seeds, sweep_faults, sweep_losses};
use crate::crash::world::Finding;

const NAME: &str = "emb";
const ROW_BYTES: usize = 900;

/// Each way that the tensor may be: with rows of this number, or not there.
type Possible = Vec<Option<u8>>;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Adds the tensor with rows of this number.
    Add(u8),
    Drop,
}

/// A tensor comes and goes.
struct Tensors {
    base: CrashFileSystem,
    ops: &'static [Op],
}

fn rows(number: u8) -> Vec<u8> {
    vec![number; N_NODES as usize * ROW_BYTES]
}

fn graph(crash: &CrashFileSystem) -> Result<Graph, StoreError> {
    Graph::open_on(Arc::new(crash.clone()), Path::new(OUT))
}

fn open(crash: &CrashFileSystem, mode: OpenMode) -> Result<Arc<GraphHandle>, StoreError> {
    let options = OpenOptions { reader: ReaderKind::Pread };
    GraphHandle::open(graph(crash)?, None, mode, &options).map(Arc::new)
}

fn act(crash: &CrashFileSystem, op: Op) -> Result<(), StoreError> {
    match op {
        Op::Add(number) => {
            let live = open(crash, OpenMode::Write)?;
            let spec = TensorSpec::new(NAME, Dtype::U8, ROW_BYTES as u32).unwrap();
            let mut tensor = live.new_tensor(spec, SegmentCodec::Raw)?;
            tensor.write_rows(&rows(number))?;
            tensor.finish().map(drop)
        }
        Op::Drop => drop_tensor(graph(crash)?, NAME).map(drop),
    }
}

/// Returns the number of the tensor's rows; `None` where it is not there.
fn found(crash: &CrashFileSystem) -> Result<Option<u8>, Box<dyn Error>> {
    let store = EmbeddedStore::from_handle(open(crash, OpenMode::Read)?, View::Latest)?;
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut mark = vec![0; ids.len()];
    store.gather("mark", &ids, &mut mark)?;
    if store.graph().tensor(NAME).is_err() {
        return Ok(None);
    }
    let mut out = rows(0);
    store.gather(NAME, &ids, &mut out)?;
    match out.iter().all(|byte| *byte == out[0]) {
        true => Ok(Some(out[0])),
        false => Err("rows of two tensors".into()),
    }
}

fn check_is(crash: &CrashFileSystem, possible: &Possible) -> Result<Option<u8>, Box<dyn Error>> {
    let found = found(crash)?;
    match possible.contains(&found) {
        true => Ok(found),
        false => Err(format!("found {found:?}, expected one of {possible:?}").into()),
    }
}

/// Checks that once a writer has opened the graph, its folders have the files of its tensors and no
/// other.
fn check_files(crash: &CrashFileSystem) -> Finding {
    drop(open(crash, OpenMode::Write)?);
    let graph = graph(crash)?;
    for part in graph.book().parts() {
        let dir = graph.part_dir(part);
        let entries = crash.list(&dir)?.into_iter().map(|entry| entry.name);
        let names: BTreeSet<String> = entries.filter(|name| name.contains(".v")).collect();
        let tensors = graph.meta().tensors.iter().map(|it| format!("{}.v1.seg", it.name));
        let expected: BTreeSet<String> = tensors.collect();
        if names != expected {
            return Err(format!("{}: {names:?}, expected {expected:?}", dir.display()).into());
        }
    }
    let report = verify_on(Arc::new(crash.clone()), Path::new(OUT), 1, &mut |_, _| {})?;
    if report.ok { Ok(()) } else { Err(format!("{:?}", report.damaged).into()) }
}

impl Tensors {
    fn new(ops: &'static [Op]) -> Self {
        Self { base: imported(), ops }
    }
}

impl Scenario for Tensors {
    type Acknowledged = Possible;

    fn name(&self) -> &'static str {
        "tensors"
    }

    fn prepare(&self) -> CrashFileSystem {
        self.base.after_loss(0)
    }

    fn run(&self, fs: &CrashFileSystem, is_sticky: bool) -> Result<Possible, Box<dyn Error>> {
        let mut possible = vec![None];
        for &op in self.ops {
            let had_struck = fs.has_struck();
            let after = match op {
                Op::Add(number) => Some(number),
                Op::Drop => None,
            };
            match act(fs, op) {
                Ok(()) => possible = vec![after],
                // It is there, or is not, since the operation that failed before.
                Err(StoreError::TensorRefused { .. }) if possible.iter().any(Option::is_some) => {}
                Err(StoreError::NoTensor { .. }) if possible.contains(&None) => {}
                Err(error) if fs.has_struck() && (is_sticky || !had_struck) => {
                    possible.push(after);
                    let _ = error;
                }
                Err(error) => return Err(format!("{op:?} without a reason: {error}").into()),
            }
        }
        Ok(possible)
    }

    fn check(&self, crash: &CrashFileSystem, possible: &Possible, seed: u64) -> Finding {
        let mut crash = crash.clone();
        for again in 0..seed % 3 {
            let after = (seed / 3 + again * 5) % 14;
            crash.arm(Some(Plan { fault: Fault::PowerLoss, after, sticky: true }));
            let opened = open(&crash, OpenMode::Write).map(drop);
            if let Err(error) =
                opened.or_else(|error| crash.has_struck().then_some(()).ok_or(error))
            {
                return Err(format!("recovery {again}: {error}").into());
            }
            crash = crash.after_loss(seed + again);
        }
        let is = check_is(&crash, possible)?;
        check_files(&crash)?;
        check_is(&crash, &vec![is])?;
        if is.is_some() {
            act(&crash, Op::Drop)?;
        }
        act(&crash, Op::Add(99))?;
        let crash = crash.after_loss(seed);
        check_is(&crash, &vec![Some(99)])?;
        check_files(&crash)
    }
}

#[test]
fn tensors_come_and_go_whole_or_not_at_all_whatever_happens() {
    const OPS: &[Op] = &[Op::Add(1), Op::Drop, Op::Add(2)];
    let tensors = Tensors::new(OPS);
    let n_outcomes = sweep_losses(&tensors, None, n_seeds(6, 300)).unwrap();
    println!("{n_outcomes} outcomes, {} runs with faults", sweep_faults(&tensors).unwrap());
}

/// A repeated import would be refused for its name.
#[test]
fn a_tensor_that_is_there_is_no_error_though_its_catalogs_could_not_be_written() {
    let base = imported();
    let mut n_catalogs_failed = 0;
    for after in 0.. {
        let crash = base.after_loss(0);
        let live = open(&crash, OpenMode::Write).unwrap();
        let spec = TensorSpec::new(NAME, Dtype::U8, ROW_BYTES as u32).unwrap();
        let mut tensor = live.new_tensor(spec, SegmentCodec::Raw).unwrap();
        tensor.write_rows(&rows(1)).unwrap();
        let fault = Fault::Errno(Errno::NOSPC);
        crash.arm(Some(Plan { fault, after, sticky: true }));
        let finished = tensor.finish();
        let has_struck = crash.has_struck();
        crash.arm(None);
        let stored = graph(&crash).unwrap();
        let is_listed = stored.tensor(NAME).is_ok();
        let is_finished = finished.is_ok();
        for part in stored.book().parts().filter(|_| !is_listed) {
            let left = crash.list(&stored.part_dir(part)).unwrap();
            let is_of_it = |entry: &Entry| entry.name.starts_with(NAME);
            assert!(!left.iter().any(is_of_it), "fault {after}: {left:?}");
        }
        match finished {
            Ok(_) => assert!(is_listed, "fault {after}"),
            // The sync of its replacement may fail.
            Err(StoreError::Io { .. }) => {}
            Err(error) => {
                n_catalogs_failed += 1;
                assert!(!is_listed, "fault {after}: {error}");
            }
        }
        if is_finished {
            // As it is, and after it was changed and folded without another opening.
            assert_eq!(found(&crash).unwrap(), Some(1), "fault {after}");
            let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
            live.put_rows(NAME, &ids, &rows(2)).unwrap();
            live.commit_version().unwrap();
            let mut go_on = |_, _| ControlFlow::Continue(());
            live.compact(None, None, Folding::All, &mut go_on).unwrap();
            drop(live);
            drop(open(&crash, OpenMode::Write).unwrap());
            assert_eq!(found(&crash).unwrap(), Some(2), "fault {after}");
            let report = verify_on(Arc::new(crash), Path::new(OUT), 1, &mut |_, _| {}).unwrap();
            assert!(report.ok, "fault {after}: {:?}", report.damaged);
        }
        if !has_struck {
            assert!(n_catalogs_failed > 0 && after > 5, "{after} operations");
            return;
        }
    }
}

#[test]
fn the_sweep_finds_tensors_whose_files_are_not_synced() {
    let tensors = Tensors::new(&[Op::Add(1), Op::Drop, Op::Add(2)]);
    for neglect in [Neglect::FileSyncs, Neglect::FolderSyncs] {
        println!("{}", sweep_losses(&tensors, Some(neglect), 8).unwrap_err());
    }
}
