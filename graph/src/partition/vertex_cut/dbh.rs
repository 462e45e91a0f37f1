//! DBH, degree-based hashing (Xie et al., NIPS 2014): an edge goes to the hash of its poorer end,
//! so that rich nodes are cut.

use super::state::State;
use crate::edges::{EdgeError, EdgeStream, for_each_edge};
use crate::partition::hash::hashed;
use crate::partition::spring::Node;

/// Places all edges; of two ends of one degree the lower id decides.
pub(super) fn place(
    edges: &dyn EdgeStream,
    nodes: &[Node],
    state: &mut State,
) -> Result<(), EdgeError> {
    for_each_edge(edges, |u, v| {
        let by_degree = |node: u32| (nodes[node as usize].degree, node);
        let poorer = if by_degree(u) < by_degree(v) { u } else { v };
        state.place(u, v, hashed(poorer, state.n_parts()));
    })
}
