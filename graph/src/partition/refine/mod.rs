//! Refinement of any partitioning, in memory of the order of the nodes.
//!
//! A round reads a sample of the edges, as many per node as [`EDGES_PER_NODE`], contracts it level
//! by level into a small graph, and improves the partitioning from the smallest level down to the
//! nodes, as multilevel partitioners do (Karypis and Kumar, SIAM J. Sci. Comput. 20, 1998), but
//! from the partitioning that there is. Where the sample is not all edges, two streamings over all
//! of them follow, in which each node goes where most of its neighbours are.
//!
//! In the first round clusters may cross partitions, which repairs bad ones; in the others they do
//! not, so that every level starts as good as the last round ended. A round that leaves more edges
//! cut than there were is undone, unless a partition was over capacity before it.

mod coarsen;
mod level;
mod queue;
mod restream;
mod sample;
mod search;

use super::plan::PlannedPhase;
use super::steps::Steps;
use crate::PartId;
use crate::edges::{EdgeError, EdgeStream};
use crate::mix::mix;
use coarsen::{Clustering, Contracted, contract};
use level::{Level, Loads};
use restream::restream;
use sample::sample;

/// Edges of the sample per node. On tolokers, whose nodes have 88 neighbours, all edges gave
/// replication factors up to 6 % lower and half as many up to 29 % higher, both without restreaming;
/// on graphs with fewer neighbours or clear communities more edges gained nothing.
const EDGES_PER_NODE: u64 = 8;
/// Contraction ends when there are so many nodes per partition.
const COARSEST_PER_PART: u32 = 60;
/// Clusters hold at most a share of a partition, so that balance stays possible.
const CLUSTERS_PER_PART: u32 = 30;
/// The largest cluster of a level, in those of the level below.
const GROWTH: u32 = 8;
/// Levels at most, should contraction go on and on.
const MAX_LEVELS: usize = 40;

/// Bytes that all levels above the sample may take together, per node and per edge of the sample.
/// Levels that would take more are left out. On graphs whose nodes have few neighbours or form
/// clusters they take less than half of that.
const LEVELS_BYTES: [u64; 2] = [16, 32];

/// Memory of a round for `n_nodes` nodes and `n_edges` edges, and its passes over the edges.
///
/// Per node: 8 offset of the sample's lists, 16 cluster, size, order and pull of a node while it is
/// contracted, 2 owner before the round. Per edge of the sample: 8 in the lists of both ends. And the
/// levels above.
pub(super) fn plan(n_nodes: u64, n_edges: u64, n_parts: u16) -> PlannedPhase {
    let max_edges = EDGES_PER_NODE * n_nodes;
    let n_sampled = n_edges.min(max_edges);
    let [per_node, per_edge] = LEVELS_BYTES;
    let n_passes = match n_edges <= max_edges {
        true => "3 passes, then 1 a round".to_owned(),
        false => format!("1 pass, then {} a round", 5 + restream::n_passes(n_parts)),
    };
    PlannedPhase {
        phase: "refining".to_owned(),
        arithmetic: format!(
            "{n_nodes} nodes x {} B + {n_sampled} sampled edges x {} B (26 and 8 sample, {per_node} \
             and {per_edge} levels above at most); {n_passes}",
            26 + per_node,
            8 + per_edge,
        ),
        bytes: n_nodes * (26 + per_node) + n_sampled * (8 + per_edge),
    }
}

/// Improves `parts` in `n_rounds` rounds; no partition ends above `capacity` nodes, which must
/// leave room for all.
pub(super) fn refine(
    edges: &dyn EdgeStream,
    parts: &mut [PartId],
    n_parts: u16,
    capacity: u64,
    n_rounds: u32,
    steps: &mut Steps,
) -> Result<(), EdgeError> {
    let n_nodes = parts.len() as u32;
    let max_edges = EDGES_PER_NODE * u64::from(n_nodes);
    let mut complete = None;
    let mut least_cut = n_cut(edges, parts)?;
    steps.done("refine: cut", 1);
    for round in 1..=n_rounds {
        let seed = mix(u64::from(round));
        let before = parts.to_vec();
        let fitted = !Loads::of_nodes(parts, n_parts, capacity).any_over();
        let (sampled, n_passes) = match complete.take() {
            Some(sampled) => (sampled, 0),
            None => {
                let sampled = sample(edges, n_nodes, max_edges, seed)?;
                let n_passes = if sampled.is_complete { 2 } else { 4 };
                (sampled, n_passes)
            }
        };
        steps.done(format!("refine {round}: sample"), n_passes);
        let aims = Aims { n_parts, capacity, within: round > 1, seed };
        cycle(&sampled.level, parts, &aims);
        steps.done(format!("refine {round}: levels"), 0);
        if sampled.is_complete {
            complete = Some(sampled);
        } else {
            drop(sampled);
            let mut loads = Loads::of_nodes(parts, n_parts, capacity);
            let n_passes = restream(edges, parts, &mut loads, seed)?;
            steps.done(format!("refine {round}: restreaming"), n_passes);
        }
        let cut = n_cut(edges, parts)?;
        if fitted && cut > least_cut {
            parts.copy_from_slice(&before);
        } else {
            least_cut = cut;
        }
        steps.done(format!("refine {round}: cut"), 1);
    }
    Ok(())
}

