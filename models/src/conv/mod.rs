//! The convolution of one layer, of any kind: a call with its own vector-Jacobian product.

pub mod gat;
mod weights;

use std::sync::Arc;

use lodestore_graph::{NodeId, batch::Block};

use crate::{
    linear::Linear,
    matrix::Matrix,
    matrix::dropout::{Activation, Dropout, Mask},
    matrix::sparse::{Rows, SparseRows},
    matrix::spmm::Spmm,
    matrix::workspace::Workspace,
    parameter::Parameter,
};

use gat::{Attended, Gat};

/// Dropout of coefficients has streams of its own.
const ATTENTION_STREAM: u64 = 1 << 32;

/// A convolution and its parameters.
///
/// GraphSAGE and GCN aggregate first and transform after, `(A·X)·W`: blocks have several times
/// fewer destinations than sources, so the matrix product gets the smaller side. Attention needs
/// transformed rows, so GAT transforms first.
#[derive(Clone, Debug)]
pub enum Conv {
    /// GraphSAGE: weights of own rows above those of means of neighbours' rows.
    Sage(Linear),
    /// Graph convolution.
    Gcn(Linear),
    /// Graph attention.
    Gat(Gat),
}

/// The edges that one layer's messages take.
#[derive(Clone, Copy)]
pub struct Hop<'a> {
    /// Edges between the places of nodes.
    pub block: &'a Arc<Block>,
    /// At least the block's sources.
    pub nodes: &'a [NodeId],
    /// In-degrees in the whole graph.
    pub degree: &'a dyn Fn(NodeId) -> u32,
}

/// The rows of the block's sources.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Those of the first layer, which need no gradient.
    Features {
        /// All elements, row by row.
        x: &'a [f32],
        /// Elements of a row.
        width: usize,
    },
    /// The same where they are mostly zeros.
    Sparse(&'a SparseRows),
    /// The output of the layer before, still without its activation.
    Hidden(&'a Matrix),
}

/// Values that a convolution's backward pass needs from its forward pass.
#[derive(Debug)]
pub(crate) enum Convolved {
    /// The aggregated rows, and the mask of the rows before or, of features, after.
    Aggregated { step: Spmm, rows: Rows, mask: Option<Mask> },
    /// The rows that were projected, their mask, and what attention keeps.
    Attended { rows: Rows, attended: Box<Attended>, mask: Option<Mask> },
}

/// Elements that a layer drops in one step.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerDropout {
    /// Elements of what the layer transforms or aggregates.
    pub rows: Option<Dropout>,
    /// Attention coefficients.
    pub coefficients: Option<Dropout>,
}

impl LayerDropout {
    /// Returns the dropout of layer `layer` in the step of `seed`.
    pub fn new(rate: f32, seed: u64, layer: u64) -> Self {
        let of_stream = |stream| Dropout::new(rate, seed, stream);
        Self { rows: of_stream(layer), coefficients: of_stream(ATTENTION_STREAM | layer) }
    }

    /// Returns the mask of the rows of `nodes`.
    pub fn of_rows(&self, nodes: &[NodeId]) -> Option<Mask> {
        self.rows.map(|dropout| dropout.mask(nodes.iter().map(|node| node.0.into())))
    }
}

impl Conv {
    /// Returns all parameters, in a fixed order.
    pub fn parameters(&self) -> Vec<Parameter> {
        match self {
            Self::Sage(linear) | Self::Gcn(linear) => {
                vec![linear.weight().clone(), linear.bias.clone()]
            }
            Self::Gat(gat) => gat.parameters().map(Parameter::clone).to_vec(),
        }
    }

    /// Returns the width of the layer's rows.
    pub fn out_width(&self) -> usize {
        match self {
            Self::Sage(linear) | Self::Gcn(linear) => linear.bias.width(),
            Self::Gat(gat) => gat.parameters()[3].width(),
        }
    }

    /// Returns the output for the block's destinations, and what the backward pass needs.
    pub(crate) fn forward(
        &self,
        hop: Hop<'_>,
        input: Input<'_>,
        dropout: LayerDropout,
        workspace: &Workspace,
    ) -> (Matrix, Convolved) {
        match self {
            Self::Sage(linear) => {
                let mask = hop.mask_of(input, dropout);
                convolve(linear, hop.mean(), input, mask, workspace)
            }
            Self::Gcn(linear) => {
                let mask = hop.mask_of(input, dropout);
                convolve(linear, hop.normalised(), input, mask, workspace)
            }
            Self::Gat(gat) => {
                let mask = dropout.of_rows(hop.sources());
                let rows = match input {
                    Input::Features { x, width } => {
                        let mut rows = workspace.copy(x);
                        mask.iter().for_each(|mask| mask.apply(&mut rows));
                        Rows::Dense(Matrix::new(rows, width))
                    }
                    Input::Sparse(x) => Rows::Sparse(match &mask {
                        Some(mask) => x.dropped(mask),
                        None => x.clone(),
                    }),
                    Input::Hidden(hidden) => {
                        let rows =
                            Activation::Elu.forward(hidden.values(), mask.as_ref(), workspace);
                        Rows::Dense(Matrix::new(rows, hidden.width()))
                    }
                };
                let z = gat.projection.forward(&rows, workspace);
                let (out, attended) = gat.attend(hop, z, dropout.coefficients);
                (out, Convolved::Attended { rows, attended: Box::new(attended), mask })
            }
        }
    }

