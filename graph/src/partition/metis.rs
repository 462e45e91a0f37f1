//! METIS (Karypis and Kumar, SIAM J. Sci. Comput. 20, 1998), for comparison: k-way, by edge cut.
//!
//! Unlike the streaming partitioners it holds the whole graph, with both directions of every edge,
//! and several copies while it contracts it. That takes 85 to 150 bytes per edge on the graphs
//! measured. Directions are lost, loops and repeated edges are dropped. Nodes and twice the edges
//! must stay below 2³¹.

use std::sync::Mutex;

use metis::{Graph, Idx, option};

use super::refine::both_directions;
use super::{PartitionError, REFINED_BALANCE, Steps};
use crate::edges::EdgeStream;
use crate::fork::PerProcess;
use crate::ids::PartId;
use crate::lock::IgnorePoison;

/// METIS draws from the one random number generator of the process: two concurrent runs would
/// disturb each other, and neither could be repeated.
static RUNNING: PerProcess<Mutex<()>> = PerProcess::new();

/// Returns the owner of each node; partitions stay within `max_balance` as far as METIS manages.
pub(super) fn by_metis(
    edges: &dyn EdgeStream,
    n_nodes: u32,
    n_parts: u16,
    max_balance: Option<f64>,
    steps: &mut Steps,
) -> Result<Vec<PartId>, PartitionError> {
    let limit = |what: &str, found: u64| PartitionError::Metis {
        message: format!("it counts to 2^31 - 1, but {what}: {found}"),
    };
    if Idx::try_from(n_nodes).is_err() {
        return Err(limit("the graph has more nodes", n_nodes.into()));
    }
    if n_parts == 1 || n_nodes == 0 {
        return Ok(vec![PartId(0); n_nodes as usize]);
    }
    // It complains, on standard output, when there is less than a node for each partition.
    if n_nodes <= u32::from(n_parts) {
        return Ok((0..n_nodes).map(|node| PartId(node as u16)).collect());
    }
    if edges.n_edges() > i32::MAX as u64 {
        return Err(limit("edges are more", edges.n_edges()));
    }
    let (offsets, mut neighbours) = both_directions(edges, n_nodes)?;
    let (mut starts, mut lists) = (vec![0 as Idx], Vec::with_capacity(neighbours.len()));
    for bounds in offsets.windows(2) {
        let list = &mut neighbours[bounds[0] as usize..bounds[1] as usize];
        list.sort_unstable();
        let first = lists.len();
        for &neighbour in &*list {
            let neighbour = neighbour as Idx;
            if lists[first..].last() != Some(&neighbour) {
                lists.push(neighbour);
            }
        }
        let end = Idx::try_from(lists.len());
        starts.push(end.map_err(|_| limit("ends of edges are more", lists.len() as u64))?);
    }
    drop((offsets, neighbours));
    steps.done("lists", 2);
    let excess = (max_balance.unwrap_or(REFINED_BALANCE) - 1.0).clamp(0.001, 1000.0) * 1000.0;
    let mut parts = vec![0 as Idx; n_nodes as usize];
    let running = RUNNING.get_or(|_| Mutex::default());
    let _alone = running.lock().ignore_poison();
    Graph::new(1, n_parts.into(), &starts, &lists)
        .map_err(|error| PartitionError::Metis { message: error.to_string() })?
        .set_option(option::UFactor(excess as Idx))
        .set_option(option::Seed(1))
        .part_kway(&mut parts)
        .map_err(|error| PartitionError::Metis { message: error.to_string() })?;
    Ok(parts.into_iter().map(|part| PartId(part as u16)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::MemoryEdges;
    use crate::partition::{Algorithm, PartitionConfig, partition};
    use crate::topology::Direction;

    fn report(pairs: Vec<[u32; 2]>, n_parts: u16) -> crate::partition::PartitionReport {
        let edges = MemoryEdges::new(pairs).unwrap();
        let config = PartitionConfig::new(Algorithm::Metis, n_parts);
        let config = PartitionConfig { direction: Direction::Undirected, ..config };
        partition(&edges, edges.n_nodes(), &config).unwrap().report
    }

    #[test]
    fn cliques_stay_whole() {
        // Four cliques of 25 nodes, their ids interleaved, in a ring of four edges.
        let clique =
            |c: u32| (0..25u32).flat_map(move |u| (0..u).map(move |v| [4 * u + c, 4 * v + c]));
        let ring = (0..4).map(|c| [c, (c + 1) % 4]);
        let found = report((0..4).flat_map(clique).chain(ring).collect(), 4);
        assert_eq!(found.part_nodes, [25; 4]);
        assert_eq!(found.edge_cut, 4.0 / f64::from(4 * 300 + 4));
    }

    #[test]
    fn directions_loops_and_repeats_change_nothing() {
        let grid = |i: u32| [[i, i + 1], [i, i + 20]];
        let pairs: Vec<[u32; 2]> = (0..380).filter(|i| i % 20 < 19).flat_map(grid).collect();
        let turned = pairs.iter().map(|&[u, v]| [v, u]);
        let more = turned.chain((0..399).map(|u| [u, u])).chain(pairs.clone()).collect();
        let (once, more) = (report(pairs, 5), report(more, 5));
        assert_eq!((once.part_nodes, once.part_halo), (more.part_nodes, more.part_halo));
        assert!(once.node_balance <= 1.05, "{}", once.node_balance);
    }
}
