//! One message-passing layer of any kind.

use std::sync::Arc;

use candle_core::{Device, Result, Tensor, Var};
use lodestore_graph::{NodeId, batch::Block};

use crate::{
    dropout::{Activation, ActivationDropout, Dropout, Mask},
    gat::Gat,
    gcn,
    linear::Linear,
    sage,
    spmm::Spmm,
};

/// Dropout of coefficients has streams of its own.
const ATTENTION_STREAM: u64 = 1 << 32;

/// A layer and its parameters.
///
/// GraphSAGE and GCN aggregate first and transform after, `(A·X)·W`: blocks have several times
/// fewer destinations than sources, so the matrix product gets the smaller side. Attention needs
/// transformed rows, so GAT transforms first.
#[derive(Clone, Debug)]
pub(crate) enum Layer {
    Sage(Linear),
    Gcn(Linear),
    Gat(Gat),
}

/// The edges that one layer's messages take.
#[derive(Clone, Copy)]
pub(crate) struct Hop<'a> {
    pub(crate) block: &'a Arc<Block>,
    /// At least the block's sources.
    pub(crate) nodes: &'a [NodeId],
    /// In-degrees in the whole graph.
    pub(crate) degree: &'a dyn Fn(NodeId) -> u32,
}

/// What a layer drops in one step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerDropout {
    /// Elements of what the layer transforms or aggregates.
    pub(crate) rows: Option<Dropout>,
    /// Attention coefficients.
    pub(crate) coefficients: Option<Dropout>,
}

impl LayerDropout {
    /// Of layer `layer` in the step of `seed`.
    pub(crate) fn new(rate: f32, seed: u64, layer: u64) -> Self {
        let of_stream = |stream| Dropout::new(rate, seed, stream);
        Self { rows: of_stream(layer), coefficients: of_stream(ATTENTION_STREAM | layer) }
    }

    /// Returns the mask of the rows of `nodes`.
    fn of_rows(&self, nodes: &[NodeId]) -> Option<Mask> {
        self.rows.map(|dropout| dropout.mask(nodes.iter().map(|node| node.0.into())))
    }
}

impl Layer {
    /// Names of the parameters, in their order.
    pub(crate) fn names(&self) -> &'static [&'static str] {
        match self {
            Self::Sage(_) | Self::Gcn(_) => &["weight", "bias"],
            Self::Gat(_) => &["weight", "attention_source", "attention_destination", "bias"],
        }
    }

    /// All parameters, in a fixed order.
    pub(crate) fn parameters(&self) -> Vec<Var> {
        match self {
            Self::Sage(linear) | Self::Gcn(linear) => {
                vec![linear.weight().clone(), linear.bias().clone()]
            }
            Self::Gat(gat) => gat.parameters().map(Var::clone).to_vec(),
        }
    }

    /// The output of shape (n_dst, out_width) for plain rows `x` of shape (n_src, width), which
    /// need no gradient: those of the first layer.
    pub(crate) fn forward_features(
        &self,
        hop: Hop<'_>,
        x: &[f32],
        width: usize,
        dropout: LayerDropout,
    ) -> Result<Tensor> {
        match self {
            Self::Sage(linear) => {
                let mask = dropout.of_rows(hop.destinations());
                linear.forward_constant(&convolved(&hop.mean(), x, width, mask)?)
            }
            Self::Gcn(linear) => {
                let mask = dropout.of_rows(hop.destinations());
                linear.forward_constant(&convolved(&hop.normalised(), x, width, mask)?)
            }
            Self::Gat(gat) => {
                let rows = dropped(x.to_vec(), width, dropout.of_rows(hop.sources()))?;
                let z = gat.projection().forward_constant(&rows)?;
                gat.attend(hop, &z, dropout.coefficients)
            }
        }
    }

    /// The output for that of the layer before, which still lacks its activation.
    pub(crate) fn forward(
        &self,
        hop: Hop<'_>,
        hidden: &Tensor,
        dropout: LayerDropout,
    ) -> Result<Tensor> {
        let mask = dropout.of_rows(hop.sources());
        let active = |activation| ActivationDropout::new(activation, mask).apply(hidden);
        match self {
            Self::Sage(linear) => linear.forward(&hop.mean().apply(&active(Activation::Relu)?)?),
            Self::Gcn(linear) => {
                linear.forward(&hop.normalised().apply(&active(Activation::Relu)?)?)
            }
            Self::Gat(gat) => {
                let z = gat.projection().forward(&active(Activation::Elu)?)?;
                gat.attend(hop, &z, dropout.coefficients)
            }
        }
    }
}

