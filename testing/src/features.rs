//! A graph of one feature tensor whose every byte is known, for benches and for tests of serving.

use std::path::{Path, PathBuf};

use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::Direction;
use lodestore_graph::{NodeId, PartitionBook};
use lodestore_store::codec::CodecChoice;
use lodestore_store::import::TensorOptions;
use lodestore_store::source::{SourceError, TensorSource};
use lodestore_store::{Dtype, Importer};

/// Returns the f32 row of `node`, as bytes: column `c` holds `node + c / 4096`.
#[must_use]
pub fn row_of(node: NodeId, width: u32) -> Vec<u8> {
    (0..width).flat_map(|column| element(node.0, column).to_le_bytes()).collect()
}

/// Imports a graph without edges to `dir/graph`: `n_nodes` nodes in `n_parts` even partitions, and
/// the tensor `feat` of `width` f32, stored raw. External ids are node ids.
///
/// # Panics
/// When the import fails.
#[must_use]
pub fn feature_graph(dir: &Path, n_nodes: u32, width: u32, n_parts: u16) -> PathBuf {
    let out = dir.join("graph");
    import_features(&out, &KnownRows { n_nodes, width }, n_nodes, n_parts);
    out
}

/// Imports `rows` as the tensor `feat` to `out`, which must not exist.
pub fn import_features(out: &Path, rows: &dyn TensorSource, n_nodes: u32, n_parts: u16) {
    let bound = |part: u16| (u64::from(n_nodes) * u64::from(part) / u64::from(n_parts)) as u32;
    let book = PartitionBook::new((0..=n_parts).map(bound).collect()).expect("even bounds");
    let nodes = Relabelling { book, ..Relabelling::identity(n_nodes) };
    let options = TensorOptions { codec: CodecChoice::Raw, ..TensorOptions::default() };
    let mut importer = Importer::begin(out).expect("a free place");
    importer.add_tensor("feat", rows, options, &nodes, &mut |_, _| {}).expect("rows are written");
    importer.commit(&nodes, 0, Direction::Directed).expect("the graph is published");
}

/// Returns `n` node ids below `n_nodes` in an order without locality, repeatable and, up to
/// `n_nodes` of them, distinct.
#[must_use]
pub fn shuffled_ids(n_nodes: u32, n: usize) -> Vec<NodeId> {
    // A step near the golden section of the range that shares no factor with it.
    let mut step = (f64::from(n_nodes) * 0.618) as u32 | 1;
    while n_nodes > 1 && gcd(step, n_nodes) > 1 {
        step += 2;
    }
    let step_of = |i: usize| (i as u64 * u64::from(step) % u64::from(n_nodes)) as u32;
    (0..n).map(|i| NodeId(step_of(i))).collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn element(node: u32, column: u32) -> f32 {
    node as f32 + column as f32 / 4096.0
}

struct KnownRows {
    n_nodes: u32,
    width: u32,
}

impl TensorSource for KnownRows {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn width(&self) -> u64 {
        self.width.into()
    }

    fn n_rows(&self) -> u64 {
        self.n_nodes.into()
    }

    fn path(&self) -> &Path {
        Path::new("known rows")
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(self.width as usize * 4)) {
            for (column, out) in (0..).zip(out.chunks_exact_mut(4)) {
                out.copy_from_slice(&element(row, column).to_le_bytes());
            }
        }
        Ok(())
    }
}
