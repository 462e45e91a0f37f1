//! A stack of message-passing layers.

use std::{fmt, str::FromStr, sync::Arc};

use candle_core::{Result, Tensor, Var};
use lodestore_graph::{NodeId, batch::Block};
use serde::Serialize;

use crate::{
    gat::{Gat, Heads},
    layer::{Hop, Layer, LayerDropout},
    linear::Linear,
};

/// Which layer a model is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// GraphSAGE with the mean aggregator.
    Sage,
    /// Graph convolution.
    Gcn,
    /// Graph attention.
    Gat,
}

/// The shape of a model.
#[derive(Clone, Debug)]
pub(crate) struct ModelSpec {
    pub(crate) kind: ModelKind,
    /// Features, hidden rows, classes: one more than layers.
    pub(crate) widths: Vec<usize>,
    /// Attention heads of all layers but the last; hidden widths are multiples of it.
    pub(crate) n_heads: usize,
    /// Attention heads of the last layer.
    pub(crate) n_output_heads: usize,
    /// In [0, 1): of what each layer transforms or aggregates, and of attention coefficients.
    pub(crate) dropout: f32,
}

/// Layers with an activation and dropout between them; the last gives one logit per class.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    layers: Vec<Layer>,
    dropout: f32,
}

/// The edges of all layers of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Hops<'a> {
    /// One per layer.
    pub(crate) blocks: &'a [Arc<Block>],
    pub(crate) nodes: &'a [NodeId],
    /// In-degrees in the whole graph.
    pub(crate) degree: &'a dyn Fn(NodeId) -> u32,
}

impl Model {
    /// A model whose parameters are a function of `seed`.
    pub(crate) fn new(spec: &ModelSpec, seed: u64) -> Result<Self> {
        let n_layers = spec.widths.len() - 1;
        let layer = |(index, widths): (usize, &[usize])| {
            let (in_width, out_width, stream) = (widths[0], widths[1], index as u64);
            Ok(match spec.kind {
                ModelKind::Sage => Layer::Sage(Linear::new(2 * in_width, out_width, seed, stream)?),
                ModelKind::Gcn => Layer::Gcn(Linear::new(in_width, out_width, seed, stream)?),
                ModelKind::Gat => {
                    let is_last = index + 1 == n_layers;
                    let (n_heads, heads) = match is_last {
                        true => (spec.n_output_heads, Heads::Averaged),
                        false => (spec.n_heads, Heads::Concatenated),
                    };
                    Layer::Gat(Gat::new([in_width, out_width], n_heads, heads, seed, stream)?)
                }
            })
        };
        let layers = spec.widths.windows(2).enumerate().map(layer).collect::<Result<_>>()?;
        Ok(Self { layers, dropout: spec.dropout })
    }

    /// All parameters, in a fixed order.
    #[must_use]
    pub(crate) fn parameters(&self) -> Vec<Var> {
        self.layers.iter().flat_map(Layer::parameters).collect()
    }

    /// Names of the parameters, in the same order.
    pub(crate) fn names(&self) -> Vec<String> {
        let of_layer = |(index, layer): (usize, &Layer)| {
            layer.names().iter().map(move |name| format!("layers.{index}.{name}"))
        };
        self.layers.iter().enumerate().flat_map(of_layer).collect()
    }

    /// The layer that reads features.
    #[must_use]
    pub(crate) fn first_layer(&self) -> &Layer {
        &self.layers[0]
    }

    /// Logits of shape (n_roots, n_classes) for input rows `x` of shape (n_src, width), with
    /// the dropout masks of `dropout_seed`.
    pub(crate) fn forward(
        &self,
        hops: Hops<'_>,
        x: &[f32],
        width: usize,
        dropout_seed: u64,
    ) -> Result<Tensor> {
        let dropout = |layer| LayerDropout::new(self.dropout, dropout_seed, layer);
        let mut hidden = self.layers[0].forward_features(hops.of_layer(0), x, width, dropout(0))?;
        for (index, layer) in self.layers.iter().enumerate().skip(1) {
            hidden = layer.forward(hops.of_layer(index), &hidden, dropout(index as u64))?;
        }
        Ok(hidden)
    }

    /// The layers after the first, from its output on, without dropout and gradients: a layer's
    /// tensors go with it, where the graph of operations would keep those of all.
    pub(crate) fn finish_evaluation(&self, hops: Hops<'_>, mut hidden: Tensor) -> Result<Tensor> {
        for (index, layer) in self.layers.iter().enumerate().skip(1) {
            let hop = hops.of_layer(index);
            hidden = layer.forward(hop, &hidden.detach(), LayerDropout::default())?;
        }
        Ok(hidden.detach())
    }
}

impl<'a> Hops<'a> {
    /// The edges of one layer.
    pub(crate) fn of_layer(self, layer: usize) -> Hop<'a> {
        Hop { block: &self.blocks[layer], nodes: self.nodes, degree: self.degree }
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sage => "sage",
            Self::Gcn => "gcn",
            Self::Gat => "gat",
        })
    }
}

impl FromStr for ModelKind {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        match name {
            "sage" => Ok(Self::Sage),
            "gcn" => Ok(Self::Gcn),
            "gat" => Ok(Self::Gat),
            _ => Err(format!("no model `{name}`; there are: sage, gcn, gat")),
        }
    }
}
