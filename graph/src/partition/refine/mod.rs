//! Refinement of any partitioning, in memory of the order of the nodes.
//!
//! A round contracts the graph level by level, and improves the partitioning from the smallest
//! level down to the nodes. Multilevel partitioners do the same (Karypis and Kumar, SIAM J. Sci.
//! Comput. 20, 1998), but from nothing instead of a given partitioning.
//!
//! If there are few edges, all are held. Otherwise a sample keeps a few neighbours of each node,
//! which are contracted once into clusters of up to [`SAMPLED_CLUSTER`] nodes. Two passes over all
//! edges replace the search among nodes: nodes near other partitions go where most of their
//! neighbours are.
//!
//! In the first round clusters may cross partitions, and the smallest level is partitioned from
//! nothing too, which repairs bad partitions. In later rounds clusters keep to the partitions, so
//! that every level starts as good as the last round ended. A round that cuts more edges than
//! before is undone, unless a partition was over capacity before it.

mod coarsen;
mod grow;
mod level;
mod queue;
mod restream;
mod search;
mod slots;

use super::plan::PlannedPhase;
use super::steps::Steps;
use crate::edges::{EdgeError, EdgeStream, for_each_edge};
use crate::ids::PartId;
use crate::splitmix64::splitmix64;
use coarsen::{Clustering, Contracted, contract, contract_clusters};
use level::{Level, LevelLoads, Lists, all_edges};
use restream::restream;
use slots::Slots;

/// Contraction ends at this many nodes per partition.
const COARSEST_PER_PART: u32 = 60;
/// Clusters hold at most a share of a partition, so that balance stays possible.
const CLUSTERS_PER_PART: u32 = 30;
/// The largest cluster of a level, in those of the level below.
const GROWTH: u32 = 8;
/// Partitionings of the smallest level that are grown from nothing, to take the best.
const GROWTHS: u64 = 8;
/// Nodes per partition of the largest level that partitions are grown on.
const GROWN_PER_PART: u32 = 1000;
/// Levels at most, should contraction continue and on.
const MAX_LEVELS: usize = 40;

/// Bytes that all levels above complete lists may take together, per node and per edge. Levels that
/// would take more are left out. On graphs whose nodes have few neighbours or form clusters they
/// take less than half of that.
const LEVELS_BYTES: [u64; 2] = [16, 32];
/// Bytes per node that all levels above a sample may take together.
const SAMPLED_LEVELS_BYTES: u64 = 24;
/// Nodes of a cluster of a sample at most.
const SAMPLED_CLUSTER: u32 = 64;
/// Rounds in which each node of a sample goes where most of its kept neighbours are.
const SWEEPS: u32 = 2;

/// Plans a round for `n_nodes` nodes and `n_edges` edges: its memory and its passes over the edges.
///
/// Bytes per node where all edges are held: 4 offset; 20 cluster, size, order, pull and member
/// during contraction; 2 owner before the round. Bytes per edge: 8 in the lists of both ends. Bytes
/// per node of a sample: 4 for each slot; 2 owner before the round; 12 cluster, number and member.
/// The levels above come on top.
pub(super) fn plan(n_nodes: u64, n_edges: u64) -> PlannedPhase {
    let (arithmetic, bytes) = match slots::n_slots(n_nodes, n_edges) {
        None => {
            let [per_node, per_edge] = LEVELS_BYTES;
            let arithmetic = format!(
                "{n_nodes} nodes x {} B + {n_edges} edges x {} B (26 and 8 lists, {per_node} and \
                 {per_edge} levels above at most); 2 passes",
                26 + per_node,
                8 + per_edge,
            );
            (arithmetic, n_nodes * (26 + per_node) + n_edges * (8 + per_edge))
        }
        Some(n_slots) => {
            let per_node = 4 * n_slots + 14 + SAMPLED_LEVELS_BYTES;
            let arithmetic = format!(
                "{n_nodes} nodes x {per_node} B ({} neighbours, 14 clusters, \
                 {SAMPLED_LEVELS_BYTES} levels above at most); 2 to 4 passes a round",
                4 * n_slots,
            );
            (arithmetic, n_nodes * per_node)
        }
    };
    PlannedPhase::new("refining", arithmetic, bytes)
}

