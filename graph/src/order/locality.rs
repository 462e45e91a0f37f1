//! How many rows come out of each page that is read, on sampled batches.

use crate::bijection::Bijection;
use crate::book::PartitionBook;
use crate::ids::NodeId;
use crate::sampler::{Fanout, Sampler, batch_seed};
use crate::topology::Topology;

/// Bytes of a page: what a direct read takes at the least, and what a checksum covers.
const PAGE_BYTES: u64 = 4096;
/// Roots of a batch.
const BATCH_ROOTS: usize = 1024;
/// Neighbours drawn at each hop.
const FANOUTS: [u32; 2] = [10, 25];
/// Batches that one read plan may span.
pub const WINDOW_BATCHES: usize = 8;
/// Windows of a trace.
const MAX_WINDOWS: usize = 4;
/// Rows of a trace after which no further window is sampled; they bound its memory and time.
const ENOUGH_ROWS: usize = 1 << 21;
/// Seed of every trace.
const SEED: u64 = 0x10de;

/// Batches as training would draw them.
///
/// Each has 1024 roots, all different, from all nodes that have in-edges, and the neighbours of two
/// hops with fan-out 10, 25. There are at most 32 batches; large ones end the trace after fewer
/// windows of 8.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The distinct nodes of each batch.
    batches: Vec<Vec<NodeId>>,
}

/// Distinct rows read for each distinct page that holds a part of them; 0 where there are none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowsPerPage {
    /// When each batch is read on its own.
    pub batch: f64,
    /// When 8 consecutive batches are read together.
    pub window: f64,
}

impl Trace {
    /// Samples a trace; the same topology results in the same trace.
    #[must_use]
    pub fn sample(topology: &Topology) -> Self {
        let n_nodes = topology.n_nodes();
        // A table-free shuffle: roots cost no memory of the order of the nodes.
        let shuffle = Bijection::new(u64::from(n_nodes), SEED);
        let nodes = (0..n_nodes).map(|i| NodeId(shuffle.forward(i.into()) as u32));
        let mut roots = nodes.filter(|&root| topology.in_degree(root) > 0);
        let fanouts = FANOUTS.map(|n| Fanout::at_most(n).unwrap_or(Fanout::All));
        let mut sampler = Sampler::new(topology, &fanouts);
        let (mut batches, mut n_rows) = (Vec::new(), 0);
        while batches.len() < MAX_WINDOWS * WINDOW_BATCHES {
            let roots: Vec<NodeId> = roots.by_ref().take(BATCH_ROOTS).collect();
            let window_is_full = batches.len().is_multiple_of(WINDOW_BATCHES);
            if roots.is_empty() || (window_is_full && n_rows >= ENOUGH_ROWS) {
                break;
            }
            let seed = batch_seed(SEED, 0, 0, batches.len() as u32);
            let nodes = sampler.sample(&roots, seed).nodes;
            n_rows += nodes.len();
            batches.push(nodes);
        }
        Self { batches }
    }

    /// Returns the rows per page where `row_of` holds the place of each node among the rows of all
    /// partitions of `book`. A row has `row_bytes` bytes, and a partition's rows are contiguous
    /// from a page on.
    #[must_use]
    pub fn rows_per_page(
        &self,
        book: &PartitionBook,
        row_bytes: u64,
        row_of: &dyn Fn(NodeId) -> u32,
    ) -> RowsPerPage {
        let mut rows = Vec::new();
        let mut per_page = |n_together: usize| {
            let (mut n_rows, mut n_pages) = (0, 0);
            for batches in self.batches.chunks(n_together) {
                rows.clear();
                rows.extend(batches.iter().flatten().map(|&node| row_of(node)));
                rows.sort_unstable();
                rows.dedup();
                n_rows += rows.len() as u64;
                n_pages += pages_of(&rows, book, row_bytes);
            }
            if n_pages == 0 { 0.0 } else { n_rows as f64 / n_pages as f64 }
        };
        RowsPerPage { batch: per_page(1), window: per_page(WINDOW_BATCHES) }
    }
}

/// Returns distinct pages that hold a byte of these ascending rows.
fn pages_of(rows: &[u32], book: &PartitionBook, row_bytes: u64) -> u64 {
    let (mut n_pages, mut left) = (0, rows);
    for part in book.parts() {
        let range = book.range(part);
        let (own, others) = left.split_at(left.partition_point(|&row| row < range.end));
        left = others;
        // Rows ascend, so a page seen before is the last one seen.
        let mut unseen = 0;
        for row in own {
            let start = u64::from(row - range.start).saturating_mul(row_bytes);
            let end = start.saturating_add(row_bytes);
            let (first, end) = ((start / PAGE_BYTES).max(unseen), end.div_ceil(PAGE_BYTES));
            n_pages += end.saturating_sub(first);
            unseen = unseen.max(end);
        }
    }
    n_pages
}

#[cfg(test)]
mod tests {
    use super::super::tests::topology_of;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn ring(n_nodes: u32) -> Topology {
        topology_of(&(0..n_nodes).map(|v| [v, (v + 1) % n_nodes]).collect::<Vec<_>>(), n_nodes)
    }

    #[test]
    fn a_trace_is_repeated_and_takes_each_root_once() {
        let topology = ring(5000);
        let trace = Trace::sample(&topology);
        assert_eq!(trace.batches, Trace::sample(&topology).batches);
        let roots = trace.batches.iter().flat_map(|nodes| &nodes[..nodes.len().min(BATCH_ROOTS)]);
        assert_eq!(trace.batches.len(), 5);
        assert!(roots.copied().collect::<BTreeSet<_>>().len() >= 4 * BATCH_ROOTS);
        assert_eq!(Trace::sample(&ring(40_000)).batches.len(), 32);
    }

    #[test]
    fn nodes_without_edges_are_no_roots() {
        let topology = topology_of(&[[1, 3]], 9);
        let trace = Trace::sample(&topology);
        assert_eq!(trace.batches.len(), 1);
        assert_eq!(trace.batches[0].iter().collect::<BTreeSet<_>>().len(), 2);
        for nothing in [topology_of(&[], 0), topology_of(&[], 3)] {
            let trace = Trace::sample(&nothing);
            let none = trace.rows_per_page(&PartitionBook::single(3), 400, &|node| node.0);
            assert_eq!(none, RowsPerPage { batch: 0.0, window: 0.0 });
        }
    }

    #[test]
    fn rows_of_a_page_are_counted_once_per_batch_or_window() {
        let batches = vec![vec![NodeId(0), NodeId(1)], vec![NodeId(1), NodeId(7)]];
        let found =
            Trace { batches }.rows_per_page(&PartitionBook::single(8), 1024, &|node| node.0);
        assert_eq!(found, RowsPerPage { batch: 4.0 / 3.0, window: 3.0 / 2.0 });
    }

    proptest! {
        #[test]
        fn pages_agree_with_a_set(
            counts in prop::collection::vec(0u32..40, 1..4),
            row_bytes in prop_oneof![1u64..6000, Just(4096), Just(8192), Just(400)],
            step in 1usize..5,
        ) {
            let book = PartitionBook::from_counts(&counts).unwrap();
            let rows: Vec<u32> = (0..book.n_nodes()).step_by(step).collect();
            let mut pages = BTreeSet::new();
            for &row in &rows {
                let (part, row) = book.locate(NodeId(row)).unwrap();
                let start = u64::from(row) * row_bytes;
                pages.extend((start..start + row_bytes).map(|byte| (part.0, byte / PAGE_BYTES)));
            }
            prop_assert_eq!(pages_of(&rows, &book, row_bytes), pages.len() as u64);
        }
    }
}