    /// Returns the vector-Jacobian product, from the gradient of the layer's output. It has the
    /// gradients of the parameters, in their order, and that of the `hidden` rows that the layer
    /// received.
    pub(crate) fn backward(
        &self,
        saved: &Convolved,
        grad: &Matrix,
        hidden: Option<&Matrix>,
        workspace: &Workspace,
    ) -> (Vec<Vec<f32>>, Option<Matrix>) {
        match (self, saved) {
            (
                Self::Sage(linear) | Self::Gcn(linear),
                Convolved::Aggregated { step, rows, mask },
            ) => {
                let gradients = linear.gradients(rows, grad);
                let of_hidden = |hidden: &Matrix| {
                    let of_rows = linear.projection.row_gradient(grad, workspace);
                    let of_x = step.transposed_product(of_rows.values(), hidden.width(), workspace);
                    workspace.give_matrix(of_rows);
                    through(Activation::Relu, of_x, hidden, mask.as_ref())
                };
                (gradients, hidden.map(of_hidden))
            }
            (Self::Gat(gat), Convolved::Attended { rows, attended, mask }) => {
                let (gradients, of_z) = gat.gradients(attended, rows, grad);
                let of_hidden = |hidden: &Matrix| {
                    let of_rows = gat.projection.row_gradient(&of_z, workspace);
                    through(Activation::Elu, of_rows.into_values(), hidden, mask.as_ref())
                };
                (gradients, hidden.map(of_hidden))
            }
            _ => unreachable!("a layer gets back what its own kind of layer saved"),
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
    pub fn entry_keys(&self) -> impl Iterator<Item = u64> {
        let edges = self.block.offsets.windows(2).zip(0..);
        edges.flat_map(|(bounds, dst)| {
            let sources = &self.block.sources[bounds[0] as usize..bounds[1] as usize];
            let id = |at: u32| u64::from(self.nodes[at as usize].0);
            sources.iter().copied().chain([dst]).map(move |source| (id(dst) << 32) | id(source))
        })
    }

    /// Returns the mask of a convolution's input: that of the rows themselves or, for features,
    /// that of the aggregated rows.
    fn mask_of(&self, input: Input<'_>, dropout: LayerDropout) -> Option<Mask> {
        let nodes = match input {
            Input::Hidden(_) => self.sources(),
            Input::Features { .. } | Input::Sparse(_) => self.destinations(),
        };
        dropout.of_rows(nodes)
    }

    /// Returns GraphSAGE's step.
    pub(crate) fn mean(&self) -> Spmm {
        weights::mean(Arc::clone(self.block))
    }

    /// Returns GCN's step.
    pub(crate) fn normalised(&self) -> Spmm {
        weights::normalised(Arc::clone(self.block), self.nodes, self.degree)
    }
}

/// Returns the aggregated rows of `x`, whose rows have `width`.
pub(crate) fn product(step: &Spmm, x: &[f32], width: usize, workspace: &Workspace) -> Matrix {
    Matrix::new(step.product(x, width, workspace), step.out_width(width))
}

/// Aggregates by `step`, then transforms.
fn convolve(
    linear: &Linear,
    step: Spmm,
    input: Input<'_>,
    mask: Option<Mask>,
    workspace: &Workspace,
) -> (Matrix, Convolved) {
    let rows = match input {
        Input::Features { x, width } => {
            let mut rows = product(&step, x, width, workspace);
            mask.iter().for_each(|mask| mask.apply(rows.values_mut()));
            Rows::Dense(rows)
        }
        Input::Sparse(x) => Rows::Sparse(step.sparse_product(x, mask.as_ref())),
        Input::Hidden(hidden) => {
            let active = Activation::Relu.forward(hidden.values(), mask.as_ref(), workspace);
            let rows = product(&step, &active, hidden.width(), workspace);
            workspace.give(active);
            Rows::Dense(rows)
        }
    };
    let out = linear.forward(&rows, workspace);
    (out, Convolved::Aggregated { step, rows, mask })
}

impl Convolved {
    /// Returns the memory of rows back.
    pub(crate) fn give_to(self, workspace: &Workspace) {
        match self {
            Self::Aggregated { rows, .. } | Self::Attended { rows, .. } => {
                workspace.give_rows(rows);
            }
        }
    }
}

/// Returns the gradient of `hidden` from that of its active rows.
fn through(
    activation: Activation,
    mut grad: Vec<f32>,
    hidden: &Matrix,
    mask: Option<&Mask>,
) -> Matrix {
    activation.backward(hidden.values(), mask, &mut grad);
    Matrix::new(grad, hidden.width())
}

#[cfg(test)]
mod tests;