/// Rounds of refinement, and the bound that they keep.
#[derive(Clone, Copy)]
pub(super) struct RefineSettings {
    pub(super) n_parts: u16,
    /// Most nodes of a partition, which must leave room for all.
    pub(super) capacity: u64,
    pub(super) n_rounds: u32,
}

/// Improves `parts`.
pub(super) fn refine(
    edges: &dyn EdgeStream,
    parts: &mut [PartId],
    settings: RefineSettings,
    steps: &mut Steps,
) -> Result<(), EdgeError> {
    let RefineSettings { n_parts, capacity, n_rounds } = settings;
    let n_nodes = parts.len() as u32;
    let aims_of = |round: u32| {
        let seed = splitmix64(round.into());
        Aims { n_parts, capacity, within: round > 1, seed, round }
    };
    match slots::n_slots(n_nodes.into(), edges.n_edges()) {
        None => {
            let all = all_edges(edges, n_nodes)?;
            steps.done("refine: lists", 2);
            for round in 1..=n_rounds {
                complete_round(&all, parts, &aims_of(round));
                steps.done(format!("refine {round}: levels"), 0);
            }
        }
        Some(n_slots) => {
            for round in 1..=n_rounds {
                sampled_round(edges, parts, n_slots as usize, &aims_of(round), steps)?;
            }
        }
    }
    Ok(())
}

/// Runs a round on the lists of all edges. It is undone if it cuts more of them, unless a partition
/// was over capacity before it.
fn complete_round(all: &Level, parts: &mut [PartId], aims: &Aims) {
    let (before, cut) = (parts.to_vec(), all.cut(parts));
    let fitted = !LevelLoads::of_nodes(parts, aims.n_parts, aims.capacity).any_over();
    let [per_node, per_edge] = LEVELS_BYTES;
    let n_edges = all.neighbours.len() as u64 / 2;
    cycle(all, parts, aims, per_node * u64::from(all.n_nodes()) + per_edge * n_edges);
    if fitted && all.cut(parts) > cut {
        parts.copy_from_slice(&before);
    }
}

/// Runs a round on a sample of the edges. It is undone if it cuts more of all edges, unless a
/// partition was over capacity before it.
fn sampled_round(
    edges: &dyn EdgeStream,
    parts: &mut [PartId],
    n_slots: usize,
    aims: &Aims,
    steps: &mut Steps,
) -> Result<(), EdgeError> {
    let round = aims.round;
    let fitted = !LevelLoads::of_nodes(parts, aims.n_parts, aims.capacity).any_over();
    let before = parts.to_vec();
    let (slots, cut_before) = Slots::sample(edges, parts, n_slots, aims.seed)?;
    steps.done(format!("refine {round}: sample"), 1);
    sampled_levels(&slots, parts, aims);
    let mut loads = LevelLoads::of_nodes(parts, aims.n_parts, aims.capacity);
    slots::relieve(&slots, parts, &mut loads);
    for _ in 0..SWEEPS {
        slots::sweep(&slots, parts, &mut loads);
    }
    steps.done(format!("refine {round}: levels"), 0);
    let n_passes = restream(edges, slots, parts, &mut loads, aims.seed)?;
    steps.done(format!("refine {round}: restreaming"), n_passes);
    if fitted && n_cut(edges, parts)? > cut_before {
        parts.copy_from_slice(&before);
    }
    steps.done(format!("refine {round}: cut"), u32::from(fitted));
    Ok(())
}

/// Contracts clusters of the sample and improves `parts` on the levels above it.
fn sampled_levels(slots: &Slots, parts: &mut [PartId], aims: &Aims) {
    let largest = parts.len() as u32 / u32::from(aims.n_parts) / CLUSTERS_PER_PART;
    let max_bytes = SAMPLED_LEVELS_BYTES * parts.len() as u64;
    let max_size = SAMPLED_CLUSTER.min(largest);
    let Aims { within, seed, .. } = *aims;
    let clustering = Clustering { max_size, prune: true, within, seed };
    let clusters = match max_size {
        0 | 1 => return,
        _ => slots::clusters(slots, parts, clustering),
    };
    // Beside the levels there are 4 bytes of each node's cluster.
    let below_bytes = 4 * parts.len() as u64;
    let contracted = contract_clusters(slots, parts, clusters, clustering, max_bytes + below_bytes);
    let Some(mut first) = contracted else { return };
    let left_bytes = (max_bytes + below_bytes).saturating_sub(first.n_bytes());
    cycle(&first.level, &mut first.parts, aims, left_bytes);
    for (part, &parent) in parts.iter_mut().zip(&*first.parents) {
        *part = first.parts[parent as usize];
    }
}

