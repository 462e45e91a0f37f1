//! Graphs of more files than a process may have open.

use std::path::Path;

use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::Direction;
use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_store::import::TensorOptions;
use lodestore_store::source::{SourceError, TensorSource};
use lodestore_store::{
    Dtype, EmbeddedStore, Graph, GraphHandle, Importer, OpenMode, OpenOptions, ReaderKind,
    StoreError,
};
use rustix::process::Resource;

use testing::child::{child, limit};

const N_PARTS: u32 = 60;
const N_TENSORS: usize = 5;
const N_NODES: u32 = 600;

#[test]
fn a_graph_of_more_files_than_may_be_open_is_imported_and_its_opening_refused_by_name() {
    child("many partitions", tempfile::tempdir().unwrap().path());
}

/// Runs the child process of this test; returns `false` in other processes.
pub(crate) fn act(scenario: &str, dir: &Path) -> bool {
    if scenario != "many partitions" {
        return false;
    }
    // The graph has 360 segments.
    limit(Resource::Nofile, 100);
    let dir = dir.join("graph");
    import(&dir);
    match EmbeddedStore::open(&dir, None).unwrap_err() {
        StoreError::FileLimit { n_parts: 60, n_tensors: 6, needed: 420, limit: 100, .. } => {}
        error => panic!("{error}"),
    }
    let text = open(&dir, OpenMode::Write).unwrap_err().to_string();
    assert!(text.contains("420 open files") && text.contains("ulimit -n"), "{text}");
    // A few of them are few files.
    let few = [PartId(3), PartId(59)];
    check(&EmbeddedStore::open(&dir, Some(&few)).unwrap(), &[39, 590, 599]);
    limit(Resource::Nofile, 1024);
    check(&EmbeddedStore::open(&dir, None).unwrap(), &[0, 39, 300, 599]);
    let live = open(&dir, OpenMode::Write).unwrap();
    live.put_rows("t2", &[NodeId(300)], &7u32.to_le_bytes()).unwrap();
    assert_eq!(live.commit_version().unwrap(), 2);
    true
}

fn open(dir: &Path, mode: OpenMode) -> Result<GraphHandle, StoreError> {
    let options = OpenOptions { reader: ReaderKind::Mapped };
    GraphHandle::open(Graph::open(dir).unwrap(), None, mode, &options)
}

fn import(dir: &Path) {
    let order: Vec<u32> = (0..N_NODES).collect();
    let starts = (0..=N_PARTS).map(|part| part * N_NODES / N_PARTS).collect();
    let book = PartitionBook::new(starts).unwrap();
    let nodes = Relabelling { book, external_of: order.clone(), internal_of: order };
    let mut importer = Importer::begin(dir).unwrap();
    for tensor in 0..N_TENSORS {
        let (name, options) = (format!("t{tensor}"), TensorOptions::default());
        importer.add_tensor(&name, &Numbers, options, &nodes, &mut |_, _| {}).unwrap();
    }
    importer.commit(&nodes, 0, Direction::Directed).unwrap();
}

fn check(store: &EmbeddedStore, ids: &[u32]) {
    let ids: Vec<NodeId> = ids.iter().copied().map(NodeId).collect();
    let mut rows = vec![0; 4 * ids.len()];
    store.gather("t4", &ids, &mut rows).unwrap();
    let expected: Vec<u8> = ids.iter().flat_map(|id| id.0.to_le_bytes()).collect();
    assert_eq!(rows, expected);
}

/// A tensor whose row of a node is the node's number.
struct Numbers;

impl TensorSource for Numbers {
    fn dtype(&self) -> Dtype {
        Dtype::I32
    }

    fn width(&self) -> u64 {
        1
    }

    fn n_rows(&self) -> u64 {
        N_NODES.into()
    }

    fn path(&self) -> &Path {
        Path::new("numbers")
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(4)) {
            out.copy_from_slice(&row.to_le_bytes());
        }
        Ok(())
    }
}
