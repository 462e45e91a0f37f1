//! An activation and dropout in one operation, with a mask that is a function of keys.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use rayon::prelude::*;

use crate::{
    random::CounterRandom,
    spmm::{ROWS_PER_TASK, contiguous},
};

/// Keeps each element with probability `1 - rate` and scales it to keep the mean.
///
/// An element's draw depends on the step's seed, the layer, the key of its row and its column
/// alone. Rows are keyed by their nodes, so a node drops the same in any batch, worker or place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropout {
    /// The stream of one layer in one step.
    random: CounterRandom,
    /// Of 65 536, how many draws drop an element.
    dropped: u32,
}

/// Dropout of given rows.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    dropout: Dropout,
    /// One key for each row.
    keys: Arc<[u64]>,
}

/// What happens to an element before dropout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// Nothing.
    Identity,
    /// `max(x, 0)`.
    Relu,
    /// `x` where it is positive, `exp(x) - 1` elsewhere (Clevert et al. 2016, equation 15).
    Elu,
}

/// An activation with dropout; the mask is made again in the backward pass instead of being kept.
#[derive(Clone, Debug)]
pub(crate) struct ActivationDropout {
    activation: Activation,
    mask: Option<Mask>,
}

impl Dropout {
    /// Dropout of one layer in one step; `rate` in [0, 1), and none for 0.
    #[must_use]
    pub(crate) fn new(rate: f32, seed: u64, layer: u64) -> Option<Self> {
        debug_assert!((0.0..1.0).contains(&rate));
        let dropped = (rate * 65_536.0) as u32;
        (dropped > 0).then(|| Self { random: CounterRandom::new(seed, layer), dropped })
    }

    /// Returns the mask of rows with these keys.
    pub(crate) fn mask(self, keys: impl Iterator<Item = u64>) -> Mask {
        Mask { dropout: self, keys: keys.collect() }
    }
}

impl Mask {
    /// Drops elements of `values`, rows of equal width.
    pub(crate) fn apply(&self, values: &mut [f32]) {
        let Dropout { random, dropped } = self.dropout;
        let scale = 65_536.0 / (65_536 - dropped) as f32;
        let width = values.len() / self.keys.len().max(1);
        let rows = values.par_chunks_exact_mut(width.max(1)).zip(&*self.keys);
        rows.with_min_len(ROWS_PER_TASK).for_each(|(row, &key)| {
            random.substream(key).for_each_lane(row, |value, draw| {
                *value *= if u32::from(draw) < dropped { 0.0 } else { scale };
            });
        });
    }
}

impl Activation {
    // Not `x.max(0.0)`: it would turn NaN into 0 and hide that training has diverged.
    fn apply(self, x: f32) -> f32 {
        match self {
            Self::Relu if x < 0.0 => 0.0,
            Self::Elu if x < 0.0 => x.exp_m1(),
            _ => x,
        }
    }

    /// The derivative at `x`.
    fn slope(self, x: f32) -> f32 {
        match self {
            Self::Identity => 1.0,
            Self::Relu => f32::from(u8::from(x > 0.0)),
            Self::Elu => {
                if x < 0.0 {
                    x.exp()
                } else {
                    1.0
                }
            }
        }
    }
}

impl ActivationDropout {
    /// `activation`, then dropout by `mask` if there is any.
    pub(crate) fn new(activation: Activation, mask: Option<Mask>) -> Self {
        Self { activation, mask }
    }

    /// Applies the operation; gradients pass through.
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        if self.activation == Activation::Identity && self.mask.is_none() {
            return Ok(x.clone());
        }
        x.contiguous()?.apply_op1(self.clone())
    }

    fn drop(&self, values: &mut [f32]) {
        if let Some(mask) = &self.mask {
            mask.apply(values);
        }
    }
}

