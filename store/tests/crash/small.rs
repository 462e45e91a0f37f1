//! The small graph of these tests: what is in it, and its import.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::edges::MemoryEdges;
use lodestore_graph::halo::write_halos;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::{Direction, Topology, write_topologies};
use lodestore_graph::{PartId, PartitionBook, splitmix64};
use lodestore_store::codec::CodecChoice;
use lodestore_store::file_system::FileSystem;
use lodestore_store::import::{ImportError, TensorOptions};
use lodestore_store::nan::NanPolicy;
use lodestore_store::source::{SourceError, TensorSource};
use lodestore_store::{Dtype, Graph, Importer, StoreError};

/// Where the graph is; its parent is there before.
pub(crate) const OUT: &str = "graphs/small";

/// Nodes of the graph.
pub(crate) const N_NODES: u32 = 12;

/// The first partition's rows fill more than a page, those of the second do not.
pub(crate) const BOUNDS: [u32; 3] = [0, 7, N_NODES];

/// A tensor whose rows follow from node and put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Name of the tensor.
    pub(crate) name: &'static str,
    /// Bytes of a row.
    pub(crate) row_bytes: usize,
    codec: CodecChoice,
}

/// Rows that cross pages, and the shortest that there are, which are compressed.
pub(crate) const TENSORS: [Rows; 2] = [
    Rows { name: "feat", row_bytes: 700, codec: CodecChoice::Raw },
    Rows { name: "mark", row_bytes: 1, codec: CodecChoice::Zstd },
];

/// Bytes without order, of which rows are windows: comparing two is one call.
static NOISE: [u8; 2048] = {
    let mut bytes = [0; 2048];
    let mut i = 0;
    while i < bytes.len() {
        bytes[i] = splitmix64(i as u64) as u8;
        i += 1;
    }
    bytes
};

impl Rows {
    /// Returns the row of put number `seq` for a node. Its first byte identifies the put; the
    /// others are those of no other node or put. Put 0 is the import.
    pub(crate) fn row(self, node: u32, seq: u32) -> (u8, &'static [u8]) {
        let start = (node * 64 + seq) as usize;
        ((node * 37 + seq) as u8, &NOISE[start..start + self.row_bytes - 1])
    }

    /// Returns the put that a row of a node is of; `None` where it is of none, or not whole.
    pub(crate) fn seq_of(self, node: u32, row: &[u8]) -> Option<u32> {
        let seq = u32::from(row[0].wrapping_sub((node * 37) as u8));
        (seq < 64 && self.row(node, seq).1 == &row[1..]).then_some(seq)
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
        let node_of = |external: u32| N_NODES - 1 - external;
        for (&external, out) in rows.iter().zip(out.chunks_exact_mut(self.row_bytes)) {
            let (first, others) = self.row(node_of(external), 0);
            out[0] = first;
            out[1..].copy_from_slice(others);
        }
        Ok(())
    }
}

/// Returns the input's id of each node.
pub(crate) fn external_of() -> Vec<u32> {
    (0..N_NODES).rev().collect()
}

/// Returns the nodes, and who owns them.
fn nodes() -> Relabelling {
    let book = PartitionBook::new(BOUNDS.to_vec()).expect("bounds that ascend");
    // The order is its own inverse.
    Relabelling { book, external_of: external_of(), internal_of: external_of() }
}

/// Imports the graph, with every kind of file that there is.
pub(crate) fn import(fs: &Arc<dyn FileSystem>) -> Result<Graph, ImportError> {
    let nodes = nodes();
    let mut importer = Importer::begin_on(Arc::clone(fs), Path::new(OUT))?;
    for part in nodes.book.parts() {
        importer.part_dir(part)?;
    }
    let n_edges = write_lists(&**fs, &importer, &nodes)?;
    for tensor in TENSORS {
        let options = TensorOptions { nan: NanPolicy::Refuse, codec: tensor.codec };
        importer.add_tensor(tensor.name, &tensor, options, &nodes, &mut |_, _| {})?;
    }
    importer.commit(&nodes, n_edges, Direction::Undirected)
}

/// Writes topology and halo of every partition, and syncs nothing: files that were written beside
/// the file system are the commit's to sync. Returns the number of edges.
fn write_lists(
    fs: &dyn FileSystem,
    importer: &Importer,
    nodes: &Relabelling,
) -> Result<u64, ImportError> {
    // In memory where possible: these need not be durable.
    let memory = Path::new("/dev/shm");
    let scratch = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir());
    let scratch = scratch.expect("a folder for what is built");
    let edges = (0..N_NODES).map(|node| [node, (node + 1) % N_NODES]).collect();
    let edges = MemoryEdges::new(edges).expect("edges");
    let (book, uuid) = (&nodes.book, *importer.uuid().as_bytes());
    let built = |kind: &str, part: PartId| scratch.path().join(format!("{kind}-{}", part.0));
    let topology_of = |part| built("topology", part);
    let written = write_topologies(&edges, nodes, Direction::Undirected, uuid, &topology_of)
        .expect("topology");
    let paths: Vec<PathBuf> = book.parts().map(topology_of).collect();
    let topology = Topology::open(&paths, book, uuid).expect("topology");
    write_halos(&topology, book, uuid, &|part| built("halo", part)).expect("halos");
    for part in book.parts() {
        let (topology, halo) = (importer.topology_path(part), importer.halo_path(part));
        for (from, to) in [(topology_of(part), topology), (built("halo", part), halo)] {
            let bytes = std::fs::read(from).expect("what was built");
            let written = fs.create(&to).and_then(|mut file| file.append(&bytes));
            let failed = |source| StoreError::Io { file: to, action: "write", source };
            written.map_err(failed)?;
        }
    }
    Ok(written.n_edges_directed)
}
