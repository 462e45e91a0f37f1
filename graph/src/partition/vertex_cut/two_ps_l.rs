//! 2PS-L, two phases and a score of two partitions (Mayer, Orujzade and Jacobsen, ICDE 2022).
//!
//! 1. Clusters: each edge may move one of its ends into the cluster of the other. It is the end
//!    whose cluster has less volume (sum of degrees) without it. Both clusters must be of 2|E| / p
//!    at most, and the one that grows must stay so. Clusters, largest volume first, go to the
//!    partition of the least volume.
//! 2. Edges whose ends' clusters share a partition go there.
//! 3. Each other edge goes to the better one of its ends' partitions. An end u with a copy there
//!    scores 2 − d(u) / (d(u) + d(v)). An end whose cluster is there scores the share of its
//!    cluster in the volume of both.
//!
//! A partition takes 1.05 · |E| / p edges at most. Past that an edge goes to the hash of its richer
//! end, and if that is full to the emptiest partition.

use std::cmp::Reverse;

use super::state::State;
use crate::edges::{EdgeError, EdgeStream, for_each_edge};
use crate::huge::HugeVec;
use crate::ids::PartId;
use crate::partition::Steps;
use crate::partition::hash::hashed;
use crate::partition::loads::Loads;
use crate::partition::spring::{Mover, Node, UNSEEN, Volumes, clustering_pass};

/// α of the paper: edges of a partition over the mean.
const BALANCE: f64 = 1.05;

/// Places all edges.
pub(super) fn place(
    edges: &dyn EdgeStream,
    mut nodes: HugeVec<Node>,
    state: &mut State,
    steps: &mut Steps,
) -> Result<(), EdgeError> {
    let n_edges = nodes.iter().map(|node| u64::from(node.degree)).sum::<u64>() / 2;
    let max_volume = 2 * n_edges / u64::from(state.n_parts());
    let mut volumes = Volumes::new(nodes.len());
    clustering_pass(edges, &mut nodes, &mut volumes, |both, degrees| {
        mover(both, degrees, max_volume)
    })?;
    let parts = pack(volumes.made(), state.n_parts());
    steps.done("clustering", 1);

    let mean = n_edges as f64 / f64::from(state.n_parts());
    let capacity = ((BALANCE * mean) as u64).max(mean.ceil() as u64);
    let mut placer =
        Placer { nodes: &nodes, volumes: volumes.made(), parts: &parts, capacity, state };
    for together in [true, false] {
        for_each_edge(edges, |u, v| {
            let (part_u, part_v) = (placer.part(u), placer.part(v));
            if (part_u == part_v) == together {
                let part = if together { part_u } else { placer.better(u, v, part_u, part_v) };
                placer.place(u, v, part);
            }
        })?;
        if together {
            steps.done("edges together", 1);
        }
    }
    Ok(())
}

/// Decides the end that moves along an edge, by the volumes of the ends' clusters and by their
/// degrees. It follows the paper's Algorithm 1; of equals the first end moves, as in its authors'
/// program.
fn mover(volumes: [u64; 2], degrees: [u32; 2], max_volume: u64) -> Option<Mover> {
    let [degree_u, degree_v] = degrees.map(u64::from);
    let [volume_u, volume_v] = volumes;
    let (mover, grown) = if volume_u.saturating_sub(degree_u) <= volume_v.saturating_sub(degree_v) {
        (Mover::First, volume_v + degree_u)
    } else {
        (Mover::Second, volume_u + degree_v)
    };
    (volume_u <= max_volume && volume_v <= max_volume && grown <= max_volume).then_some(mover)
}

/// Returns the partition of each cluster: largest volume first, to the least volume.
fn pack(volumes: &[u64], n_parts: u16) -> Vec<PartId> {
    let mut order: Vec<u32> = (0..volumes.len() as u32).collect();
    order.sort_unstable_by_key(|&cluster| (Reverse(volumes[cluster as usize]), cluster));
    let mut loads = Loads::new(n_parts);
    let mut parts = vec![PartId(0); volumes.len()];
    for cluster in order {
        parts[cluster as usize] = loads.add_to_least(volumes[cluster as usize]);
    }
    parts
}

/// Phase 2 in the making.
struct Placer<'a> {
    nodes: &'a [Node],
    volumes: &'a [u64],
    parts: &'a [PartId],
    capacity: u64,
    state: &'a mut State,
}

impl Placer<'_> {
    fn part(&self, node: u32) -> PartId {
        match self.nodes[node as usize].cluster {
            UNSEEN => PartId(0),
            cluster => self.parts[cluster as usize],
        }
    }

    /// Returns the better one of the partitions of both ends, of equal ones u's.
    fn better(&self, u: u32, v: u32, part_u: PartId, part_v: PartId) -> PartId {
        if self.score(v, u, part_v) > self.score(u, v, part_u) { part_v } else { part_u }
    }

    /// Returns the score of `part`, the partition of `end`'s cluster, for the edge to `other`.
    fn score(&self, end: u32, other: u32, part: PartId) -> f64 {
        let [degree, of_other] =
            [end, other].map(|node| f64::from(self.nodes[node as usize].degree));
        let volume = |node: u32| match self.nodes[node as usize].cluster {
            UNSEEN => 0.0,
            cluster => self.volumes[cluster as usize] as f64,
        };
        let both = (volume(end) + volume(other)).max(1.0);
        let copy = |node, degree_of_node: f64| match self.state.has_copy(node, part) {
            true => 2.0 - degree_of_node / (degree + of_other),
            false => 0.0,
        };
        copy(end, degree) + copy(other, of_other) + volume(end) / both
    }

    /// Places an edge in `part`, or elsewhere if that is full.
    fn place(&mut self, u: u32, v: u32, part: PartId) {
        let is_full = |part| self.state.n_edges(part) >= self.capacity;
        let by_hash = || {
            let degree = |node: u32| self.nodes[node as usize].degree;
            hashed(if degree(u) >= degree(v) { u } else { v }, self.state.n_parts())
        };
        let fitting = [part, by_hash()].into_iter().find(|&part| !is_full(part));
        if let Some(part) = fitting.or_else(|| self.state.emptiest(|_| true)) {
            self.state.place(u, v, part);
        }
    }
}
