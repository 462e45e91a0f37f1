//! Small graphs in folders.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::edges::MemoryEdges;
use lodestore_graph::halo::write_halos;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::{Direction, Topology, write_topologies};
use lodestore_graph::{NodeId, PartitionBook};
use lodestore_store::codec::SegmentCodec;
use lodestore_store::import::TensorOptions;
use lodestore_store::source::{SourceError, TensorSource};
use lodestore_store::{
    Dtype, EmbeddedStore, Graph, GraphHandle, Importer, OpenMode, OpenOptions, View,
};

/// Nodes of a graph, in partitions of equal size.
pub(crate) const N_NODES: u32 = 2000;

/// Rows of one number each: `value` + node.
struct Rows {
    value: u32,
}

impl TensorSource for Rows {
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
        Path::new("rows")
    }

    fn copy_rows(&self, ids: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        for (id, out) in ids.iter().zip(out.chunks_exact_mut(4)) {
            out.copy_from_slice(&(self.value + id).to_le_bytes());
        }
        Ok(())
    }
}

/// Imports a graph of two partitions with the tensors `feat` and `label`.
pub(crate) fn import(dir: &Path) -> PathBuf {
    import_in(dir, 2)
}

/// Imports a graph of `n_parts` partitions with the tensors `feat` and `label`.
pub(crate) fn import_in(dir: &Path, n_parts: u32) -> PathBuf {
    let graph = dir.join("graph");
    let order: Vec<u32> = (0..N_NODES).collect();
    let starts = (0..=n_parts).map(|part| part * N_NODES / n_parts);
    let book = PartitionBook::new(starts.collect()).unwrap();
    let nodes = Relabelling { book, external_of: order.clone(), internal_of: order };
    let mut importer = Importer::begin(&graph).unwrap();
    nodes.book.parts().for_each(|part| drop(importer.part_dir(part).unwrap()));
    let uuid = *importer.uuid().as_bytes();
    let edges = (0..N_NODES).map(|node| [node, (node + 1) % N_NODES]).collect();
    let edges = MemoryEdges::new(edges).unwrap();
    let path = |part| importer.topology_path(part);
    let written = write_topologies(&edges, &nodes, Direction::Directed, uuid, &path).unwrap();
    let paths: Vec<PathBuf> = nodes.book.parts().map(path).collect();
    let topology = Topology::open(&paths, &nodes.book, uuid).unwrap();
    write_halos(&topology, &nodes.book, uuid, &|part| importer.halo_path(part)).unwrap();
    for (name, value) in [("feat", 1_000_000), ("label", 2_000_000)] {
        let (rows, options) = (Rows { value }, TensorOptions::default());
        importer.add_tensor(name, &rows, options, &nodes, &mut |_, _| {}).unwrap();
    }
    importer.commit(&nodes, written.n_edges_directed, Direction::Directed).unwrap();
    graph
}

pub(crate) fn open(graph: &Path, mode: OpenMode) -> Arc<GraphHandle> {
    let graph = Graph::open(graph).unwrap();
    Arc::new(GraphHandle::open(graph, None, mode, &OpenOptions::default()).unwrap())
}

/// Commits rows of `feat` of some nodes of all partitions; returns the version.
pub(crate) fn commit(live: &GraphHandle, value: u32) -> u32 {
    let ids: Vec<NodeId> = (0..N_NODES).step_by(10).map(NodeId).collect();
    let rows: Vec<u8> = ids.iter().flat_map(|id| (value + id.0).to_le_bytes()).collect();
    live.put_rows("feat", &ids, &rows).unwrap();
    live.commit_version().unwrap()
}

/// Returns all rows of a tensor of a folder.
pub(crate) fn rows(graph: &Path, tensor: &str) -> Vec<u8> {
    let store = EmbeddedStore::from_handle(open(graph, OpenMode::Read), View::Latest).unwrap();
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut rows = vec![0; 4 * ids.len()];
    store.gather(tensor, &ids, &mut rows).unwrap();
    rows
}

/// Drops `label` and writes it again, with other rows.
pub(crate) fn replace_label(graph: &Path) {
    let live = open(graph, OpenMode::Write);
    let spec = live.graph().tensor("label").unwrap().clone();
    live.drop_tensor("label").unwrap();
    drop(live);
    let mut tensor = open(graph, OpenMode::Write).new_tensor(spec, SegmentCodec::Raw).unwrap();
    let drawn = uuid::Uuid::new_v4().as_u128() as u32;
    let rows: Vec<u8> = (0..N_NODES).flat_map(|id| drawn.wrapping_add(id).to_le_bytes()).collect();
    tensor.write_rows(&rows).unwrap();
    tensor.finish().unwrap();
}
