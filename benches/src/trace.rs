//! Which rows the batches of a run ask for.

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use lodestore_graph::edges::NpyEdges;
use lodestore_graph::generate::{GraphRecipe, generate};
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::sampler::{Fanout, Sampler, batch_seed};
use lodestore_graph::topology::{Direction, Topology};
use lodestore_graph::{NodeId, splitmix64};
use lodestore_store::RowIdx;

/// Rows batch by batch, in the order of each batch.
pub struct Trace {
    rows: Vec<RowIdx>,
    /// Where each batch starts, then where the last one ends.
    bounds: Vec<usize>,
}

impl Trace {
    /// Reads a trace of plain arrays: `PREFIX.ids.u32` holds the rows of all batches, and
    /// `PREFIX.off.u64` where each batch starts and the last one ends.
    ///
    /// # Panics
    /// When the files are missing or disagree.
    #[must_use]
    pub fn read(prefix: &Path) -> Self {
        let file = |suffix: &str| -> PathBuf {
            let mut path: OsString = prefix.into();
            path.push(suffix);
            path.into()
        };
        let bytes = |path: PathBuf| fs::read(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let (ids, bounds) = (bytes(file(".ids.u32")), bytes(file(".off.u64")));
        let ids = ids.as_chunks::<4>().0.iter();
        let bounds = bounds.as_chunks::<8>().0.iter();
        let rows: Vec<RowIdx> = ids.map(|id| RowIdx(u32::from_le_bytes(*id))).collect();
        let bounds: Vec<usize> = bounds.map(|at| u64::from_le_bytes(*at) as usize).collect();
        assert!(bounds.is_sorted() && bounds.last() == Some(&rows.len()), "bounds without sense");
        Self { rows, bounds }
    }

    /// Samples batches of `n_roots` nodes of a generated graph, with fan-outs 15, 10, 5. Features
    /// are taken to be in the order of its nodes, which is without locality.
    ///
    /// # Panics
    /// When there is no room for the graph.
    #[must_use]
    pub fn sampled(n_nodes: u32, n_batches: u32, n_roots: u32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let recipe = GraphRecipe { n_nodes, ..GraphRecipe::default() };
        let made = generate(&recipe, dir.path(), &mut |_, _| {}).expect("a graph");
        let edges = NpyEdges::open(&made.edges_path, Some(n_nodes)).expect("edges");
        let nodes = Relabelling::identity(n_nodes);
        let topology =
            Topology::from_edges(&edges, &nodes, Direction::Undirected).expect("a topology");
        let fanouts = [15, 10, 5].map(|n| Fanout::at_most(n).expect("not 0"));
        let mut sampler = Sampler::new(&topology, &fanouts);
        let (mut rows, mut bounds) = (Vec::new(), vec![0]);
        for batch in 0..n_batches {
            let root = |i: u32| {
                NodeId(((u64::from(batch * n_roots + i) * 7919) % u64::from(n_nodes)) as u32)
            };
            let roots: Vec<NodeId> = (0..n_roots).map(root).collect();
            let sampled = sampler.sample(&roots, batch_seed(0, 0, 0, batch));
            rows.extend(sampled.nodes.iter().map(|node| RowIdx(node.0)));
            bounds.push(rows.len());
        }
        Self { rows, bounds }
    }

    /// Returns the number of batches.
    #[must_use]
    pub fn n_batches(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Returns the rows of some batches, one batch after the other.
    #[must_use]
    pub fn rows(&self, batches: Range<usize>) -> &[RowIdx] {
        &self.rows[self.bounds[batches.start]..self.bounds[batches.end]]
    }
}

/// Returns `n` node ids below `n_nodes`, drawn at random and with repetitions, the same for each
/// seed.
#[must_use]
pub fn random_ids(n_nodes: u32, n: usize, seed: u64) -> Vec<u32> {
    let id_of = |i: u64| {
        ((u128::from(splitmix64(seed ^ splitmix64(i))) * u128::from(n_nodes)) >> 64) as u32
    };
    (0..n as u64).map(id_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let prefix = dir.path().join("t.v1");
        let bytes = |ids: &[u32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        fs::write(dir.path().join("t.v1.ids.u32"), bytes(&[7, 0, 9])).expect("written");
        let bounds: Vec<u8> = [0u64, 2, 2, 3].iter().flat_map(|at| at.to_le_bytes()).collect();
        fs::write(dir.path().join("t.v1.off.u64"), bounds).expect("written");
        let trace = Trace::read(&prefix);
        assert_eq!(trace.n_batches(), 3);
        assert_eq!(trace.rows(0..1), [RowIdx(7), RowIdx(0)]);
        assert_eq!(trace.rows(1..3), [RowIdx(9)]);
    }

    #[test]
    fn sampled_batches_are_of_the_graph() {
        let trace = Trace::sampled(2000, 4, 10);
        assert_eq!(trace.n_batches(), 4);
        assert!(trace.rows(0..1).len() > 100);
        assert!(trace.rows(0..4).iter().all(|row| row.0 < 2000));
    }
}
