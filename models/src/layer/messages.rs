//! A layer in two halves: what each node sends, and what each node makes of it.
//!
//! Rows are transformed first and aggregated after, `A·(X·W)`, where that is narrower; else they
//! are aggregated first. The rows between the halves are those of all nodes.

use crate::{
    conv::{Conv, Hop, product},
    layer::Layer,
    linear::Linear,
    matrix::Matrix,
    matrix::dropout::Activation,
    matrix::sparse::Rows,
    matrix::spmm::add_scaled,
    matrix::workspace::Workspace,
};

impl Layer {
    /// Returns the output for the block's destinations from the messages of its sources, of input
    /// rows of `width`, normalised as in training.
    pub fn combine(&self, hop: Hop<'_>, messages: Matrix, width: usize) -> Matrix {
        // A residual layer is as wide as its rows, so that messages are the rows themselves.
        let own = self.is_residual.then(|| messages.rows(hop.block.n_dst as usize).to_vec());
        let mut out = self.conv.combine(hop, messages, width);
        if let Some(norm) = &self.norm {
            out = norm.evaluate(out);
        }
        own.iter().for_each(|own| add_scaled(out.values_mut(), 1.0, own));
        out
    }
}

impl Conv {
    /// Returns the width of a message for input rows of `width`.
    pub fn message_width(&self, width: usize) -> usize {
        match self {
            Self::Sage(linear) | Self::Gcn(linear) => {
                width.min(self.n_parts() * linear.bias.width())
            }
            Self::Gat(gat) => gat.projection.weight().width(),
        }
    }

    /// Returns the messages of input rows, which have passed the activation.
    pub fn messages(&self, rows: Rows) -> Matrix {
        let workspace = &Workspace::default();
        match self {
            Self::Sage(linear) | Self::Gcn(linear) => match self.transformed(rows.width()) {
                true if self.n_parts() == 2 => {
                    let weight = beside(linear, rows.width());
                    rows.times(weight.view(), workspace)
                }
                true => rows.times(linear.weight().read().matrix(), workspace),
                false => rows.into_dense(),
            },
            Self::Gat(gat) => gat.projection.forward(&rows, workspace),
        }
    }

    /// Returns the output for the block's destinations from the messages of its sources, of input
    /// rows of `width`.
    fn combine(&self, hop: Hop<'_>, messages: Matrix, width: usize) -> Matrix {
        let (is_transformed, workspace) = (self.transformed(width), &Workspace::default());
        let (linear, step) = match self {
            Self::Gat(gat) => return gat.attend(hop, messages, None).0,
            Self::Sage(linear) => (linear, hop.mean()),
            Self::Gcn(linear) => (linear, hop.normalised()),
        };
        if !is_transformed {
            let rows = Rows::Dense(product(&step, messages.values(), width, workspace));
            return linear.forward(&rows, workspace);
        }
        let out_width = linear.bias.width();
        let out = match self.n_parts() {
            2 => step.product_of_halves(messages.values(), out_width),
            _ => step.product(messages.values(), out_width, workspace),
        };
        let mut out = Matrix::new(out, out_width);
        linear.add_bias(&mut out);
        out
    }

    /// Returns the activation of the rows that come from another layer.
    pub fn activation(&self) -> Activation {
        match self {
            Self::Sage(..) | Self::Gcn(_) => Activation::Relu,
            Self::Gat(_) => Activation::Elu,
        }
    }

    /// Returns the rows that each node sends once transformed: GraphSAGE's own row has weights of
    /// its own.
    fn n_parts(&self) -> usize {
        if matches!(self, Self::Sage(..)) { 2 } else { 1 }
    }

    /// Returns whether messages for input rows of `width` are transformed.
    fn transformed(&self, width: usize) -> bool {
        self.message_width(width) < width
    }
}

/// Returns GraphSAGE's weights of own rows, of `width`, and those of the neighbours' mean beside
/// each other. In the layer the first are above the second.
fn beside(linear: &Linear, width: usize) -> Matrix {
    let out_width = linear.bias.width();
    let own = linear.weight().read_rows(0..width);
    let neighbours = linear.weight().read_rows(width..2 * width);
    let mut values = Vec::with_capacity(2 * width * out_width);
    for (own, neighbours) in own.chunks_exact(out_width).zip(neighbours.chunks_exact(out_width)) {
        values.extend_from_slice(own);
        values.extend_from_slice(neighbours);
    }
    Matrix::new(values, 2 * out_width)
}
