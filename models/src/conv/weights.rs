//! Weights of the edges. GraphSAGE takes means (Hamilton et al. 2017, algorithm 1). GCN
//! normalises symmetrically (Kipf and Welling 2017, equation 2).

use std::sync::Arc;

use lodestore_graph::{NodeId, batch::Block};

use crate::matrix::spmm::{OwnRows, Spmm};

/// Returns a layer's step: each destination's own row beside the mean of its sampled neighbours'
/// rows.
///
/// A destination without neighbours has a mean of zeros.
#[must_use]
pub(crate) fn mean(block: Arc<Block>) -> Spmm {
    let mut weights = Vec::with_capacity(block.sources.len());
    for bounds in block.offsets.windows(2) {
        let n_edges = bounds[1] - bounds[0];
        weights.extend((0..n_edges).map(|_| 1.0 / n_edges as f32));
    }
    Spmm::new(block, weights, OwnRows::Beside)
}

/// Returns a layer's step: `Σ_u x_u / sqrt((deg u + 1)(deg v + 1))` over the neighbours of v and v
/// itself.
///
/// `degree` returns in-degrees in the whole graph, so a full neighbourhood yields the paper's
/// layer. In a sampled one each edge counts `deg v / sampled` times: the expected sum is the full
/// one. `nodes` names at least the block's sources.
#[must_use]
pub(crate) fn normalised(
    block: Arc<Block>,
    nodes: &[NodeId],
    degree: &dyn Fn(NodeId) -> u32,
) -> Spmm {
    let degrees: Vec<f32> =
        nodes[..block.n_src as usize].iter().map(|&node| degree(node) as f32).collect();
    let mut weights = Vec::with_capacity(block.sources.len());
    let mut own_weights = Vec::with_capacity(block.n_dst as usize);
    for (dst, bounds) in block.offsets.windows(2).enumerate() {
        let own = degrees[dst] + 1.0;
        own_weights.push(1.0 / own);
        let edges = bounds[0] as usize..bounds[1] as usize;
        let scale = degrees[dst] / edges.len().max(1) as f32;
        let sources = block.sources[edges].iter();
        weights
            .extend(sources.map(|&source| scale / ((degrees[source as usize] + 1.0) * own).sqrt()));
    }
    Spmm::new(block, weights, OwnRows::Added(own_weights.into()))
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
    fn full_neighbourhood_is_the_normalised_adjacency() {
        // A path 0 - 1 - 2: degrees 1, 2, 1.
        let block = Block { n_src: 3, n_dst: 2, offsets: vec![0, 1, 3], sources: vec![1, 0, 2] };
        let nodes = [NodeId(0), NodeId(1), NodeId(2)];
        let op = normalised(Arc::new(block), &nodes, &|node| [1, 2, 1][node.index()]);
        let out = op.product(&[1.0, 10.0, 100.0], 1, &Workspace::default());
        let expected = [1.0 / 2.0 + 10.0 / 6f32.sqrt(), 10.0 / 3.0 + 101.0 / 6f32.sqrt()];
        assert!(out.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4), "{out:?}");
    }

    #[test]
    fn sampled_edges_stand_for_all() {
        // Node 0 has 4 neighbours of degree 0, of which 2 are sampled.
        let block = Block { n_src: 3, n_dst: 1, offsets: vec![0, 2], sources: vec![1, 2] };
        let nodes = [NodeId(0), NodeId(1), NodeId(2)];
        let op = normalised(Arc::new(block), &nodes, &|node| if node.0 == 0 { 4 } else { 0 });
        let out = op.product(&[0.0, 1.0, 1.0], 1, &Workspace::default());
        assert!((out[0] - 4.0 / 5f32.sqrt()).abs() < 1e-6, "{out:?}");
    }
}
