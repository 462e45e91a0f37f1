//! Quality of a partitioning: cut, copies of nodes, balance, time and memory.

use serde::Serialize;

use super::steps::StepSeconds;
use super::{ClusterCounts, PartitionConfig, VertexCutReport};
use crate::edges::{EdgeError, EdgeStream, for_each_edge};
use crate::ids::PartId;
use crate::process::peak_anonymous_bytes;
use crate::topology::Direction;

/// Partitions whose members are tracked in one pass, one bit each.
const PARTS_PER_PASS: usize = 64;

/// Measures of one partitioning; rates are fractions, sizes bytes, times seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartitionReport {
    /// Name of the algorithm.
    pub algorithm: String,
    /// Number of partitions.
    pub parts: u16,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of edges of the stream.
    pub edges: u64,
    /// Share of the edges whose ends have different owners.
    pub edge_cut: f64,
    /// Mean number of partitions that own a node or have it in their halo (SDT-GNN, Section IV-B).
    pub replication_factor: f64,
    /// Nodes of the largest partition over the mean.
    pub node_balance: f64,
    /// Edges into owned nodes of the fullest partition over the mean.
    pub edge_balance: f64,
    /// Nodes that each partition owns.
    pub part_nodes: Vec<u64>,
    /// Edges into the nodes that each partition owns.
    pub part_edges: Vec<u64>,
    /// Nodes that each partition needs and does not own.
    pub part_halo: Vec<u64>,
    /// Mean of the overlap ratio R(v) over each partition's halo (CaPGNN, Eq. 2): in how many
    /// halos such a node is, this one counted.
    pub part_overlap: Vec<f64>,
    /// Result of a partitioner of edges, before neighbour lists were completed.
    pub vertex_cut: Option<VertexCutReport>,
    /// SPRING's clusters.
    pub clusters: Option<ClusterCounts>,
    /// In which order the edges came.
    pub stream_order: StreamOrder,
    /// Rounds of refinement.
    pub refine_rounds: u32,
    /// Seconds of the partitioner, this measurement not counted.
    pub seconds: f64,
    /// Seconds of each step, in order.
    pub steps: Vec<StepSeconds>,
    /// Most anonymous memory of the process so far; 0 where the system does not tell.
    pub peak_anonymous_bytes: u64,
    /// The same, above what was resident when the partitioner started, this measurement not
    /// counted.
    pub peak_growth_bytes: u64,
}

/// How the edges of a stream follow one another; streaming partitioners depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StreamOrder {
    /// Share of the edges whose source is at least that of the edge before. It is 1 when they are
    /// sorted by source, about 1/2 in random order.
    pub ascending: f64,
    /// Share of the edges with the source of the edge before.
    pub same_source: f64,
    /// Mean distance from a source to the one before, in nodes of the graph: 1/3 in random order.
    pub mean_jump: f64,
}

/// Measures `assignment` in passes over the edges: one for each 64 partitions, or two when there
/// are more than 64; 10 bytes per node.
///
/// For an edge (u, v), v's owner needs u; when it is undirected, u's owner needs v as well.
pub(super) fn measure(
    edges: &dyn EdgeStream,
    assignment: &[PartId],
    config: &PartitionConfig,
    steps: Vec<StepSeconds>,
    peak_growth_bytes: u64,
) -> Result<PartitionReport, EdgeError> {
    let (n_nodes, n_edges) = (assignment.len(), edges.n_edges());
    let halos = Halos::count(edges, assignment, config)?;
    let (n_cut, part_edges, stream_order) = count_edges(edges, assignment, config)?;
    let mut part_nodes = vec![0u64; usize::from(config.n_parts)];
    for part in assignment {
        part_nodes[part.index()] += 1;
    }
    let copies = n_nodes as u64 + halos.sizes.iter().sum::<u64>();
    let overlap = |(&sum, &size): (&u64, &u64)| sum as f64 / size.max(1) as f64;
    Ok(PartitionReport {
        algorithm: config.algorithm.to_string(),
        parts: config.n_parts,
        nodes: n_nodes as u32,
        edges: n_edges,
        edge_cut: if n_edges == 0 { 0.0 } else { n_cut as f64 / n_edges as f64 },
        replication_factor: if n_nodes == 0 { 1.0 } else { copies as f64 / n_nodes as f64 },
        node_balance: max_over_mean(&part_nodes),
        edge_balance: max_over_mean(&part_edges),
        part_nodes,
        part_edges,
        part_overlap: halos.overlaps.iter().zip(&halos.sizes).map(overlap).collect(),
        part_halo: halos.sizes,
        vertex_cut: None,
        clusters: None,
        stream_order,
        refine_rounds: config.refine_rounds,
        seconds: steps.iter().map(|step| step.seconds).sum(),
        steps,
        peak_anonymous_bytes: peak_anonymous_bytes(),
        peak_growth_bytes,
    })
}

