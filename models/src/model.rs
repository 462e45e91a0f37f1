//! A stack of message-passing layers.

use std::sync::Arc;

use lodestore_graph::{NodeId, batch::Block};

use crate::conv::gat::{Gat, Heads};
use crate::conv::{Conv, Hop, Input, LayerDropout};
use crate::layer::{Layer, Saved};
use crate::linear::Linear;
use crate::matrix::Matrix;
use crate::matrix::workspace::Workspace;
use crate::norm::NormLayer;
use crate::options::{LayerOptions, ModelKind, Norm};
use crate::parameter::Parameter;

/// Most layers of a model.
pub const MAX_LAYERS: usize = 64;

/// Most parameters of a model, so that its file has less than 4 GiB.
pub const MAX_PARAMETERS: u64 = 1_000_000_000;

/// The shape of a model.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// Kind of the layers.
    pub kind: ModelKind,
    /// Features, hidden rows, classes: one more than layers.
    pub widths: Vec<usize>,
    /// Attention heads of all layers but the last; hidden widths are multiples of it.
    pub n_heads: usize,
    /// Attention heads of the last layer.
    pub n_output_heads: usize,
    /// In [0, 1): of what each layer transforms or aggregates, and of attention coefficients.
    pub dropout: f32,
    /// Normalisation and residuals of layers.
    pub layer: LayerOptions,
}

/// Layers with an activation and dropout between them; the last returns one logit per class.
#[derive(Clone, Debug)]
pub struct Model {
    /// The one that reads features first.
    pub layers: Vec<Layer>,
    /// The share of elements that layers drop.
    pub dropout: f32,
}

/// A forward pass: the rows at each boundary between layers, and what each layer saved.
#[derive(Debug)]
pub struct Pass {
    outputs: Vec<Matrix>,
    saved: Vec<Saved>,
}

/// The edges of all layers of a batch.
#[derive(Clone, Copy)]
pub struct Hops<'a> {
    /// One per layer.
    pub blocks: &'a [Arc<Block>],
    /// At least the sources of each block.
    pub nodes: &'a [NodeId],
    /// In-degrees in the whole graph.
    pub degree: &'a dyn Fn(NodeId) -> u32,
}

impl ModelSpec {
    /// Returns the normalisation of layer `index`.
    fn norm(&self, index: usize) -> Norm {
        if index + 2 < self.widths.len() { self.layer.norm } else { Norm::None }
    }

    /// Returns whether layer `index` adds the rows that it is given to its own: one between two
    /// hidden layers does.
    fn is_residual(&self, index: usize) -> bool {
        let is_between = index > 0 && index + 2 < self.widths.len();
        self.layer.residual && is_between && self.widths[index] == self.widths[index + 1]
    }

    /// Returns the name and the shape of each parameter, in their order, without making any.
    pub(crate) fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        let n_layers = self.widths.len() - 1;
        let of_layer = |(index, widths): (usize, &[usize])| {
            let (in_width, out_width) = (widths[0], widths[1]);
            let (weight, attention) = match self.kind {
                ModelKind::Sage => (vec![in_width.saturating_mul(2), out_width], None),
                ModelKind::Gcn => (vec![in_width, out_width], None),
                ModelKind::Gat => {
                    let is_last = index + 1 == n_layers;
                    let all = if is_last { self.n_output_heads } else { 1 };
                    let all = all.saturating_mul(out_width);
                    (vec![in_width, all], Some(vec![all]))
                }
            };
            let named = |name: &str, shape| (format!("layers.{index}.{name}"), shape);
            let attention = ["attention_source", "attention_destination"]
                .map(|name| attention.clone().map(|shape| named(name, shape)));
            let (first, last) = (named("weight", weight), named("bias", vec![out_width]));
            let of_norm = NormLayer::names(self.norm(index)).iter();
            let of_norm: Vec<_> = of_norm.map(|name| named(name, vec![out_width])).collect();
            let of_conv = [first].into_iter().chain(attention.into_iter().flatten());
            of_conv.chain([last]).chain(of_norm)
        };
        self.widths.windows(2).enumerate().flat_map(of_layer).collect()
    }

    /// Returns the number of parameters, or the largest number if it is past that.
    #[must_use]
    pub fn n_parameters(&self) -> u64 {
        let product = |n: u64, &width: &usize| n.saturating_mul(width as u64);
        let of_one = |(_, shape): (_, Vec<usize>)| shape.iter().fold(1, product);
        self.shapes().into_iter().map(of_one).fold(0, u64::saturating_add)
    }
}

