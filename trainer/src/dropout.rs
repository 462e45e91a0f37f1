//! ReLU and dropout in one operation, with a mask that is a function of a seed.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::{random::CounterRandom, spmm::contiguous};

/// Keeps each element with probability `1 - rate` and scales it to keep the mean.
///
/// Which are kept depends on seed, layer and position alone. No state of a process or thread
/// enters, so the same seed gives the same step under every strategy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropout {
    random: CounterRandom,
    /// Of 65 536, how many draws drop an element.
    dropped: u32,
}

/// `max(x, 0)` with dropout; the mask is made again in the backward pass instead of being kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReluDropout(Option<Dropout>);

impl Dropout {
    /// Dropout of one layer in one step; `rate` in [0, 1), and none for 0.
    #[must_use]
    pub(crate) fn new(rate: f32, seed: u64, layer: u64) -> Option<Self> {
        debug_assert!((0.0..1.0).contains(&rate));
        let dropped = (rate * 65_536.0) as u32;
        (dropped > 0).then(|| Self { random: CounterRandom::new(seed, layer), dropped })
    }

    /// Drops elements of `values`.
    pub(crate) fn apply(self, values: &mut [f32]) {
        let scale = 65_536.0 / (65_536 - self.dropped) as f32;
        self.random.for_each_lane(values, |value, draw| {
            *value *= if u32::from(draw) < self.dropped { 0.0 } else { scale };
        });
    }
}

impl ReluDropout {
    /// ReLU, then `dropout` if there is any.
    pub(crate) fn new(dropout: Option<Dropout>) -> Self {
        Self(dropout)
    }

    /// Applies the operation; gradients pass through.
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        x.contiguous()?.apply_op1(*self)
    }

    fn drop(self, values: &mut [f32]) {
        if let Some(dropout) = self.0 {
            dropout.apply(values);
        }
    }
}

impl CustomOp1 for ReluDropout {
    fn name(&self) -> &'static str {
        "relu-dropout"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        // Not `x.max(0.0)`: it would turn NaN into 0 and hide that training has diverged.
        let relu = |&x: &f32| if x < 0.0 { 0.0 } else { x };
        let mut out: Vec<f32> = contiguous(storage, layout)?.iter().map(relu).collect();
        self.drop(&mut out);
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let x = arg.flatten_all()?.to_vec1::<f32>()?;
        let mut grad = grad.flatten_all()?.to_vec1::<f32>()?;
        for (grad, x) in grad.iter_mut().zip(x) {
            *grad = if x > 0.0 { *grad } else { 0.0 };
        }
        self.drop(&mut grad);
        Tensor::from_vec(grad, arg.shape(), arg.device()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    fn op(rate: f32, seed: u64, layer: u64) -> ReluDropout {
        ReluDropout::new(Dropout::new(rate, seed, layer))
    }

    #[test]
    fn keeps_the_mean_and_zeroes_the_rate() {
        let n = 100_000;
        let x = Tensor::ones(n, candle_core::DType::F32, &Device::Cpu).unwrap();
        let apply = |op: ReluDropout| op.apply(&x).unwrap().to_vec1::<f32>().unwrap();
        let out = apply(op(0.3, 1, 0));
        let zeros = out.iter().filter(|&&v| v == 0.0).count() as f32 / n as f32;
        assert!((zeros - 0.3).abs() < 0.01, "{zeros}");
        assert!(out.iter().all(|&v| v == 0.0 || (v - 1.0 / 0.7).abs() < 1e-4));
        assert_ne!(out, apply(op(0.3, 1, 1)));
        assert_ne!(out, apply(op(0.3, 2, 0)));
        assert_eq!(out, apply(op(0.3, 1, 0)));
    }

    #[test]
    fn gradient_uses_the_mask_of_the_forward_pass() {
        let x: Vec<f32> = (0..203).map(|i| if i % 3 == 0 { -1.0 } else { 2.0 }).collect();
        let var = Var::from_vec(x.clone(), 203, &Device::Cpu).unwrap();
        let out = op(0.5, 9, 0).apply(&var).unwrap();
        let grads = out.sum_all().unwrap().backward().unwrap();
        let grad = grads.get(&var).unwrap().to_vec1::<f32>().unwrap();
        for ((x, out), grad) in x.iter().zip(out.to_vec1::<f32>().unwrap()).zip(grad) {
            assert_eq!(grad, if *x > 0.0 { out / x } else { 0.0 });
        }
    }

    #[test]
    fn without_dropout_it_is_relu_and_shows_nan() {
        let x = Tensor::new(&[-1.0f32, 0.0, 2.5, f32::NAN], &Device::Cpu).unwrap();
        let out = op(0.0, 0, 0).apply(&x).unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(out[..3], [0.0, 0.0, 2.5]);
        assert!(out[3].is_nan());
    }
}