/// Neighbours of every node in both directions, repeated edges repeated, and where each list starts.
#[cfg(feature = "metis")]
pub(super) fn all_edges(
    edges: &dyn EdgeStream,
    n_nodes: u32,
) -> Result<(Vec<usize>, Vec<u32>), EdgeError> {
    let Level { offsets, neighbours, .. } = sample(edges, n_nodes, u64::MAX, 0)?.level;
    Ok((offsets, neighbours))
}

/// Edges between partitions.
fn n_cut(edges: &dyn EdgeStream, parts: &[PartId]) -> Result<u64, EdgeError> {
    let mut n_cut = 0u64;
    edges.for_each_chunk(&mut |chunk| {
        let is_cut = |&&[u, v]: &&[u32; 2]| parts[u as usize] != parts[v as usize];
        n_cut += chunk.iter().filter(is_cut).count() as u64;
        Ok(())
    })?;
    Ok(n_cut)
}

/// What a cycle through the levels has to keep to.
struct Aims {
    n_parts: u16,
    capacity: u64,
    /// Clusters keep to the partitions.
    within: bool,
    seed: u64,
}

/// Contracts `bottom` level by level, then improves `parts` from the top level down.
fn cycle(bottom: &Level, parts: &mut [PartId], aims: &Aims) {
    let mut levels = contracted(bottom, parts, aims);
    while let Some(mut top) = levels.pop() {
        improve_level(&top.level, &mut top.parts, aims);
        let below = match levels.last_mut() {
            Some(level) => &mut level.parts[..],
            None => &mut *parts,
        };
        for (part, &parent) in below.iter_mut().zip(&top.parents) {
            *part = top.parts[parent as usize];
        }
    }
    improve_level(bottom, parts, aims);
}

fn improve_level(level: &Level, parts: &mut [PartId], aims: &Aims) {
    let mut loads = Loads::new(level, parts, aims.n_parts, aims.capacity);
    search::improve(level, parts, &mut loads);
}

/// The levels above `bottom`, until one is small or clusters grow no more.
fn contracted(bottom: &Level, parts: &[PartId], aims: &Aims) -> Vec<Contracted> {
    let enough = u64::from(COARSEST_PER_PART) * u64::from(aims.n_parts);
    let largest = bottom.n_nodes() / u32::from(aims.n_parts) / CLUSTERS_PER_PART;
    let [per_node, per_edge] = LEVELS_BYTES;
    let n_sampled = bottom.neighbours.len() as u64 / 2;
    let mut left_bytes = per_node * u64::from(bottom.n_nodes()) + per_edge * n_sampled;
    let mut levels: Vec<Contracted> = Vec::new();
    let mut max_size = 1u32;
    while levels.len() < MAX_LEVELS {
        let (level, parts) = match levels.last() {
            Some(top) => (&top.level, &top.parts[..]),
            None => (bottom, parts),
        };
        let n_nodes = level.n_nodes();
        if u64::from(n_nodes) <= enough || largest <= 1 {
            break;
        }
        max_size = max_size.saturating_mul(GROWTH).min(largest);
        let seed = mix(aims.seed ^ levels.len() as u64);
        let clustering = Clustering { max_size, within: aims.within, seed };
        let Some(next) = contract(level, parts, clustering, left_bytes) else { break };
        left_bytes -= next.n_bytes();
        let n_left = next.level.n_nodes();
        levels.push(next);
        if max_size == largest && u64::from(n_left) * 20 > u64::from(n_nodes) * 19 {
            break;
        }
    }
    levels
}

#[cfg(test)]
mod tests;
