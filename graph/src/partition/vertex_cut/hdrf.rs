//! HDRF, high degree replicated first (Petroni et al., CIKM 2015, Section 3).
//!
//! Edge (u, v) goes to the partition with the largest g(u) + g(v) + λ · (max − size) / (ε + max −
//! min). Sizes are in edges. Here g(u) is 0 without a copy of u, else 2 − δ(u) / (δ(u) + δ(v)),
//! where δ is the degree seen so far. The constants are λ = 1.1, of the values above 1 that the
//! paper recommends, and ε = 1.

use super::state::State;
use crate::edges::{EdgeError, EdgeStream, for_each_edge};

pub(super) const LAMBDA: f64 = 1.1;
pub(super) const EPSILON: f64 = 1.0;

/// Places all edges.
pub(super) fn place(edges: &dyn EdgeStream, state: &mut State) -> Result<(), EdgeError> {
    let mut seen = vec![0u32; edges.n_nodes() as usize];
    for_each_edge(edges, |u, v| {
        let [of_u, of_v] = [u, v].map(|end| {
            let degree = &mut seen[end as usize];
            *degree = degree.saturating_add(1);
            f64::from(*degree)
        });
        let (gain_u, gain_v) = (2.0 - of_u / (of_u + of_v), 2.0 - of_v / (of_u + of_v));
        let (fewest, most) = state.fewest_and_most();
        let range = EPSILON + (most - fewest) as f64;
        let mut best = (f64::NEG_INFINITY, None);
        for part in state.parts() {
            let copy_u = if state.has_copy(u, part) { gain_u } else { 0.0 };
            let copy_v = if state.has_copy(v, part) { gain_v } else { 0.0 };
            let balance = LAMBDA * (most - state.n_edges(part)) as f64 / range;
            let score = copy_u + copy_v + balance;
            if score > best.0 {
                best = (score, Some(part));
            }
        }
        if let Some(part) = best.1 {
            state.place(u, v, part);
        }
    })
}
