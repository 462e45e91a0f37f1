//! One message-passing layer: a call with its own vector-Jacobian product.
//!
//! The boundary between layers is data. A layer takes plain rows and returns plain rows, and its
//! backward pass takes the gradient of the rows that it returned. Nothing else connects them.

mod messages;

use crate::{
    conv::{Conv, Convolved, Hop, Input, LayerDropout},
    matrix::Matrix,
    matrix::spmm::add_scaled,
    matrix::workspace::Workspace,
    norm::{NormLayer, Normed},
    parameter::Parameter,
};

/// A convolution, perhaps normalised, and perhaps on top of the rows that it was given.
///
/// Its rows are those before their activation: `norm(conv(x)) + x`, as He et al. 2016 (equation 1)
/// and DGL add residuals.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The convolution.
    pub conv: Conv,
    /// The normalisation of its rows.
    pub norm: Option<NormLayer>,
    /// Whether the rows that it is given, after their activation, are added to its own.
    pub is_residual: bool,
}

/// Values that a layer's backward pass needs from its forward pass.
#[derive(Debug)]
pub struct Saved {
    convolved: Convolved,
    normed: Option<Normed>,
}

impl Layer {
    /// Returns all parameters, in a fixed order.
    pub fn parameters(&self) -> Vec<Parameter> {
        let of_norm = self.norm.iter().flat_map(NormLayer::parameters).cloned();
        self.conv.parameters().into_iter().chain(of_norm).collect()
    }

    /// Returns the output for the block's destinations in a training step, and what the backward
    /// pass needs.
    pub fn forward(
        &self,
        hop: Hop<'_>,
        input: Input<'_>,
        dropout: LayerDropout,
        workspace: &Workspace,
    ) -> (Matrix, Saved) {
        let (mut out, convolved) = self.conv.forward(hop, input, dropout, workspace);
        let mut normed = None;
        if let Some(norm) = &self.norm {
            let (rows, saved) = norm.forward(out, workspace);
            (out, normed) = (rows, Some(saved));
        }
        if let (true, Input::Hidden(hidden)) = (self.is_residual, input) {
            let own = &hidden.values()[..out.values().len()];
            let own = self.conv.activation().forward(own, None, workspace);
            add_scaled(out.values_mut(), 1.0, &own);
            workspace.give(own);
        }
        (out, Saved { convolved, normed })
    }

    /// Returns the vector-Jacobian product, from the gradient of the layer's output. It has the
    /// gradients of the parameters, in their order, and that of the `hidden` rows that the layer
    /// received.
    pub fn backward(
        &self,
        saved: &Saved,
        grad: &Matrix,
        hidden: Option<&Matrix>,
        workspace: &Workspace,
    ) -> (Vec<Vec<f32>>, Option<Matrix>) {
        let (mut of_norm, mut of_conv) = (Vec::new(), None);
        if let (Some(norm), Some(normed)) = (&self.norm, &saved.normed) {
            let (of_parameters, of_rows) = norm.gradients(normed, grad, workspace);
            (of_norm, of_conv) = (of_parameters, Some(of_rows));
        }
        let of_out = of_conv.as_ref().unwrap_or(grad);
        let (mut gradients, mut of_hidden) =
            self.conv.backward(&saved.convolved, of_out, hidden, workspace);
        of_conv.into_iter().for_each(|of_conv| workspace.give_matrix(of_conv));
        gradients.append(&mut of_norm);
        if let (true, Some(of_hidden), Some(hidden)) = (self.is_residual, &mut of_hidden, hidden) {
            let mut own = workspace.copy(grad.values());
            self.conv.activation().backward(&hidden.values()[..own.len()], None, &mut own);
            add_scaled(&mut of_hidden.values_mut()[..own.len()], 1.0, &own);
            workspace.give(own);
        }
        (gradients, of_hidden)
    }
}

impl Saved {
    /// Returns the memory of rows back.
    pub(crate) fn give_to(self, workspace: &Workspace) {
        self.convolved.give_to(workspace);
        self.normed.into_iter().for_each(|normed| workspace.give_matrix(normed.into_rows()));
    }
}

#[cfg(test)]
mod tests;
