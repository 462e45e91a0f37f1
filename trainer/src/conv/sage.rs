//! GraphSAGE with the mean aggregator (Hamilton et al. 2017, algorithm 1), or with sums.

use std::sync::Arc;

use lodestore_graph::{NodeId, batch::Block};

use crate::matrix::spmm::{OwnRows, Spmm};

/// Returns a layer's step: each destination's own row beside the mean of its sampled neighbours'
/// rows.
///
/// A destination without neighbours has a mean of zeros.
#[must_use]
pub(crate) fn mean(block: Arc<Block>) -> Spmm {
    weighted(block, |_, n_edges| 1.0 / n_edges as f32)
}

/// Returns a layer's step: each destination's own row beside the sum of its neighbours' rows. The
/// sampled rows are scaled to count for all. `degree` returns in-degrees in the whole graph,
/// `nodes` names at least the block's destinations.
#[must_use]
pub(crate) fn sum(block: Arc<Block>, nodes: &[NodeId], degree: &dyn Fn(NodeId) -> u32) -> Spmm {
    weighted(block, |dst, n_edges| degree(nodes[dst]) as f32 / n_edges as f32)
}

/// Returns a step with the same weight for all edges of a destination, by its place and their
/// number.
fn weighted(block: Arc<Block>, weight: impl Fn(usize, u32) -> f32) -> Spmm {
    let mut weights = Vec::with_capacity(block.sources.len());
    for (dst, bounds) in block.offsets.windows(2).enumerate() {
        let n_edges = bounds[1] - bounds[0];
        let weight = weight(dst, n_edges);
        weights.extend((0..n_edges).map(|_| weight));
    }
    Spmm::new(block, weights, OwnRows::Beside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::workspace::Workspace;

    #[test]
    fn means_neighbours_beside_the_own_row() {
        let block = Block { n_src: 3, n_dst: 2, offsets: vec![0, 2, 2], sources: vec![1, 2] };
        let out = mean(Arc::new(block)).product(&[1.0, 2.0, 4.0], 1, &Workspace::default());
        assert_eq!(out, [1.0, 3.0, 2.0, 0.0]);
    }

    #[test]
    fn sums_neighbours_beside_the_own_row_and_sampled_ones_stand_for_all() {
        let block = Block { n_src: 3, n_dst: 2, offsets: vec![0, 2, 2], sources: vec![1, 2] };
        let (block, nodes) = (Arc::new(block), [5, 6, 7].map(NodeId));
        for (degree, expected) in [(2, 6.0), (8, 24.0)] {
            let step =
                sum(Arc::clone(&block), &nodes, &|node| if node.0 == 5 { degree } else { 0 });
            assert_eq!(
                step.product(&[1.0, 2.0, 4.0], 1, &Workspace::default()),
                [1.0, expected, 2.0, 0.0]
            );
        }
    }
}
