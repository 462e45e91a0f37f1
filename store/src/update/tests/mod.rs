//! Small graphs whose rows identify the put that wrote them.

mod concurrent;
mod faults;
mod following;
mod garbage;
mod history;
mod hooked;
mod kept;
mod later;
mod model;
mod mounts;
mod puts;
mod tensors;
mod transfer;
mod versions;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use lodestore_graph::NodeId;
use lodestore_graph::npy::NpyType;

use super::{Folding, GraphHandle, OpenMode, View};
use crate::codec::CodecChoice;
use crate::embedded::EmbeddedStore;
use crate::error::StoreError;
use crate::fixture::{Ring, npy};
use crate::graph::Graph;
use crate::import::TensorOptions;
use crate::reader::OpenOptions;
use crate::source::DenseSource;

/// Tensors of the test graphs with their widths in bytes. One has the shortest rows possible, which
/// are compressed. Rows of the other cross pages.
const TENSORS: [(&str, usize); 2] = [("mark", 1), ("feat", 99)];

/// Returns the row of put number `seq`; rows of two puts differ in every element.
fn row_of(seq: u32, width: usize) -> Vec<u8> {
    vec![seq as u8; width]
}

/// Returns an imported graph whose rows are those of put 0.
fn ring(n_nodes: u32, n_owners: u16, n_parts: u16) -> Ring {
    let ring = Ring::new(n_nodes, n_owners, n_parts);
    let mut importer = ring.begin();
    for (name, width) in TENSORS {
        let path = ring.dir.path().join(format!("{name}.npy"));
        let shape = [u64::from(n_nodes), width as u64];
        let file = npy(path, NpyType::U8, &shape, &vec![0; n_nodes as usize * width]);
        let source = DenseSource::open_npy(&file).unwrap();
        let codec = if name == "feat" { CodecChoice::Raw } else { CodecChoice::Zstd };
        let options = TensorOptions { codec, ..TensorOptions::default() };
        importer.add_tensor(name, &source, options, &ring.nodes, &mut |_, _| {}).unwrap();
    }
    ring.commit(importer).unwrap();
    ring
}

/// Copies a folder recursively.
fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = entry.map(|it| (it.path(), to.join(it.file_name()))).unwrap();
        if from.is_dir() {
            copy_all(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

fn open(dir: &Path, mode: OpenMode) -> Result<Arc<GraphHandle>, StoreError> {
    GraphHandle::open(Graph::open(dir)?, None, mode, &OpenOptions::default()).map(Arc::new)
}

fn writer(ring: &Ring) -> Arc<GraphHandle> {
    open(&ring.out(), OpenMode::Write).unwrap()
}

/// Opens partitions of different histories for writing.
fn aligned(ring: &Ring) -> Arc<GraphHandle> {
    let graph = Graph::open(&ring.out()).unwrap();
    let (live, version) = GraphHandle::align(graph, &OpenOptions::default()).unwrap();
    assert_eq!(live.version_id().unwrap(), version);
    Arc::new(live)
}

/// Puts the rows of `seq` for `ids`.
fn put(live: &GraphHandle, tensor: &str, ids: &[u32], seq: u32) {
    try_put(live, tensor, ids, seq).unwrap();
}

fn try_put(live: &GraphHandle, tensor: &str, ids: &[u32], seq: u32) -> Result<(), StoreError> {
    let width = live.graph().tensor(tensor).unwrap().row_bytes();
    let ids: Vec<NodeId> = ids.iter().copied().map(NodeId).collect();
    live.put_rows(tensor, &ids, &row_of(seq, width).repeat(ids.len())).map(drop)
}

fn compact(live: &GraphHandle) -> u64 {
    let mut progress = |done, total| {
        assert!(done <= total);
        ControlFlow::Continue(())
    };
    let reports = live.compact(None, None, Folding::All, &mut progress).unwrap();
    reports.iter().map(|report| report.rows).sum()
}

fn latest(live: &Arc<GraphHandle>) -> EmbeddedStore {
    EmbeddedStore::from_handle(Arc::clone(live), View::Latest).unwrap()
}

fn at(live: &Arc<GraphHandle>, version: u32) -> Result<EmbeddedStore, StoreError> {
    EmbeddedStore::from_handle(Arc::clone(live), View::At(version))
}

/// Returns the put number of each row of a tensor; panics if a row mixes puts.
fn seqs(store: &EmbeddedStore, tensor: &str) -> Vec<u8> {
    let ids: Vec<NodeId> = (0..store.graph().book().n_nodes()).map(NodeId).collect();
    seqs_of(store, tensor, &ids).unwrap()
}

fn seqs_of(store: &EmbeddedStore, tensor: &str, ids: &[NodeId]) -> Result<Vec<u8>, StoreError> {
    let width = store.tensor(tensor)?.spec().row_bytes();
    let mut out = vec![0xee; ids.len() * width];
    store.gather(tensor, ids, &mut out)?;
    let seq = |row: &[u8]| {
        assert!(row.iter().all(|&byte| byte == row[0]), "a mix of puts: {row:?}");
        row[0]
    };
    Ok(out.chunks_exact(width).map(seq).collect())
}