/// The halos of all partitions.
struct Halos {
    /// Nodes of each.
    sizes: Vec<u64>,
    /// Sum of R(v) over each.
    overlaps: Vec<u64>,
}

impl Halos {
    fn count(
        edges: &dyn EdgeStream,
        assignment: &[PartId],
        config: &PartitionConfig,
    ) -> Result<Self, EdgeError> {
        let n_parts = usize::from(config.n_parts);
        let mut halos = Self { sizes: vec![0; n_parts], overlaps: vec![0; n_parts] };
        let mut needed_by = vec![0u64; assignment.len()];
        let mut overlaps = vec![0u16; assignment.len()];
        for first in (0..n_parts).step_by(PARTS_PER_PASS) {
            need(edges, assignment, config.direction, first, &mut needed_by)?;
            for (overlap, parts) in overlaps.iter_mut().zip(&needed_by) {
                *overlap += parts.count_ones() as u16;
            }
        }
        for first in (0..n_parts).step_by(PARTS_PER_PASS) {
            if n_parts > PARTS_PER_PASS {
                need(edges, assignment, config.direction, first, &mut needed_by)?;
            }
            for (&overlap, &parts) in overlaps.iter().zip(&needed_by) {
                let mut left = parts;
                while left != 0 {
                    let part = first + left.trailing_zeros() as usize;
                    halos.sizes[part] += 1;
                    halos.overlaps[part] += u64::from(overlap);
                    left &= left - 1;
                }
            }
        }
        Ok(halos)
    }
}

/// Notes in `needed_by` which of the 64 partitions from `first` have each node in their halo, a bit
/// each.
fn need(
    edges: &dyn EdgeStream,
    assignment: &[PartId],
    direction: Direction,
    first: usize,
    needed_by: &mut [u64],
) -> Result<(), EdgeError> {
    let bit = |part: PartId| match part.index().checked_sub(first) {
        Some(i) if i < PARTS_PER_PASS => 1u64 << i,
        _ => 0,
    };
    needed_by.fill(0);
    let undirected = direction == Direction::Undirected;
    for_each_edge(edges, |u, v| {
        let (owner_u, owner_v) = (assignment[u as usize], assignment[v as usize]);
        if owner_u != owner_v {
            needed_by[u as usize] |= bit(owner_v);
            needed_by[v as usize] |= if undirected { bit(owner_u) } else { 0 };
        }
    })
}

/// Counts the edges that are cut and those into each partition's nodes, and measures the order of
/// all.
fn count_edges(
    edges: &dyn EdgeStream,
    assignment: &[PartId],
    config: &PartitionConfig,
) -> Result<(u64, Vec<u64>, StreamOrder), EdgeError> {
    let (mut n_cut, mut part_edges) = (0, vec![0; usize::from(config.n_parts)]);
    let (mut n_ascending, mut n_same, mut jumps) = (0u64, 0u64, 0u64);
    let (mut before, undirected) = (None, config.direction == Direction::Undirected);
    edges.for_each_chunk(&mut |chunk| {
        for &[u, v] in chunk {
            let (owner_u, owner_v) = (assignment[u as usize], assignment[v as usize]);
            n_cut += u64::from(owner_u != owner_v);
            part_edges[owner_v.index()] += 1;
            part_edges[owner_u.index()] += u64::from(undirected && u != v);
            let source = before.replace(u).unwrap_or(u);
            n_ascending += u64::from(source <= u);
            n_same += u64::from(source == u);
            jumps += u64::from(source.abs_diff(u));
        }
        Ok(())
    })?;
    let n_edges = edges.n_edges().max(1) as f64;
    let order = StreamOrder {
        ascending: n_ascending as f64 / n_edges,
        same_source: n_same as f64 / n_edges,
        mean_jump: jumps as f64 / n_edges / assignment.len().max(1) as f64,
    };
    Ok((n_cut, part_edges, order))
}

