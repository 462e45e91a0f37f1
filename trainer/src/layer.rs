//! One message-passing layer of any kind.

use std::sync::Arc;

use candle_core::{Device, Result, Tensor, Var};
use lodestore_graph::{NodeId, batch::Block};

use crate::{
    dropout::{Activation, ActivationDropout, Dropout},
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
                linear.forward_constant(&convolved(&hop.mean(), x, width, dropout.rows)?)
            }
            Self::Gcn(linear) => {
                linear.forward_constant(&convolved(&hop.normalised(), x, width, dropout.rows)?)
            }
            Self::Gat(gat) => {
                let rows = dropped(x.to_vec(), width, dropout.rows)?;
                let z = gat.projection().forward_constant(&rows)?;
                gat.attend(hop.block, &z, dropout.coefficients)
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
        let active = |activation| ActivationDropout::new(activation, dropout.rows).apply(hidden);
        match self {
            Self::Sage(linear) => linear.forward(&hop.mean().apply(&active(Activation::Relu)?)?),
            Self::Gcn(linear) => {
                linear.forward(&hop.normalised().apply(&active(Activation::Relu)?)?)
            }
            Self::Gat(gat) => {
                let z = gat.projection().forward(&active(Activation::Elu)?)?;
                gat.attend(hop.block, &z, dropout.coefficients)
            }
        }
    }
}

impl Hop<'_> {
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
fn convolved(step: &Spmm, x: &[f32], width: usize, dropout: Option<Dropout>) -> Result<Tensor> {
    dropped(step.product(x, width), step.out_width(width), dropout)
}

/// Rows of `width` as a tensor, after dropout.
fn dropped(mut rows: Vec<f32>, width: usize, dropout: Option<Dropout>) -> Result<Tensor> {
    if let Some(dropout) = dropout {
        dropout.apply(&mut rows);
    }
    let n_rows = rows.len() / width.max(1);
    Tensor::from_vec(rows, (n_rows, width), &Device::Cpu)
}
