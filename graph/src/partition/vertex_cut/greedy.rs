//! PowerGraph's greedy placement (Gonzalez et al., OSDI 2012, Section 5.2).
//!
//! An edge goes to the emptiest partition of the first of these sets that is not empty:
//!
//! 1. the partitions that have copies of both ends;
//! 2. those of the end that has copies, or if both have, of the one with more edges left to place;
//! 3. all.
//!
//! Nothing else keeps partitions even: a stream that follows the edges of a graph can end in one of
//! them.

use super::state::State;
use crate::edges::{EdgeError, EdgeStream, for_each_edge};
use crate::huge::HugeVec;
use crate::partition::spring::Node;

/// Places all edges; `left` has the edges of each node that are to come.
pub(super) fn place(
    edges: &dyn EdgeStream,
    mut left: HugeVec<Node>,
    state: &mut State,
) -> Result<(), EdgeError> {
    for_each_edge(edges, |u, v| {
        let leading = match (state.has_copies(u), state.has_copies(v)) {
            (true, false) => u,
            (false, true) => v,
            _ if left[u as usize].degree < left[v as usize].degree => v,
            _ => u,
        };
        let both = state.emptiest(|part| state.has_copy(u, part) && state.has_copy(v, part));
        let one = || state.emptiest(|part| state.has_copy(leading, part));
        if let Some(part) = both.or_else(one).or_else(|| state.emptiest(|_| true)) {
            state.place(u, v, part);
        }
        for end in [u, v] {
            let left = &mut left[end as usize].degree;
            *left = left.saturating_sub(1);
        }
    })
}
