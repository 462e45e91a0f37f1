//! Figs. 4 and 6, claims C1 and C8: how large halos are, how many have the same nodes, and what
//! they move in an epoch.

use std::ops::ControlFlow;

use anyhow::Result;
use lodestore_graph::topology::Topology;
use lodestore_graph::{NodeId, PartId};
use lodestore_trainer::{Progress, TrainConfig, TrainGraph, train};
use serde::Serialize;

use super::ways::CapWay;
use crate::reproduce::cut::{Cut, Source, Splits};

/// Halos of some hops of all partitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct HaloFigures {
    pub(super) partitioner: &'static str,
    pub(super) parts: u16,
    pub(super) hops: u32,
    /// Nodes in halos, once for each halo, over all nodes.
    pub(super) per_node: f64,
    /// Share of the nodes in halos that several have.
    pub(super) shared: f64,
    /// Halos that have a node which is in one: the mean overlap ratio (Eq. 2).
    pub(super) overlap: f64,
}

/// Returns the halos of 1 to `n_hops` hops of the partitions of `graph`.
pub(super) fn halos_of(
    graph: &TrainGraph<'_>,
    partitioner: &'static str,
    n_hops: u32,
) -> Vec<HaloFigures> {
    let n_nodes = graph.book.n_nodes() as usize;
    let overlap = overlaps(graph, n_hops);
    let parts = graph.book.n_parts();
    let figures = |(hops, overlap): (u32, Vec<u16>)| {
        let n_replicas: u64 = overlap.iter().map(|&n| u64::from(n)).sum();
        let n_in = overlap.iter().filter(|&&n| n > 0).count().max(1) as f64;
        let n_shared = overlap.iter().filter(|&&n| n > 1).count() as f64;
        HaloFigures {
            partitioner,
            parts,
            hops,
            per_node: n_replicas as f64 / n_nodes.max(1) as f64,
            shared: n_shared / n_in,
            overlap: n_replicas as f64 / n_in,
        }
    };
    (1..).zip(overlap).map(figures).collect()
}

/// Returns the overlap ratio of each node: in how many partitions it is a halo node (Eq. 2).
pub(super) fn overlap_ratios(graph: &TrainGraph<'_>) -> Vec<u16> {
    overlaps(graph, 1).swap_remove(0)
}

/// Returns for 1 to `n_hops` hops the number of halos that each node is in.
fn overlaps(graph: &TrainGraph<'_>, n_hops: u32) -> Vec<Vec<u16>> {
    let mut overlap = vec![vec![0u16; graph.book.n_nodes() as usize]; n_hops as usize];
    for part in graph.book.parts() {
        let first_hop = first_hops(graph, part, n_hops);
        for (hops, overlap) in (1..).zip(&mut overlap) {
            let is_in = |hop: u32| (1..=hops).contains(&hop);
            let of_nodes = overlap.iter_mut().zip(&first_hop);
            of_nodes.filter(|(_, hop)| is_in(**hop)).for_each(|(overlap, _)| *overlap += 1);
        }
    }
    overlap
}

/// Returns for each node the hop in which `part` reaches it first. It is 0 for the part's own, and
/// `u32::MAX` for those that it does not reach in `n_hops`.
fn first_hops(graph: &TrainGraph<'_>, part: PartId, n_hops: u32) -> Vec<u32> {
    let topology: &Topology = graph.topology;
    let mut first_hop = vec![u32::MAX; graph.book.n_nodes() as usize];
    let mut reached: Vec<u32> = graph.book.range(part).collect();
    reached.iter().for_each(|&node| first_hop[node as usize] = 0);
    for hop in 1..=n_hops {
        let mut next = Vec::new();
        for &node in &reached {
            for &source in topology.in_neighbours(NodeId(node)) {
                let first = &mut first_hop[source as usize];
                if *first == u32::MAX {
                    *first = hop;
                    next.push(source);
                }
            }
        }
        reached = next;
    }
    first_hop
}

/// Bytes of the halos of all partitions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Moved {
    pub(super) parts: u16,
    pub(super) halo_rows: u64,
    /// Totals of an epoch: inputs, rows between layers and gradients of these, counted by their
    /// widths: the traffic of a trainer without any cache.
    pub(super) resent_bytes: u64,
    /// The same without the inputs, which never change.
    pub(super) kept_bytes: u64,
    /// Bytes of the exact way in an epoch, and once, in the first one.
    pub(super) exact_bytes: u64,
    pub(super) input_bytes: u64,
}

/// Trains two epochs of the exact way on `cut`.
pub(super) fn moved(source: &Source, cut: &Cut, usual: &TrainConfig) -> Result<Moved> {
    let parts = cut.graph().book.n_parts();
    let config = TrainConfig {
        workers: parts.into(),
        epochs: 2,
        evaluate_every: 0,
        measure_test: false,
        ..CapWay::Exact.settings(usual, &[])
    };
    let sources = cut.sources(source, config.workers, Splits::Random);
    let quiet = &mut |_: &Progress<'_>| ControlFlow::Continue(());
    let epochs = train(&config, &cut.graph(), &sources, quiet)?.epochs;
    let halo_rows = epochs[0].halo_rows.unwrap_or(0);
    let n_hidden = 2 * (usual.fanouts.len() as u64 - 1) * usual.hidden as u64;
    let kept_bytes = 4 * halo_rows * n_hidden;
    let sent = |epoch: usize| {
        epochs[epoch].embedding_bytes.unwrap_or(0) + epochs[epoch].gradient_bytes.unwrap_or(0)
    };
    Ok(Moved {
        parts,
        halo_rows,
        resent_bytes: kept_bytes + halo_rows * source.row_bytes,
        kept_bytes,
        exact_bytes: sent(1),
        input_bytes: epochs[0].input_bytes.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use lodestore_graph::PartitionBook;
    use lodestore_trainer::report::RowsFrom;

    use super::*;

    #[test]
    fn halos_of_a_path_grow_by_a_node_at_each_end_and_hop() {
        // 0 - 1 - 2 - 3 - 4 - 5 in three partitions of two.
        let lists = vec![1, 0, 2, 1, 3, 2, 4, 3, 5, 4];
        let topology = Topology::from_lists(vec![0, 1, 3, 5, 7, 9, 10], lists).unwrap();
        let book = PartitionBook::from_counts(&[2, 2, 2]).unwrap();
        let (topology, book) = (&topology, &book);
        let graph = TrainGraph { topology, book, uuid: [0; 16], rows_from: RowsFrom::Embedded };
        let found = halos_of(&graph, "x", 2);
        // One hop: {2}, {1, 4}, {3}. Two: {2, 3}, {0, 1, 4, 5}, {2, 3}.
        let figures = |hops, n: f64, shared, overlap| HaloFigures {
            partitioner: "x",
            parts: 3,
            hops,
            per_node: n / 6.0,
            shared,
            overlap,
        };
        assert_eq!(found, [figures(1, 4.0, 0.0, 1.0), figures(2, 8.0, 2.0 / 6.0, 8.0 / 6.0)]);
    }
}
