//! ReLU and dropout in one operation, with a mask that is a function of a seed.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::{random::CounterRandom, spmm::contiguous};

/// `max(x, 0)`, each element kept with probability `1 - rate` and scaled to keep the mean.
///
/// The mask is computed again in the backward pass instead of being kept. No state of a process
/// or thread enters it, so the same seed gives the same step under every strategy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReluDropout {
    random: CounterRandom,
    rate: f32,
}

impl ReluDropout {
    /// An operation for one layer of one step; `rate` in [0, 1).
    #[must_use]
    pub(crate) fn new(rate: f32, seed: u64, layer: u64) -> Self {
        debug_assert!((0.0..1.0).contains(&rate));
        Self { random: CounterRandom::new(seed, layer), rate }
    }

    /// ReLU alone, as evaluation needs it.
    #[must_use]
    pub(crate) fn without_dropout() -> Self {
        Self::new(0.0, 0, 0)
    }

    /// Applies the operation; gradients pass through.
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        x.contiguous()?.apply_op1(*self)
    }

    /// The factor of element `index`: 0, or 1 / (1 - rate).
    fn factor(&self, index: usize) -> f32 {
        if self.rate == 0.0 || self.random.unit(index as u64) >= self.rate {
            1.0 / (1.0 - self.rate)
        } else {
            0.0
        }
    }
}

impl CustomOp1 for ReluDropout {
    fn name(&self) -> &'static str {
        "relu-dropout"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = contiguous(storage, layout)?;
        // Not `x.max(0.0)`: it would turn NaN into 0 and hide that training has diverged.
        let relu = |x| if x < 0.0 { 0.0 } else { x };
        let out = x.iter().enumerate().map(|(i, &x)| relu(x) * self.factor(i)).collect();
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let (x, grad) = (arg.flatten_all()?.to_vec1::<f32>()?, grad.flatten_all()?);
        let mut grad = grad.to_vec1::<f32>()?;
        for (i, (grad, x)) in grad.iter_mut().zip(x).enumerate() {
            *grad = if x > 0.0 { *grad * self.factor(i) } else { 0.0 };
        }
        Tensor::from_vec(grad, arg.shape(), arg.device()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    #[test]
    fn keeps_the_mean_and_zeroes_the_rate() {
        let n = 100_000;
        let x = Tensor::ones(n, candle_core::DType::F32, &Device::Cpu).unwrap();
        let out = ReluDropout::new(0.3, 1, 0).apply(&x).unwrap().to_vec1::<f32>().unwrap();
        let zeros = out.iter().filter(|&&v| v == 0.0).count() as f32 / n as f32;
        assert!((zeros - 0.3).abs() < 0.01, "{zeros}");
        assert!(out.iter().all(|&v| v == 0.0 || (v - 1.0 / 0.7).abs() < 1e-6));
        assert_ne!(out, ReluDropout::new(0.3, 1, 1).apply(&x).unwrap().to_vec1::<f32>().unwrap());
        assert_ne!(out, ReluDropout::new(0.3, 2, 0).apply(&x).unwrap().to_vec1::<f32>().unwrap());
    }

    #[test]
    fn gradient_uses_the_mask_of_the_forward_pass() {
        let x: Vec<f32> = (0..200).map(|i| if i % 3 == 0 { -1.0 } else { 2.0 }).collect();
        let var = Var::from_vec(x.clone(), 200, &Device::Cpu).unwrap();
        let out = ReluDropout::new(0.5, 9, 0).apply(&var).unwrap();
        let grads = out.sum_all().unwrap().backward().unwrap();
        let grad = grads.get(&var).unwrap().to_vec1::<f32>().unwrap();
        for ((x, out), grad) in x.iter().zip(out.to_vec1::<f32>().unwrap()).zip(grad) {
            assert_eq!(grad, if *x > 0.0 { out / x } else { 0.0 });
        }
    }

    #[test]
    fn without_dropout_it_is_relu() {
        let x = Tensor::new(&[-1.0f32, 0.0, 2.5], &Device::Cpu).unwrap();
        let out = ReluDropout::without_dropout().apply(&x).unwrap();
        assert_eq!(out.to_vec1::<f32>().unwrap(), [0.0, 0.0, 2.5]);
    }
}
