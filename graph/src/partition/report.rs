//! What a partitioning is worth: cut, copies of nodes, balance, time and memory.

use serde::Serialize;

use super::PartitionConfig;
use crate::PartId;
use crate::edges::{EdgeError, EdgeStream};

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
    /// Seconds of the partitioner, this measurement not counted.
    pub seconds: f64,
    /// Seconds of each step, in order.
    pub steps: Vec<StepSeconds>,
    /// Largest resident memory of the process so far; 0 where the system does not tell.
    pub peak_rss_bytes: u64,
}

/// How long one step of a partitioner took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepSeconds {
    /// What was done, such as `degrees` or `clustering 1`.
    pub step: String,
    /// Seconds of it.
    pub seconds: f64,
}

/// Measures `assignment` in passes over the edges: one for each 64 partitions, 8 bytes per node.
///
/// Of an edge (u, v), v's owner needs u; when `undirected`, u's owner needs v as well.
pub(super) fn measure(
    edges: &dyn EdgeStream,
    assignment: &[PartId],
    config: &PartitionConfig,
    steps: Vec<StepSeconds>,
) -> Result<PartitionReport, EdgeError> {
    let &PartitionConfig { n_parts, undirected, .. } = config;
    let Counts { n_cut, part_edges, part_halo } = count(edges, assignment, n_parts, undirected)?;
    let mut part_nodes = vec![0u64; usize::from(n_parts)];
    for part in assignment {
        part_nodes[part.index()] += 1;
    }
    let (n_nodes, n_edges) = (assignment.len(), edges.n_edges());
    let copies = n_nodes as u64 + part_halo.iter().sum::<u64>();
    Ok(PartitionReport {
        algorithm: config.algorithm.to_string(),
        parts: n_parts,
        nodes: n_nodes as u32,
        edges: n_edges,
        edge_cut: if n_edges == 0 { 0.0 } else { n_cut as f64 / n_edges as f64 },
        replication_factor: if n_nodes == 0 { 1.0 } else { copies as f64 / n_nodes as f64 },
        node_balance: max_over_mean(&part_nodes),
        edge_balance: max_over_mean(&part_edges),
        part_nodes,
        part_edges,
        part_halo,
        seconds: steps.iter().map(|step| step.seconds).sum(),
        steps,
        peak_rss_bytes: peak_rss_bytes(),
    })
}

/// What passes over the edges count.
struct Counts {
    n_cut: u64,
    part_edges: Vec<u64>,
    part_halo: Vec<u64>,
}

fn count(
    edges: &dyn EdgeStream,
    assignment: &[PartId],
    n_parts: u16,
    undirected: bool,
) -> Result<Counts, EdgeError> {
    let (mut n_cut, mut part_edges) = (0, vec![0; usize::from(n_parts)]);
    let mut part_halo = vec![0; usize::from(n_parts)];
    let mut needed_by = vec![0u64; assignment.len()];
    for (pass, halos) in part_halo.chunks_mut(PARTS_PER_PASS).enumerate() {
        let first = pass * PARTS_PER_PASS;
        let bit = |part: PartId| match part.index().checked_sub(first) {
            Some(i) if i < PARTS_PER_PASS => 1u64 << i,
            _ => 0,
        };
        needed_by.fill(0);
        edges.for_each_chunk(&mut |chunk| {
            for &[u, v] in chunk {
                let (owner_u, owner_v) = (assignment[u as usize], assignment[v as usize]);
                if owner_u != owner_v {
                    needed_by[u as usize] |= bit(owner_v);
                    needed_by[v as usize] |= if undirected { bit(owner_u) } else { 0 };
                }
                if pass == 0 {
                    n_cut += u64::from(owner_u != owner_v);
                    part_edges[owner_v.index()] += 1;
                    part_edges[owner_u.index()] += u64::from(undirected && u != v);
                }
            }
            Ok(())
        })?;
        for &parts in &needed_by {
            let mut left = parts;
            while left != 0 {
                halos[left.trailing_zeros() as usize] += 1;
                left &= left - 1;
            }
        }
    }
    Ok(Counts { n_cut, part_edges, part_halo })
}

/// 1 is perfect balance; nothing to balance is perfect.
fn max_over_mean(values: &[u64]) -> f64 {
    let (max, sum) = (values.iter().max().copied().unwrap_or(0), values.iter().sum::<u64>());
    if sum == 0 { 1.0 } else { max as f64 * values.len() as f64 / sum as f64 }
}

/// The high-water mark of resident memory, from Linux' `/proc`.
fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib * 1024)
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
        let config =
            PartitionConfig { undirected, ..PartitionConfig::new(Algorithm::Hash, n_parts) };
        measure(&edges, &assignment, &config, Vec::new()).unwrap()
    }

    #[test]
    fn a_small_graph_by_hand() {
        // 0 -> 1 stays inside partition 0; 1 -> 2 and 3 -> 0 are cut; 3 is alone with a loop.
        let edges = [[0, 1], [1, 2], [3, 0], [3, 3]];
        let directed = report(&edges, &[0, 0, 1, 2], 3, false);
        assert_eq!(directed.part_halo, [1, 1, 0]);
        assert_eq!(directed.part_edges, [2, 1, 1]);
        assert_eq!((directed.edge_cut, directed.replication_factor), (0.5, 1.5));
        assert_eq!((directed.node_balance, directed.edge_balance), (1.5, 1.5));
        let undirected = report(&edges, &[0, 0, 1, 2], 3, true);
        assert_eq!(undirected.part_halo, [2, 1, 1]);
        assert_eq!(undirected.part_edges, [4, 1, 2]);
        assert!(undirected.peak_rss_bytes > 1 << 20);
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
            prop_assert_eq!(report(&pairs, &parts, 200, undirected).part_halo, expected);
        }
    }
}