impl Hop<'_> {
    /// Returns the block's sources; its destinations are the first of them.
    fn sources(&self) -> &[NodeId] {
        &self.nodes[..self.block.n_src as usize]
    }

    fn destinations(&self) -> &[NodeId] {
        &self.nodes[..self.block.n_dst as usize]
    }

    /// Returns a key of each attention entry: its destination and its source.
    pub(crate) fn entry_keys(&self) -> impl Iterator<Item = u64> {
        let edges = self.block.offsets.windows(2).zip(0..);
        edges.flat_map(|(bounds, dst)| {
            let sources = &self.block.sources[bounds[0] as usize..bounds[1] as usize];
            let id = |at: u32| u64::from(self.nodes[at as usize].0);
            sources.iter().copied().chain([dst]).map(move |source| (id(dst) << 32) | id(source))
        })
    }

    /// GraphSAGE's step.
    pub(crate) fn mean(&self) -> Spmm {
        sage::step(Arc::clone(self.block))
    }

    /// GCN's step.
    pub(crate) fn normalised(&self) -> Spmm {
        gcn::step(Arc::clone(self.block), self.nodes, self.degree)
    }
}

/// `step` applied to `x`, then dropout.
fn convolved(step: &Spmm, x: &[f32], width: usize, mask: Option<Mask>) -> Result<Tensor> {
    dropped(step.product(x, width), step.out_width(width), mask)
}

/// Rows of `width` as a tensor, after dropout.
fn dropped(mut rows: Vec<f32>, width: usize, mask: Option<Mask>) -> Result<Tensor> {
    if let Some(mask) = mask {
        mask.apply(&mut rows);
    }
    let n_rows = rows.len() / width.max(1);
    Tensor::from_vec(rows, (n_rows, width), &Device::Cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_and_each_layers_rows_have_masks_of_their_own() {
        let mask = |dropout: Option<Dropout>| {
            let mut row = vec![1.0; 100];
            dropout.unwrap().mask([5].into_iter()).apply(&mut row);
            row
        };
        let [first, second] = [0, 1].map(|layer| LayerDropout::new(0.5, 3, layer));
        let masks = [first.rows, first.coefficients, second.rows, second.coefficients].map(mask);
        for (i, of_one) in masks.iter().enumerate() {
            assert!(masks[..i].iter().all(|other| other != of_one), "mask {i}");
        }
    }

    /// A layer's output for node 9 with neighbours 4 and 6, in two batches that put them elsewhere.
    #[test]
    fn a_node_drops_the_same_in_any_batch() {
        let small = Block { n_src: 3, n_dst: 1, offsets: vec![0, 2], sources: vec![1, 2] };
        let (offsets, sources) = (vec![0, 1, 3, 4], vec![3, 3, 4, 0]);
        let large = Block { n_src: 5, n_dst: 3, offsets, sources };
        let ids = |ids: &[u32]| ids.iter().map(|&id| NodeId(id)).collect::<Vec<_>>();
        let batches = [(small, ids(&[9, 4, 6]), 0), (large, ids(&[1, 9, 2, 4, 6]), 1)];
        let width = 8;
        let rows_of = |nodes: &[NodeId]| {
            let elements = nodes.iter().flat_map(|node| node.0 * 8..node.0 * 8 + 8);
            elements.map(|element| element as f32 * 0.01).collect::<Vec<f32>>()
        };
        let layers = [
            Layer::Sage(Linear::new(2 * width, 4, 1, 0).unwrap()),
            Layer::Gcn(Linear::new(width, 4, 1, 0).unwrap()),
            Layer::Gat(Gat::new([width, 4], 2, crate::gat::Heads::Concatenated, 1, 0).unwrap()),
        ];
        for layer in layers {
            let outputs = |dropout: LayerDropout| {
                batches.clone().map(|(block, nodes, at)| {
                    let (block, x) = (Arc::new(block), rows_of(&nodes));
                    let hop = Hop { block: &block, nodes: &nodes, degree: &|_| 2 };
                    let first = layer.forward_features(hop, &x, width, dropout).unwrap();
                    let x = Tensor::from_vec(x, (nodes.len(), width), &Device::Cpu).unwrap();
                    let later = layer.forward(hop, &x, dropout).unwrap();
                    [first, later].map(|out| out.to_vec2::<f32>().unwrap()[at].clone())
                })
            };
            let [small, large] = outputs(LayerDropout::new(0.5, 3, 0));
            assert_eq!(small, large);
            assert_ne!(small, outputs(LayerDropout::new(0.5, 3, 1))[0]);
            assert_ne!(small, outputs(LayerDropout::default())[0]);
        }
    }
}
