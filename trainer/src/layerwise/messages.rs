//! A layer in two halves: what each node sends, and what each node makes of it.
//!
//! Rows are transformed first and aggregated after, `A·(X·W)`, where that is narrower, else the
//! other way round: the rows between the halves are those of all nodes.

use candle_core::{Result, Tensor};

use crate::{
    dropout::Activation,
    layer::{Hop, Layer},
    linear::Linear,
    matrix::Matrix,
    sparse::Rows,
};

impl Layer {
    /// Returns the width of a message for input rows of `width`.
    pub(super) fn message_width(&self, width: usize) -> Result<usize> {
        Ok(match self {
            Self::Sage(linear) | Self::Gcn(linear) => width.min(self.n_parts() * out_of(linear)?),
            Self::Gat(gat) => gat.projection().weight().dim(1)?,
        })
    }

    /// Returns the messages of input rows, which have passed the activation.
    pub(super) fn messages(&self, rows: Rows) -> Result<Matrix> {
        match self {
            Self::Sage(linear) | Self::Gcn(linear) => match self.transformed(rows.width())? {
                // The own row's weights are above those of the neighbours' mean.
                true if self.n_parts() == 2 => {
                    let (weight, width) = (linear.weight(), rows.width());
                    let halves = [weight.narrow(0, 0, width)?, weight.narrow(0, width, width)?];
                    rows.times(&Tensor::cat(&halves, 1)?)
                }
                true => rows.times(linear.weight()),
                false => Ok(rows.into_dense()),
            },
            Self::Gat(gat) => gat.projection().forward(&rows),
        }
    }

    /// Returns the output for the block's destinations from the messages of its sources, of input
    /// rows of `width`.
    pub(super) fn combine(&self, hop: Hop<'_>, messages: Matrix, width: usize) -> Result<Matrix> {
        let is_transformed = self.transformed(width)?;
        let (linear, step) = match self {
            Self::Gat(gat) => return Ok(gat.attend(hop, messages, None)?.0),
            Self::Sage(linear) => (linear, hop.mean()),
            Self::Gcn(linear) => (linear, hop.normalised()),
        };
        if !is_transformed {
            let rows = step.product(messages.values(), width);
            return linear.forward(&Rows::Dense(Matrix::new(rows, step.out_width(width))));
        }
        let out_width = out_of(linear)?;
        let out = match self.n_parts() {
            2 => step.product_of_halves(messages.values(), out_width),
            _ => step.product(messages.values(), out_width),
        };
        let mut out = Matrix::new(out, out_width);
        linear.add_bias(&mut out)?;
        Ok(out)
    }

    /// Returns the activation of the rows that come from another layer.
    pub(crate) fn activation(&self) -> Activation {
        match self {
            Self::Sage(_) | Self::Gcn(_) => Activation::Relu,
            Self::Gat(_) => Activation::Elu,
        }
    }

    /// Rows that each node sends once transformed: GraphSAGE's own row has weights of its own.
    fn n_parts(&self) -> usize {
        if matches!(self, Self::Sage(_)) { 2 } else { 1 }
    }

    /// Returns whether messages for input rows of `width` are transformed.
    fn transformed(&self, width: usize) -> Result<bool> {
        Ok(self.message_width(width)? < width)
    }
}

fn out_of(linear: &Linear) -> Result<usize> {
    linear.weight().dim(1)
}
