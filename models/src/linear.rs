//! The dense part of a layer.

use crate::{
    matrix::Matrix, matrix::sparse::Rows, matrix::workspace::Workspace, parameter::Parameter,
    random::CounterRandom,
};

/// `x · weight`.
#[derive(Clone, Debug)]
pub struct Projection(Parameter);

/// `x · weight + bias`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// The weights.
    pub projection: Projection,
    /// Shape (out_width,).
    pub bias: Parameter,
}

impl Projection {
    /// Returns a projection from `in_width` to `out_width`, with Glorot-uniform weights, a function
    /// of `seed` and `layer`.
    pub(crate) fn new(in_width: usize, out_width: usize, seed: u64, layer: u64) -> Self {
        let weights = glorot([in_width, out_width], in_width * out_width, seed, layer);
        Self(Parameter::new(weights, &[in_width, out_width]))
    }

    /// Returns `x · weight`.
    pub fn forward(&self, x: &Rows, workspace: &Workspace) -> Matrix {
        x.times(self.0.read().matrix(), workspace)
    }

    /// Returns the gradient of the weights, given that of the output for `x`.
    pub fn weight_gradient(&self, x: &Rows, grad: &Matrix) -> Vec<f32> {
        x.transposed_times(grad)
    }

    /// Returns the gradient of the rows, given that of their output.
    pub fn row_gradient(&self, grad: &Matrix, workspace: &Workspace) -> Matrix {
        grad.times_transposed(self.0.read().matrix(), workspace)
    }

    /// Returns the weights, of shape (in_width, out_width).
    #[must_use]
    pub fn weight(&self) -> &Parameter {
        &self.0
    }
}

impl Linear {
    /// Returns a layer from `in_width` to `out_width` with weights as those of [`Projection::new`],
    /// and a bias of zeros.
    pub(crate) fn new(in_width: usize, out_width: usize, seed: u64, layer: u64) -> Self {
        let projection = Projection::new(in_width, out_width, seed, layer);
        Self { projection, bias: Parameter::zeros(out_width) }
    }

    /// Returns `x · weight + bias`.
    pub fn forward(&self, x: &Rows, workspace: &Workspace) -> Matrix {
        let mut out = self.projection.forward(x, workspace);
        self.add_bias(&mut out);
        out
    }

    /// Adds the bias to every row.
    pub fn add_bias(&self, rows: &mut Matrix) {
        rows.add_to_rows(&self.bias.read());
    }

    /// Returns the gradients of weights and bias, given that of the output for `x`.
    pub fn gradients(&self, x: &Rows, grad: &Matrix) -> Vec<Vec<f32>> {
        vec![self.projection.weight_gradient(x, grad), grad.sum_of_rows()]
    }

    /// Returns the weights, of shape (in_width, out_width).
    #[must_use]
    pub fn weight(&self) -> &Parameter {
        self.projection.weight()
    }
}

/// Draws `n` values, uniform within the bound for a map with these numbers of inputs and outputs
/// (Glorot and Bengio 2010, equation 16). They are a function of `seed` and `stream`.
pub(crate) fn glorot([n_in, n_out]: [usize; 2], n: usize, seed: u64, stream: u64) -> Vec<f32> {
    let bound = (6.0 / (n_in + n_out) as f32).sqrt();
    let random = CounterRandom::new(seed, stream);
    (0..n as u64).map(|i| (random.unit(i) * 2.0 - 1.0) * bound).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_a_function_of_seed_and_layer() {
        let weights = |seed, layer| {
            let layer = Linear::new(4, 4, seed, layer);
            layer.weight().read().to_vec()
        };
        assert_eq!(weights(1, 0), weights(1, 0));
        assert_ne!(weights(1, 0), weights(1, 1));
        assert_ne!(weights(1, 0), weights(2, 0));
    }
}
