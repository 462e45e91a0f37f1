//! Restreaming: every node counts its neighbours in each partition over all edges, and goes where
//! most of them are.

use super::level::Loads;
use crate::PartId;
use crate::edges::{EdgeError, EdgeStream};
use crate::mix::mix;

/// Bytes of counters per node; with more partitions than they hold, nodes are counted in blocks,
/// one pass over the edges for each.
const COUNTER_BYTES: usize = 64;
/// Groups that move one after the other. Neighbours that move at once can swap places for ever.
const GROUPS: u64 = 2;

/// Passes over the edges for `n_parts` partitions.
pub(super) fn n_passes(n_parts: u16) -> u32 {
    GROUPS as u32 * n_blocks(n_parts.into()) as u32
}

/// Blocks of nodes that are counted one after the other.
fn n_blocks(n_parts: usize) -> usize {
    (4 * n_parts).div_ceil(COUNTER_BYTES)
}

/// Moves nodes that gain by it, each at most once, while there is room: first those that gain
/// most. A node does not see moves of its own group, so that the cut may rise, though it rarely
/// does. Gives the number of passes over the edges.
pub(super) fn restream(
    edges: &dyn EdgeStream,
    parts: &mut [PartId],
    loads: &mut Loads,
    seed: u64,
) -> Result<u32, EdgeError> {
    let n_parts = loads.n_parts();
    let block_nodes = parts.len().div_ceil(n_blocks(n_parts));
    let mut n_passes = 0;
    for group in 0..GROUPS {
        for first in (0..parts.len()).step_by(block_nodes.max(1)) {
            let block = first..(first + block_nodes).min(parts.len());
            let counts = count(edges, parts, block.clone(), n_parts)?;
            n_passes += 1;
            let in_group = |node: usize| mix(seed ^ node as u64) % GROUPS == group;
            let mut gains = Vec::new();
            for node in block.clone().filter(|&node| in_group(node)) {
                let counts = &counts[(node - first) * n_parts..][..n_parts];
                let stay = counts[parts[node].index()];
                let most = counts.iter().max().copied().unwrap_or(0);
                if most > stay {
                    gains.push((most - stay, node));
                }
            }
            gains.sort_unstable_by(|a, b| b.cmp(a));
            for (_, node) in gains {
                let counts = &counts[(node - first) * n_parts..][..n_parts];
                place(parts, loads, node, counts);
            }
        }
    }
    Ok(n_passes)
}

/// Neighbours of each node of `block` in each partition, over all edges that are no loops.
fn count(
    edges: &dyn EdgeStream,
    parts: &[PartId],
    block: std::ops::Range<usize>,
    n_parts: usize,
) -> Result<Vec<u32>, EdgeError> {
    let mut counts = vec![0u32; block.len() * n_parts];
    edges.for_each_chunk(&mut |chunk| {
        for &[u, v] in chunk {
            for (node, other) in [(u as usize, v as usize), (v as usize, u as usize)] {
                if block.contains(&node) && node != other {
                    let count = &mut counts[(node - block.start) * n_parts + parts[other].index()];
                    *count = count.saturating_add(1);
                }
            }
        }
        Ok(())
    })?;
    Ok(counts)
}

/// Moves `node` to the partition of most neighbours that has room, if they are more than at home.
fn place(parts: &mut [PartId], loads: &mut Loads, node: usize, counts: &[u32]) {
    let own = parts[node];
    let mut best = (counts[own.index()], own);
    for (part, &count) in (0..).map(PartId).zip(counts) {
        if count > best.0 && loads.has_room(part, 1) {
            best = (count, part);
        }
    }
    if best.1 != own {
        loads.shift(own, best.1, 1);
        parts[node] = best.1;
    }
}