/// Returns where the list of each node starts, and the neighbours of all in both directions,
/// repeated edges repeated. The stream must have fewer than 2³¹ edges.
#[cfg(feature = "metis")]
pub(super) fn both_directions(
    edges: &dyn EdgeStream,
    n_nodes: u32,
) -> Result<(Vec<u32>, Vec<u32>), EdgeError> {
    let Level { offsets, neighbours, .. } = all_edges(edges, n_nodes)?;
    Ok((offsets, neighbours))
}

/// Returns the number of edges between partitions.
fn n_cut(edges: &dyn EdgeStream, parts: &[PartId]) -> Result<u64, EdgeError> {
    let mut n_cut = 0u64;
    for_each_edge(edges, |u, v| n_cut += u64::from(parts[u as usize] != parts[v as usize]))?;
    Ok(n_cut)
}

/// Bounds of a cycle through the levels.
#[derive(Clone, Copy, Debug)]
struct Aims {
    n_parts: u16,
    capacity: u64,
    /// Clusters keep to the partitions.
    within: bool,
    seed: u64,
    round: u32,
}

/// Contracts `bottom` level by level, in `max_bytes`, then improves `parts` from the top level
/// down.
fn cycle(bottom: &Level, parts: &mut [PartId], aims: &Aims, max_bytes: u64) {
    let mut levels = contracted(bottom, parts, aims, max_bytes);
    if !aims.within {
        match levels.last_mut() {
            Some(top) => regrow(&top.level, &mut top.parts, aims),
            None => regrow(bottom, parts, aims),
        }
    }
    while let Some(mut top) = levels.pop() {
        improve_level(&top.level, &mut top.parts, aims);
        let below = match levels.last_mut() {
            Some(level) => &mut level.parts[..],
            None => &mut *parts,
        };
        for (part, &parent) in below.iter_mut().zip(&*top.parents) {
            *part = top.parts[parent as usize];
        }
    }
    improve_level(bottom, parts, aims);
}

/// Replaces `parts` by the best of partitions that are grown from nothing, if one cuts less. All
/// are compared after a search in each. Large levels are left as they are.
fn regrow(level: &Level, parts: &mut [PartId], aims: &Aims) {
    if level.n_nodes() > GROWN_PER_PART * u32::from(aims.n_parts) {
        return;
    }
    improve_level(level, parts, aims);
    let worth = |parts: &[PartId]| {
        let loads = LevelLoads::new(level, parts, aims.n_parts, aims.capacity);
        (loads.any_over(), level.cut(parts))
    };
    let mut best = worth(parts);
    for i in 0..GROWTHS {
        let mut grown = grow::grow(level, aims.n_parts, splitmix64(aims.seed ^ i));
        improve_level(level, &mut grown, aims);
        let found = worth(&grown);
        if found < best {
            best = found;
            parts.copy_from_slice(&grown);
        }
    }
}

fn improve_level(level: &Level, parts: &mut [PartId], aims: &Aims) {
    let mut loads = LevelLoads::new(level, parts, aims.n_parts, aims.capacity);
    search::improve(level, parts, &mut loads);
}

/// Returns the levels above `bottom`, until one is small or clusters grow no more.
fn contracted(bottom: &Level, parts: &[PartId], aims: &Aims, max_bytes: u64) -> Vec<Contracted> {
    let enough = u64::from(COARSEST_PER_PART) * u64::from(aims.n_parts);
    let n_bottom = u64::from(bottom.n_nodes());
    let n_below: u64 = (0..bottom.n_nodes()).map(|node| u64::from(bottom.size(node))).sum();
    let largest = (n_below / u64::from(aims.n_parts) / u64::from(CLUSTERS_PER_PART)) as u32;
    let mut left_bytes = max_bytes;
    let mut levels: Vec<Contracted> = Vec::new();
    let mut max_size = (n_below / n_bottom.max(1)).max(1) as u32;
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
        let seed = splitmix64(aims.seed ^ levels.len() as u64);
        let clustering = Clustering { max_size, prune: false, within: aims.within, seed };
        let Some(next) = contract(level, parts, clustering, left_bytes) else { break };
        left_bytes = left_bytes.saturating_sub(next.n_bytes());
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
