//! The small graph of these tests: what is in it, and its import.

use std::path::Path;
use std::sync::Arc;

use lodestore_graph::{PartitionBook, mix};
use lodestore_store::{
    CodecChoice, Device, Dtype, Graph, ImportError, Importer, NanPolicy, SourceError,
    TensorOptions, TensorSource,
};

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
        bytes[i] = mix(i as u64) as u8;
        i += 1;
    }
    bytes
};

impl Rows {
    /// The row that put number `seq` gives a node: its first byte tells which put, the others are
    /// those of no other node or put. Put 0 is the import.
    pub(crate) fn row(self, node: u32, seq: u32) -> (u8, &'static [u8]) {
        let start = (node * 64 + seq) as usize;
        ((node * 37 + seq) as u8, &NOISE[start..start + self.row_bytes - 1])
    }

    /// The put that a row of a node is of; `None` where it is of none, or not whole.
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