/// Returns the largest value over the mean, 1 where there is nothing to balance. 1 is perfect
/// balance.
fn max_over_mean(values: &[u64]) -> f64 {
    let (max, sum) = (values.iter().max().copied().unwrap_or(0), values.iter().sum::<u64>());
    if sum == 0 { 1.0 } else { max as f64 * values.len() as f64 / sum as f64 }
}

#[cfg(test)]
mod tests {
    use super::super::Algorithm;
    use super::*;
    use crate::edges::MemoryEdges;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn report(
        pairs: &[[u32; 2]],
        parts: &[u16],
        n_parts: u16,
        undirected: bool,
    ) -> PartitionReport {
        let edges = MemoryEdges::new(pairs.to_vec()).unwrap();
        let assignment: Vec<PartId> = parts.iter().map(|&p| PartId(p)).collect();
        let config = PartitionConfig::new(Algorithm::Hash, n_parts);
        let config = PartitionConfig { direction: undirected.into(), ..config };
        measure(&edges, &assignment, &config, Vec::new(), 0).unwrap()
    }

    #[test]
    fn a_small_graph_by_hand() {
        // 0 -> 1 stays inside partition 0; 1 -> 2 and 3 -> 0 are cut; 3 is alone with a loop.
        let edges = [[0, 1], [1, 2], [3, 0], [3, 3]];
        let directed = report(&edges, &[0, 0, 1, 2], 3, false);
        assert_eq!(directed.part_halo, [1, 1, 0]);
        assert_eq!(directed.part_overlap, [1.0, 1.0, 0.0]);
        // Sources 0, 1, 3, 3 of four nodes.
        let order = StreamOrder { ascending: 1.0, same_source: 0.5, mean_jump: 3.0 / 16.0 };
        assert_eq!(directed.stream_order, order);
        assert_eq!(directed.part_edges, [2, 1, 1]);
        assert_eq!((directed.edge_cut, directed.replication_factor), (0.5, 1.5));
        assert_eq!((directed.node_balance, directed.edge_balance), (1.5, 1.5));
        let undirected = report(&edges, &[0, 0, 1, 2], 3, true);
        assert_eq!(undirected.part_halo, [2, 1, 1]);
        assert_eq!(undirected.part_edges, [4, 1, 2]);
        assert!(undirected.peak_anonymous_bytes > 1 << 20);
    }

    #[test]
    fn nothing_is_in_balance() {
        let empty = report(&[], &[], 4, true);
        assert_eq!((empty.edge_cut, empty.replication_factor), (0.0, 1.0));
        assert_eq!((empty.node_balance, empty.edge_balance), (1.0, 1.0));
    }

    proptest! {
        #[test]
        fn halos_agree_with_sets_for_more_parts_than_one_pass_holds(
            ends in prop::collection::vec((0u32..40, 0u32..40), 0..80),
            parts in prop::collection::vec(0u16..200, 40),
            undirected: bool,
        ) {
            let pairs: Vec<[u32; 2]> = ends.iter().map(|&(u, v)| [u, v]).collect();
            let mut halos = vec![BTreeSet::new(); 200];
            let mut need = |owned: u32, needed: u32| {
                if parts[owned as usize] != parts[needed as usize] {
                    halos[usize::from(parts[owned as usize])].insert(needed);
                }
            };
            for &[u, v] in &pairs {
                need(v, u);
                if undirected {
                    need(u, v);
                }
            }
            let expected: Vec<u64> = halos.iter().map(|halo| halo.len() as u64).collect();
            let report = report(&pairs, &parts, 200, undirected);
            prop_assert_eq!(report.part_halo, expected);
            for (halo, overlap) in halos.iter().zip(report.part_overlap) {
                let in_halos = |node| halos.iter().filter(|halo| halo.contains(node)).count();
                let sum: usize = halo.iter().map(in_halos).sum();
                prop_assert_eq!(overlap, sum as f64 / halo.len().max(1) as f64);
            }
        }
    }
}
