//! A stack of message-passing layers.

use std::{fmt, str::FromStr, sync::Arc};

use candle_core::{Device, Result, Tensor, Var};
use lodestore_graph::{NodeId, batch::Block};
use serde::Serialize;

use crate::{
    dropout::{Dropout, ReluDropout},
    gcn,
    linear::Linear,
    sage,
    spmm::Spmm,
};

/// Which layer a model is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// GraphSAGE with the mean aggregator.
    Sage,
    /// Graph convolution.
    Gcn,
}

/// Layers with ReLU and dropout between them; the last gives one logit per class.
///
/// Every layer aggregates first and transforms after, `(A·X)·W`: blocks have several times fewer
/// destinations than sources, so the matrix product gets the smaller side.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    kind: ModelKind,
    layers: Vec<Linear>,
    dropout: f32,
}

impl Model {
    /// A model with layer widths `widths[0]` (features) to the last (classes), its parameters a
    /// function of `seed`. Dropout in [0, 1) applies to what each layer transforms or aggregates:
    /// the aggregated features, and the hidden rows.
    pub(crate) fn new(kind: ModelKind, widths: &[usize], dropout: f32, seed: u64) -> Result<Self> {
        let inputs_per_width = match kind {
            ModelKind::Sage => 2,
            ModelKind::Gcn => 1,
        };
        let layers = (0u64..)
            .zip(widths.windows(2))
            .map(|(layer, w)| Linear::new(inputs_per_width * w[0], w[1], seed, layer))
            .collect::<Result<_>>()?;
        Ok(Self { kind, layers, dropout })
    }

    /// All parameters, in a fixed order.
    #[must_use]
    pub(crate) fn parameters(&self) -> Vec<Var> {
        self.layers.iter().flat_map(|l| [l.weight().clone(), l.bias().clone()]).collect()
    }

    /// The layers, the first of which reads features.
    #[must_use]
    pub(crate) fn layers(&self) -> &[Linear] {
        &self.layers
    }

    /// The message-passing step of each block; `degree` gives in-degrees in the whole graph.
    #[must_use]
    pub(crate) fn steps(
        &self,
        blocks: Vec<Block>,
        nodes: &[NodeId],
        degree: &dyn Fn(NodeId) -> u32,
    ) -> Vec<Spmm> {
        let step = |block| match self.kind {
            ModelKind::Sage => sage::step(Arc::new(block)),
            ModelKind::Gcn => gcn::step(Arc::new(block), nodes, degree),
        };
        blocks.into_iter().map(step).collect()
    }

    /// Logits of shape (n_roots, n_classes) for input rows `x` of shape (n_src, width), with
    /// the dropout masks of `dropout_seed`.
    pub(crate) fn forward(
        &self,
        steps: &[Spmm],
        x: &[f32],
        width: usize,
        dropout_seed: u64,
    ) -> Result<Tensor> {
        let shape = (steps[0].block().n_dst as usize, steps[0].out_width(width));
        let mut rows = steps[0].product(x, width);
        let dropout = |layer| Dropout::new(self.dropout, dropout_seed, layer);
        if let Some(dropout) = dropout(0) {
            dropout.apply(&mut rows);
        }
        let input = Tensor::from_vec(rows, shape, &Device::Cpu)?;
        let hidden = self.layers[0].forward_constant(&input)?;
        self.finish(&steps[1..], hidden, &dropout)
    }

    /// The layers after the first, from its output on, without dropout.
    pub(crate) fn finish_evaluation(&self, steps: &[Spmm], hidden: Tensor) -> Result<Tensor> {
        self.finish(steps, hidden, &|_| None)
    }

    fn finish(
        &self,
        steps: &[Spmm],
        mut hidden: Tensor,
        dropout: &dyn Fn(u64) -> Option<Dropout>,
    ) -> Result<Tensor> {
        for ((layer, step), index) in self.layers[1..].iter().zip(steps).zip(1..) {
            hidden = ReluDropout::new(dropout(index)).apply(&hidden)?;
            hidden = layer.forward(&step.apply(&hidden)?)?;
        }
        Ok(hidden)
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sage => "sage",
            Self::Gcn => "gcn",
        })
    }
}

impl FromStr for ModelKind {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        match name {
            "sage" => Ok(Self::Sage),
            "gcn" => Ok(Self::Gcn),
            _ => Err(format!("no model `{name}`; there are: sage, gcn")),
        }
    }
}
