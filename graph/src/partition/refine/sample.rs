//! Which edges a round works on, all of them where they are few, and the lists of all.

use super::level::Level;
use super::slots::MAX_SLOTS;
use crate::edges::{EdgeError, EdgeStream};

/// Ends of edges that are held at least, 4 bytes each: every edge of a graph of half as many.
const MIN_ENDS: u64 = 8 << 20;
/// Ends of edges held per node where there are more.
const ENDS_PER_NODE: u64 = 5;

/// Returns the ends kept of each node; nothing where all edges are.
pub(super) fn n_slots(n_nodes: u64, n_edges: u64) -> Option<u64> {
    let n_ends = n_edges.saturating_mul(2);
    let slots = (MIN_ENDS / n_nodes.max(1)).clamp(ENDS_PER_NODE, MAX_SLOTS as u64);
    (n_ends > MIN_ENDS).then_some(slots)
}

/// Returns all edges as lists of both ends' neighbours, in two passes.
///
/// The stream must have fewer than 2³¹ edges.
pub(super) fn all_edges(edges: &dyn EdgeStream, n_nodes: u32) -> Result<Level, EdgeError> {
    let mut offsets = vec![0u32; n_nodes as usize + 1];
    for_each_edge(edges, &mut |u, v| {
        offsets[u as usize + 1] += 1;
        offsets[v as usize + 1] += 1;
    })?;
    for i in 1..offsets.len() {
        offsets[i] += offsets[i - 1];
    }
    let mut neighbours = vec![0u32; offsets.last().copied().unwrap_or(0) as usize];
    // While the lists are filled, an offset is where the next neighbour goes.
    for_each_edge(edges, &mut |u, v| {
        for (node, neighbour) in [(u, v), (v, u)] {
            let next = &mut offsets[node as usize];
            // A file that changes between passes may have more; that makes worse lists.
            if let Some(place) = neighbours.get_mut(*next as usize) {
                *place = neighbour;
                *next += 1;
            }
        }
    })?;
    // Each offset is where the next list starts by now.
    offsets.rotate_right(1);
    offsets[0] = 0;
    for i in 1..offsets.len() {
        offsets[i] = offsets[i].max(offsets[i - 1]);
    }
    Ok(Level { offsets, neighbours, ..Level::default() })
}

/// Passes over every edge that is no loop.
fn for_each_edge(edges: &dyn EdgeStream, f: &mut impl FnMut(u32, u32)) -> Result<(), EdgeError> {
    edges.for_each_chunk(&mut |chunk| {
        for &[u, v] in chunk {
            if u != v {
                f(u, v);
            }
        }
        Ok(())
    })
}
