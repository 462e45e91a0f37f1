//! DBH, degree-based hashing (Xie et al., NIPS 2014): an edge goes to the hash of its poorer end,
//! so that rich nodes are cut.

use super::state::State;
use crate::edges::{EdgeError, EdgeStream};
use crate::ids::PartId;
use crate::partition::spring::Node;
use crate::splitmix64::splitmix64;

/// Places all edges; of two ends of one degree the lower id decides.
pub(super) fn place(
    edges: &dyn EdgeStream,
    nodes: &[Node],
    state: &mut State,
) -> Result<(), EdgeError> {
    edges.for_each_chunk(&mut |chunk| {
        for &[u, v] in chunk.iter().filter(|[u, v]| u != v) {
            let by_degree = |&node: &u32| (nodes[node as usize].degree, node);
            let poorer = if by_degree(&u) < by_degree(&v) { u } else { v };
            state.place(u, v, hashed(poorer, state.n_parts()));
        }
        Ok(())
    })
}

/// Returns a partition by the hash of an id.
pub(super) fn hashed(node: u32, n_parts: u16) -> PartId {
    // The high half of hash × partitions is uniform over the partitions, without a division.
    PartId(((u128::from(splitmix64(u64::from(node))) * u128::from(n_parts)) >> 64) as u16)
}
