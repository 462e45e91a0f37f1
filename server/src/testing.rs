//! Graphs whose rows identify their node and version, and segments that fail to open, for tests.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::Direction;
use lodestore_graph::{NodeId, PartId};
use lodestore_store::follow::{FollowedFolder, Manifest};
use lodestore_store::import::TensorOptions;
use lodestore_store::source::{SourceError, TensorSource};
use lodestore_store::transfer::Arrival;
use lodestore_store::{Dtype, GraphHandle, Importer};

/// Bytes of a row: its node, and the turn that wrote it.
pub(crate) const ROW_BYTES: usize = 8;

/// Returns the row of a node that a turn wrote; turn 0 is the import.
pub(crate) fn row(node: u32, turn: u32) -> [u8; ROW_BYTES] {
    (u64::from(turn) << 32 | u64::from(node)).to_le_bytes()
}

/// Puts rows of the first `n_nodes` nodes; returns the version that will include them.
pub(crate) fn put(live: &GraphHandle, n_nodes: u32, turn: u32) -> u32 {
    let ids: Vec<NodeId> = (0..n_nodes).map(NodeId).collect();
    let rows: Vec<u8> = (0..n_nodes).flat_map(|node| row(node, turn)).collect();
    live.put_rows("x", &ids, &rows).unwrap()
}

/// Imports a graph with one partition and the tensor `x`.
pub(crate) fn import(dir: &Path, n_nodes: u32) -> PathBuf {
    let (graph, nodes) = (dir.join("graph"), Relabelling::identity(n_nodes));
    let mut importer = Importer::begin(&graph).unwrap();
    let (rows, options) = (Imported { n_nodes }, TensorOptions::default());
    importer.add_tensor("x", &rows, options, &nodes, &mut |_, _| {}).unwrap();
    importer.commit(&nodes, 1, Direction::Directed).unwrap();
    testing::edges::add_edges(&graph);
    graph
}

struct Imported {
    n_nodes: u32,
}

impl TensorSource for Imported {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn width(&self) -> u64 {
        2
    }
    fn n_rows(&self) -> u64 {
        self.n_nodes.into()
    }
    fn path(&self) -> &Path {
        Path::new("imported")
    }
    fn copy_rows(&self, ids: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        out.chunks_exact_mut(ROW_BYTES).zip(ids).for_each(|(out, &id)| {
            out.copy_from_slice(&row(id, 0));
        });
        Ok(())
    }
}

/// Copies partition 0 to a follower's folder, which is created; if it exists, copies the missing
/// files.
pub(crate) fn fetch(writer: &Arc<GraphHandle>, into: &Path) -> Manifest {
    let files = writer.part_files(PartId(0)).unwrap();
    let read = |at| {
        let mut bytes = Vec::new();
        files.read(at, 0, usize::MAX >> 1, &mut bytes).unwrap();
        bytes
    };
    let place = into.join("part-000");
    if place.exists() {
        for (at, (name, _)) in files.files().enumerate() {
            if files.manifest().files().any(|it| it == name) && !place.join(name).exists() {
                std::fs::write(place.join(name), read(at)).unwrap();
            }
        }
        return files.manifest().clone();
    }
    FollowedFolder::open(into, "10.0.0.5:7171").unwrap();
    let arrival = Arrival::find_or_begin(into, PartId(0), 1).unwrap();
    for (at, (name, _)) in files.files().enumerate() {
        let mut file = arrival.file(name).unwrap();
        file.append(&read(at)).unwrap();
        file.finish().unwrap();
    }
    let catalog = arrival.catalog().unwrap();
    catalog.install(files.manifest()).unwrap();
    catalog.close().unwrap();
    arrival.sync().unwrap();
    arrival.take().unwrap();
    files.manifest().clone()
}

/// What happens when a shard opens a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenFault {
    /// The next open fails.
    Fails,
    /// Opens wait until the fault is dropped.
    Waits,
}

/// A fault of the segment at a path, until this is dropped.
#[derive(Debug)]
pub(crate) struct Faulty(PathBuf);

#[derive(Debug)]
struct Fault {
    segment: PathBuf,
    kind: OpenFault,
    n_waiting: usize,
}

static FAULTS: Mutex<Vec<Fault>> = Mutex::new(Vec::new());

fn faults() -> MutexGuard<'static, Vec<Fault>> {
    FAULTS.lock().ignore_poison()
}

impl Faulty {
    pub(crate) fn new(segment: PathBuf, kind: OpenFault) -> Self {
        faults().push(Fault { segment: segment.clone(), kind, n_waiting: 0 });
        Self(segment)
    }

    /// Waits until `n_shards` shards wait to open the segment.
    pub(crate) fn wait_for(&self, n_shards: usize) {
        let is_it = |fault: &Fault| fault.segment == self.0 && fault.n_waiting == n_shards;
        let end = Instant::now() + Duration::from_secs(10);
        while !faults().iter().any(is_it) {
            assert!(Instant::now() < end, "fewer than {n_shards} shards wait to open the segment");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        faults().retain(|fault| fault.segment != self.0);
    }
}

/// Called before a shard opens a segment.
pub(crate) async fn before_open(segment: &Path) -> Result<(), String> {
    let mut waits = false;
    loop {
        {
            let mut faults = faults();
            let Some(at) = faults.iter().position(|it| it.segment == segment) else {
                return Ok(());
            };
            if faults[at].kind == OpenFault::Fails {
                faults.remove(at);
                return Err(format!("{}: fails on purpose", segment.display()));
            }
            faults[at].n_waiting += usize::from(!waits);
            waits = true;
        }
        glommio::timer::sleep(Duration::from_millis(1)).await;
    }
}
