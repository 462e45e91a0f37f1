//! A small graph with every kind of file and both codecs.

use std::path::{Path, PathBuf};

use lodestore_graph::edges::MemoryEdges;
use lodestore_graph::halo::write_halos;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::{Direction, Topology, write_topologies};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::codec::CodecChoice;
use lodestore_store::import::TensorOptions;
use lodestore_store::source::{SourceError, TensorSource};
use lodestore_store::{
    Dtype, EmbeddedStore, Graph, GraphHandle, Importer, OpenMode, OpenOptions, StoreError,
};

pub const N_NODES: u32 = 600;

/// Name, bytes of a row, codec. All rows of `flat` are the same.
pub const TENSORS: [(&str, usize, CodecChoice); 3] = [
    ("feat", 99, CodecChoice::Raw),
    ("packed", 200, CodecChoice::Zstd),
    ("flat", 64, CodecChoice::Raw),
];

struct Rows {
    name: &'static str,
    row_bytes: usize,
}

impl Rows {
    fn row(&self, node: u32) -> impl Iterator<Item = u8> {
        (0..self.row_bytes).map(move |column| match (self.name, column % 4) {
            ("flat", _) => 5,
            ("packed", 1..) => 0,
            _ => (node.wrapping_mul(2_654_435_761) >> 13) as u8 ^ column as u8,
        })
    }
}

impl TensorSource for Rows {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }
    fn width(&self) -> u64 {
        self.row_bytes as u64
    }
    fn n_rows(&self) -> u64 {
        N_NODES.into()
    }
    fn path(&self) -> &Path {
        Path::new(self.name)
    }
    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        let bytes = rows.iter().flat_map(|&row| self.row(row));
        out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
        Ok(())
    }
}

/// Imports the graph to `out`.
pub fn import(out: &Path) -> Graph {
    let owners: Vec<PartId> = (0..N_NODES).map(|node| PartId((node % 2) as u16)).collect();
    let nodes = Relabelling::new(&owners, 2).unwrap();
    let edges = (0..N_NODES).flat_map(|i| [[i, (i + 1) % N_NODES], [i, (i * 7 + 3) % N_NODES]]);
    let edges = MemoryEdges::new(edges.collect()).unwrap();
    let mut importer = Importer::begin(out).unwrap();
    let (book, uuid) = (&nodes.book, *importer.uuid().as_bytes());
    book.parts().for_each(|part| drop(importer.part_dir(part).unwrap()));
    let path_of = |part| importer.topology_path(part);
    let summary = write_topologies(&edges, &nodes, Direction::Undirected, uuid, &path_of).unwrap();
    let paths: Vec<PathBuf> = book.parts().map(path_of).collect();
    let topology = Topology::open(&paths, book, uuid).unwrap();
    write_halos(&topology, book, uuid, &|part| importer.halo_path(part)).unwrap();
    for (name, row_bytes, codec) in TENSORS {
        let rows = Rows { name, row_bytes };
        let options = TensorOptions { codec, ..TensorOptions::default() };
        importer.add_tensor(name, &rows, options, &nodes, &mut |_, _| {}).unwrap();
    }
    importer.commit(&nodes, summary.n_edges_directed, Direction::Undirected).unwrap()
}

/// Puts rows over the segments: two committed versions and some pending.
pub fn update(graph: Graph) -> GraphHandle {
    let live = GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default()).unwrap();
    for version in 2..=4u8 {
        let ids: Vec<NodeId> = (0..N_NODES).step_by(7 * usize::from(version)).map(NodeId).collect();
        live.put_rows("feat", &ids, &vec![version; ids.len() * 99]).unwrap();
        if version < 4 {
            live.commit_version().unwrap();
        }
    }
    live
}

/// Returns all rows of all tensors, one tensor after another.
pub fn all_rows(graph: Graph) -> Result<Vec<u8>, StoreError> {
    let store = EmbeddedStore::from_graph(graph, None)?;
    let ids: Vec<NodeId> = (0..N_NODES).map(NodeId).collect();
    let mut rows = Vec::new();
    for spec in &store.graph().meta().tensors {
        let start = rows.len();
        rows.resize(start + ids.len() * spec.row_bytes(), 0);
        store.gather(&spec.name, &ids, &mut rows[start..])?;
    }
    Ok(rows)
}
