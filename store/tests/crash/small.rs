//! The small graph of these tests: what is in it, and its import.

use std::path::Path;
use std::sync::Arc;

use lodestore_graph::PartitionBook;
use lodestore_store::{
    CodecChoice, Device, Dtype, Graph, ImportError, Importer, NanPolicy, SourceError,
    TensorOptions, TensorSource,
};

/// Where the graph is; its parent is there before.
pub(crate) const OUT: &str = "graphs/small";

/// Nodes of the graph.
pub(crate) const N_NODES: u32 = 12;

/// The first partition's rows fill more than a page, the second has none.
pub(crate) const BOUNDS: [u32; 4] = [0, 7, 7, N_NODES];

/// A tensor whose every byte follows from node, put and column.
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

impl Rows {
    /// The row that put number `seq` gives a node; put 0 is the import.
    pub(crate) fn row(self, node: u32, seq: u32) -> impl Iterator<Item = u8> {
        (0..self.row_bytes).map(move |column| self.byte(node, seq, column))
    }

    /// One byte of a row; in each column it differs from put to put.
    pub(crate) fn byte(self, node: u32, seq: u32, column: usize) -> u8 {
        (node * 37 + column as u32 * 11 + self.row_bytes as u32 + seq) as u8
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
        let bytes = rows.iter().flat_map(|&external| self.row(node_of(external), 0));
        out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = byte);
        Ok(())
    }
}

/// The input's id of each node.
pub(crate) fn external_of() -> Vec<u32> {
    (0..N_NODES).rev().collect()
}

/// Imports the graph.
pub(crate) fn import(device: &Arc<dyn Device>) -> Result<Graph, ImportError> {
    let book = PartitionBook::new(BOUNDS.to_vec()).expect("bounds that ascend");
    let (order, mut importer) =
        (external_of(), Importer::begin_on(Arc::clone(device), Path::new(OUT))?);
    for part in book.parts() {
        importer.part_dir(part)?;
    }
    for tensor in TENSORS {
        let options = TensorOptions { nan: NanPolicy::Refuse, codec: tensor.codec };
        importer.add_tensor(tensor.name, &tensor, options, &order, &book, &mut |_, _| {})?;
    }
    importer.commit(&order, &book, 0, false)
}
