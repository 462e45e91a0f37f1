//! GraphSAGE with the mean aggregator (Hamilton et al. 2017, algorithm 1).

use std::sync::Arc;

use lodestore_graph::batch::Block;

use crate::spmm::{OwnRows, Spmm};

/// A layer's step: each destination's own row beside the mean of its sampled neighbours' rows.
///
/// A destination without neighbours has a mean of zeros.
#[must_use]
pub(crate) fn step(block: Arc<Block>) -> Spmm {
    let mut weights = Vec::with_capacity(block.sources.len());
    for bounds in block.offsets.windows(2) {
        let n_edges = bounds[1] - bounds[0];
        let weight = 1.0 / n_edges as f32;
        weights.extend((0..n_edges).map(|_| weight));
    }
    Spmm::new(block, weights, OwnRows::Beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_neighbours_beside_the_own_row() {
        let block = Block { n_src: 3, n_dst: 2, offsets: vec![0, 2, 2], sources: vec![1, 2] };
        let out = step(Arc::new(block)).product(&[1.0, 2.0, 4.0], 1);
        assert_eq!(out, [1.0, 3.0, 2.0, 0.0]);
    }
}