impl Model {
    /// Returns a model whose parameters are a function of `seed`.
    pub fn new(spec: &ModelSpec, seed: u64) -> Self {
        let n_layers = spec.widths.len() - 1;
        let layer = |(index, widths): (usize, &[usize])| {
            let (in_width, out_width, stream) = (widths[0], widths[1], index as u64);
            let conv = match spec.kind {
                ModelKind::Sage => Conv::Sage(Linear::new(2 * in_width, out_width, seed, stream)),
                ModelKind::Gcn => Conv::Gcn(Linear::new(in_width, out_width, seed, stream)),
                ModelKind::Gat => {
                    let is_last = index + 1 == n_layers;
                    let (n_heads, heads) = match is_last {
                        true => (spec.n_output_heads, Heads::Averaged),
                        false => (spec.n_heads, Heads::Concatenated),
                    };
                    Conv::Gat(Gat::new([in_width, out_width], n_heads, heads, seed, stream))
                }
            };
            let norm = NormLayer::new(spec.norm(index), out_width);
            Layer { conv, norm, is_residual: spec.is_residual(index) }
        };
        let layers = spec.widths.windows(2).enumerate().map(layer).collect();
        Self { layers, dropout: spec.dropout }
    }

    /// Returns all parameters, in a fixed order.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        self.layers.iter().flat_map(Layer::parameters).collect()
    }

    /// Runs all layers on the input rows `features`, with the dropout masks of `dropout_seed`.
    pub fn forward(
        &self,
        hops: Hops<'_>,
        features: Input<'_>,
        dropout_seed: u64,
        workspace: &Workspace,
    ) -> Pass {
        let mut pass = Pass { outputs: Vec::new(), saved: Vec::new() };
        for (index, layer) in self.layers.iter().enumerate() {
            let input = match pass.outputs.last() {
                Some(hidden) => Input::Hidden(hidden),
                None => features,
            };
            let dropout = LayerDropout::new(self.dropout, dropout_seed, index as u64);
            let (output, saved) = layer.forward(hops.of_layer(index), input, dropout, workspace);
            pass.outputs.push(output);
            pass.saved.push(saved);
        }
        pass
    }

    /// Returns the gradients of all parameters, in their order, from that of the logits. Memory
    /// that a layer saved goes back to the workspace once its gradients are known.
    pub fn backward(
        &self,
        mut pass: Pass,
        mut grad: Matrix,
        workspace: &Workspace,
    ) -> Vec<Vec<f32>> {
        let mut gradients = Vec::new();
        pass.outputs.pop().into_iter().for_each(|logits| workspace.give_matrix(logits));
        for layer in self.layers.iter().rev() {
            let (Some(saved), hidden) = (pass.saved.pop(), pass.outputs.pop()) else {
                unreachable!("a pass has a part for each layer")
            };
            let (of_layer, of_hidden) = layer.backward(&saved, &grad, hidden.as_ref(), workspace);
            gradients.push(of_layer);
            saved.give_to(workspace);
            hidden.into_iter().for_each(|hidden| workspace.give_matrix(hidden));
            let of_hidden = of_hidden.unwrap_or_else(|| Matrix::new(Vec::new(), 0));
            workspace.give_matrix(std::mem::replace(&mut grad, of_hidden));
        }
        gradients.into_iter().rev().flatten().collect()
    }
}

impl Pass {
    /// Returns the last layer's output: logits of shape (n_roots, n_classes).
    pub fn logits(&self) -> &Matrix {
        let Some(logits) = self.outputs.last() else { unreachable!("a model has a layer") };
        logits
    }
}

