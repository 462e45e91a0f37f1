//! The dense part of a layer.

use candle_core::{
    CpuStorage, CustomOp2, DType, Device, Layout, Result, Shape, Tensor, Var,
    backend::BackendStorage,
};

use crate::random::CounterRandom;

/// `x · weight`.
#[derive(Clone, Debug)]
pub(crate) struct Projection(Var);

/// `x · weight + bias`.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    projection: Projection,
    bias: Var,
}

impl Projection {
    /// From `in_width` to `out_width`, with Glorot-uniform weights, a function of `seed` and
    /// `layer`.
    pub(crate) fn new(in_width: usize, out_width: usize, seed: u64, layer: u64) -> Result<Self> {
        let weights = glorot([in_width, out_width], in_width * out_width, seed, layer);
        Var::from_vec(weights, (in_width, out_width), &Device::Cpu).map(Self)
    }

    /// The output of shape (n, out_width) for `x` of shape (n, in_width).
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.0)
    }

    /// The same for rows that need no gradient, such as input features: candle would compute
    /// that gradient all the same, at the price of the forward pass.
    pub(crate) fn forward_constant(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op2(self.0.as_tensor(), ConstantTimes)
    }

    /// The weights, of shape (in_width, out_width).
    #[must_use]
    pub(crate) fn weight(&self) -> &Var {
        &self.0
    }
}

impl Linear {
    /// A layer from `in_width` to `out_width` with weights as those of [`Projection::new`] and no
    /// bias yet.
    pub(crate) fn new(in_width: usize, out_width: usize, seed: u64, layer: u64) -> Result<Self> {
        let projection = Projection::new(in_width, out_width, seed, layer)?;
        Ok(Self { projection, bias: Var::zeros(out_width, DType::F32, &Device::Cpu)? })
    }

    /// The layer's output of shape (n, out_width) for `x` of shape (n, in_width).
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.projection.forward(x)?.broadcast_add(&self.bias)
    }

    /// The same for rows that need no gradient.
    pub(crate) fn forward_constant(&self, x: &Tensor) -> Result<Tensor> {
        self.projection.forward_constant(x)?.broadcast_add(&self.bias)
    }

    /// The weights, of shape (in_width, out_width).
    #[must_use]
    pub(crate) fn weight(&self) -> &Var {
        self.projection.weight()
    }

    /// The bias, of shape (out_width,).
    #[must_use]
    pub(crate) fn bias(&self) -> &Var {
        &self.bias
    }
}

/// `n` values, uniform within the bound for a map between so many inputs and outputs (Glorot and
/// Bengio 2010, equation 16): a function of `seed` and `stream`.
pub(crate) fn glorot([n_in, n_out]: [usize; 2], n: usize, seed: u64, stream: u64) -> Vec<f32> {
    let bound = (6.0 / (n_in + n_out) as f32).sqrt();
    let random = CounterRandom::new(seed, stream);
    (0..n as u64).map(|i| (random.unit(i) * 2.0 - 1.0) * bound).collect()
}

/// Matrix product whose left side is a constant.
struct ConstantTimes;

impl CustomOp2 for ConstantTimes {
    fn name(&self) -> &'static str {
        "constant-times"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let ((m, k), (k_weight, n)) = (x_layout.shape().dims2()?, weight_layout.shape().dims2()?);
        if k != k_weight {
            candle_core::bail!("rows have {k} elements, the layer expects {k_weight}");
        }
        let product = x.matmul(weight, (1, m, n, k), x_layout, weight_layout)?;
        Ok((product, (m, n).into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        _weight: &Tensor,
        _res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((None, Some(x.t()?.matmul(grad)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_input_changes_nothing_but_the_cost() {
        let layer = Linear::new(5, 3, 1, 0).unwrap();
        let random = CounterRandom::new(2, 0);
        let x: Vec<f32> = (0..20).map(|i| random.unit(i)).collect();
        let x = Tensor::from_vec(x, (4, 5), &Device::Cpu).unwrap();
        let (plain, constant) = (layer.forward(&x).unwrap(), layer.forward_constant(&x).unwrap());
        let values = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(values(&plain), values(&constant));
        let backward = |out: &Tensor| out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let (plain, constant) = (backward(&plain), backward(&constant));
        for var in [layer.weight(), layer.bias()] {
            assert_eq!(values(plain.get(var).unwrap()), values(constant.get(var).unwrap()));
        }
        assert!(constant.get(&x).is_none());
    }

    #[test]
    fn weights_are_a_function_of_seed_and_layer() {
        let weights = |seed, layer| {
            let layer = Linear::new(4, 4, seed, layer).unwrap();
            layer.weight().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!(weights(1, 0), weights(1, 0));
        assert_ne!(weights(1, 0), weights(1, 1));
        assert_ne!(weights(1, 0), weights(2, 0));
    }
}