impl CustomOp1 for ActivationDropout {
    fn name(&self) -> &'static str {
        "activation-dropout"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = contiguous(storage, layout)?;
        let mut out: Vec<f32> = x.iter().map(|&x| self.activation.apply(x)).collect();
        self.drop(&mut out);
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let x = arg.flatten_all()?.to_vec1::<f32>()?;
        let mut grad = grad.flatten_all()?.to_vec1::<f32>()?;
        for (grad, x) in grad.iter_mut().zip(x) {
            *grad *= self.activation.slope(x);
        }
        self.drop(&mut grad);
        Tensor::from_vec(grad, arg.shape(), arg.device()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    fn op(activation: Activation, rate: f32, seed: u64, layer: u64) -> ActivationDropout {
        let mask = |dropout: Dropout| dropout.mask(0..7);
        ActivationDropout::new(activation, Dropout::new(rate, seed, layer).map(mask))
    }

    #[test]
    fn a_row_has_the_mask_of_its_key_wherever_it_lies() {
        let masks = |keys: &[u64], seed, layer| {
            let mut rows = vec![1.0; 70 * keys.len()];
            Dropout::new(0.5, seed, layer).unwrap().mask(keys.iter().copied()).apply(&mut rows);
            rows.chunks_exact(70).map(<[f32]>::to_vec).collect::<Vec<_>>()
        };
        let (few, many) = (masks(&[7, 3], 1, 0), masks(&[0, 3, 9, 7, 1 << 40], 1, 0));
        assert_eq!((&few[0], &few[1]), (&many[3], &many[1]));
        for (i, row) in many.iter().enumerate() {
            assert!(many[..i].iter().all(|other| other != row), "row {i}");
        }
        // The step's seed and the layer are parts of the key.
        assert_ne!(masks(&[7], 2, 0), masks(&[7], 1, 0));
        assert_ne!(masks(&[7], 1, 1), masks(&[7], 1, 0));
    }

    #[test]
    fn keeps_the_mean_and_zeroes_the_rate() {
        let n = 70_000;
        let x = Tensor::ones(n, candle_core::DType::F32, &Device::Cpu).unwrap();
        let apply = |rate, seed, layer| {
            let op = op(Activation::Relu, rate, seed, layer);
            op.apply(&x).unwrap().to_vec1::<f32>().unwrap()
        };
        let out = apply(0.3, 1, 0);
        let zeros = out.iter().filter(|&&v| v == 0.0).count() as f32 / n as f32;
        assert!((zeros - 0.3).abs() < 0.01, "{zeros}");
        assert!(out.iter().all(|&v| v == 0.0 || (v - 1.0 / 0.7).abs() < 1e-4));
        assert_ne!(out, apply(0.3, 1, 1));
        assert_ne!(out, apply(0.3, 2, 0));
        assert_eq!(out, apply(0.3, 1, 0));
    }

    #[test]
    fn gradient_uses_the_mask_of_the_forward_pass() {
        let x: Vec<f32> = (0..203).map(|i| if i % 3 == 0 { -1.0 } else { 2.0 }).collect();
        let var = Var::from_vec(x.clone(), 203, &Device::Cpu).unwrap();
        for activation in [Activation::Identity, Activation::Relu, Activation::Elu] {
            let out = op(activation, 0.5, 9, 0).apply(&var).unwrap();
            let grads = out.sum_all().unwrap().backward().unwrap();
            let grad = grads.get(&var).unwrap().to_vec1::<f32>().unwrap();
            for ((&x, out), grad) in x.iter().zip(out.to_vec1::<f32>().unwrap()).zip(grad) {
                let slope = match activation {
                    _ if x > 0.0 => 1.0,
                    Activation::Identity => 1.0,
                    Activation::Relu => 0.0,
                    Activation::Elu => (-1f32).exp(),
                };
                // Half of the elements are kept, at twice their value; ReLU shows no mask at x < 0.
                let kept = if out == 0.0 { 0.0 } else { 2.0 };
                assert_eq!(grad, kept * slope, "{activation:?} at {x}");
            }
        }
    }

    #[test]
    fn without_dropout_activations_are_as_published_and_show_nan() {
        let x = Tensor::new(&[-1.0f32, 0.0, 2.5, f32::NAN], &Device::Cpu).unwrap();
        let first = [-1.0, 0.0, (-1f32).exp() - 1.0];
        for (activation, first) in
            [Activation::Identity, Activation::Relu, Activation::Elu].into_iter().zip(first)
        {
            let out = op(activation, 0.0, 0, 0).apply(&x).unwrap().to_vec1::<f32>().unwrap();
            assert!((out[0] - first).abs() < 1e-6, "{activation:?} {}", out[0]);
            assert_eq!(out[1..3], [0.0, 2.5]);
            assert!(out[3].is_nan());
        }
    }
}