impl<'a> Hops<'a> {
    /// Returns the edges of one layer.
    pub fn of_layer(self, layer: usize) -> Hop<'a> {
        Hop { block: &self.blocks[layer], nodes: self.nodes, degree: self.degree }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_known_before_the_parameters_are_made() {
        for kind in [ModelKind::Sage, ModelKind::Gcn, ModelKind::Gat] {
            for norm in [Norm::None, Norm::Layer] {
                let layer = LayerOptions { norm, residual: true };
                let widths = vec![5, 6, 6, 3];
                let spec =
                    ModelSpec { kind, widths, n_heads: 2, n_output_heads: 4, dropout: 0.0, layer };
                let model = Model::new(&spec, 1);
                let shapes = model.parameters().into_iter().map(|of| of.shape().to_vec());
                let expected: Vec<_> = spec.shapes().into_iter().map(|(_, shape)| shape).collect();
                assert_eq!(expected, shapes.collect::<Vec<_>>(), "{kind} {norm}");
                let are_residual: Vec<bool> =
                    model.layers.iter().map(|of| of.is_residual).collect();
                assert_eq!(are_residual, [false, true, false]);
            }
        }
    }

    /// Model files name parameters so, those of earlier releases too.
    #[test]
    fn parameters_have_the_names_of_the_file() {
        let layer = LayerOptions { norm: Norm::Layer, ..LayerOptions::default() };
        let names = |kind, widths| {
            let spec =
                ModelSpec { kind, widths, n_heads: 1, n_output_heads: 1, dropout: 0.0, layer };
            spec.shapes().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let mut of_gat = ["weight", "attention_source", "attention_destination", "bias"].to_vec();
        of_gat.extend(["norm_weight", "norm_bias"]);
        let of_gat: Vec<String> = of_gat.iter().map(|name| format!("layers.0.{name}")).collect();
        assert_eq!(names(ModelKind::Gat, vec![5, 6, 3])[..6], of_gat);
        for kind in [ModelKind::Sage, ModelKind::Gcn] {
            assert_eq!(names(kind, vec![5, 3]), ["layers.0.weight", "layers.0.bias"]);
        }
    }

    #[test]
    fn each_layer_of_a_pass_drops_by_its_own_number() {
        let (offsets, sources) = (vec![0, 2, 3, 5, 6], vec![1, 2, 3, 0, 1, 2]);
        let block = Arc::new(Block { n_src: 4, n_dst: 4, offsets, sources });
        let nodes: Vec<_> = [8, 3, 5, 1].map(NodeId).to_vec();
        let blocks = [Arc::clone(&block), block];
        let hops = Hops { blocks: &blocks, nodes: &nodes, degree: &|_| 2 };
        let x: Vec<f32> = (0..24).map(|i| i as f32 * 0.1).collect();
        for kind in [ModelKind::Sage, ModelKind::Gcn, ModelKind::Gat] {
            let widths = vec![6, 6, 6];
            let layer = LayerOptions::default();
            let spec =
                ModelSpec { kind, widths, n_heads: 2, n_output_heads: 2, dropout: 0.5, layer };
            let model = Model::new(&spec, 1);
            let workspace = Workspace::default();
            let logits = |numbers: [u64; 2]| {
                let dropout = numbers.map(|number| LayerDropout::new(0.5, 9, number));
                let input = Input::Features { x: &x, width: 6 };
                let first =
                    model.layers[0].forward(hops.of_layer(0), input, dropout[0], &workspace);
                let (hidden, _) = first;
                let input = Input::Hidden(&hidden);
                let second =
                    model.layers[1].forward(hops.of_layer(1), input, dropout[1], &workspace);
                second.0.into_values()
            };
            let input = Input::Features { x: &x, width: 6 };
            let pass = model.forward(hops, input, 9, &workspace);
            assert_eq!(pass.logits().values(), logits([0, 1]), "{kind}");
            assert_ne!(pass.logits().values(), logits([0, 0]), "{kind}");
            assert_ne!(pass.logits().values(), logits([1, 1]), "{kind}");
        }
    }
}
