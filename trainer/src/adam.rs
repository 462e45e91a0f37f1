//! The Adam optimiser (Kingma and Ba 2015, algorithm 1) over averaged gradients.

use candle_core::{Device, Result, Tensor, Var};

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPSILON: f32 = 1e-8;

/// Adam with weight decay added to the gradient, as the published GraphSAGE and GCN results use
/// it; plain loops, so that the result does not depend on threads.
#[derive(Debug)]
pub(crate) struct Adam {
    parameters: Vec<Parameter>,
    learning_rate: f64,
    weight_decay: f32,
    n_steps: u32,
}

/// What a step changes: one flat list per parameter each, in the order of [`Adam::new`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AdamState {
    pub(crate) n_steps: u32,
    pub(crate) values: Vec<Vec<f32>>,
    pub(crate) means: Vec<Vec<f32>>,
    pub(crate) variances: Vec<Vec<f32>>,
}

/// A parameter tensor and its moments, all flat and of one length.
#[derive(Debug)]
struct Parameter {
    var: Var,
    values: Vec<f32>,
    mean: Vec<f32>,
    variance: Vec<f32>,
}

impl Adam {
    /// An optimiser of `parameters`, with their present values.
    pub(crate) fn new(parameters: Vec<Var>, learning_rate: f64, weight_decay: f32) -> Result<Self> {
        let parameters = parameters
            .into_iter()
            .map(|var| {
                let values = var.flatten_all()?.to_vec1::<f32>()?;
                let (mean, variance) = (vec![0.0; values.len()], vec![0.0; values.len()]);
                Ok(Parameter { var, values, mean, variance })
            })
            .collect::<Result<_>>()?;
        Ok(Self { parameters, learning_rate, weight_decay, n_steps: 0 })
    }

    /// The parameters, one flat list each, in the order of `new`.
    pub(crate) fn values(&self) -> Vec<Vec<f32>> {
        self.parameters.iter().map(|parameter| parameter.values.clone()).collect()
    }

    /// Elements of each parameter.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.parameters.iter().map(|parameter| parameter.values.len()).collect()
    }

    /// Updates so far.
    pub(crate) fn n_steps(&self) -> u32 {
        self.n_steps
    }

    /// All that later steps depend on.
    pub(crate) fn state(&self) -> AdamState {
        let moments = |of: fn(&Parameter) -> &Vec<f32>| {
            self.parameters.iter().map(|parameter| of(parameter).clone()).collect()
        };
        let (means, variances) = (moments(|of| &of.mean), moments(|of| &of.variance));
        AdamState { n_steps: self.n_steps, values: self.values(), means, variances }
    }

    /// Goes back to `state`, of an optimiser of the same parameters.
    pub(crate) fn restore(&mut self, state: AdamState) -> Result<()> {
        self.n_steps = state.n_steps;
        let moments = state.means.into_iter().zip(state.variances);
        let lists = state.values.into_iter().zip(moments);
        for (parameter, (values, (mean, variance))) in self.parameters.iter_mut().zip(lists) {
            let var = &parameter.var;
            var.set(&Tensor::from_slice(&values, var.shape(), &Device::Cpu)?)?;
            (parameter.values, parameter.mean, parameter.variance) = (values, mean, variance);
        }
        Ok(())
    }

    /// One update. `gradients` has one flat list per parameter, in the order of `new`.
    pub(crate) fn step(&mut self, gradients: &[Vec<f32>]) -> Result<()> {
        self.n_steps = self.n_steps.saturating_add(1);
        let n_steps = i32::try_from(self.n_steps).unwrap_or(i32::MAX);
        let correction1 = 1.0 - BETA1.powi(n_steps);
        let correction2 = 1.0 - BETA2.powi(n_steps);
        let rate = (self.learning_rate / correction1) as f32;
        let root_correction = correction2.sqrt() as f32;
        let (beta1, beta2) = (BETA1 as f32, BETA2 as f32);
        for (parameter, gradient) in self.parameters.iter_mut().zip(gradients) {
            let Parameter { var, values, mean, variance } = parameter;
            let moments = mean.iter_mut().zip(variance.iter_mut());
            for ((value, &gradient), (mean, variance)) in
                values.iter_mut().zip(gradient).zip(moments)
            {
                let gradient = gradient + self.weight_decay * *value;
                *mean = beta1 * *mean + (1.0 - beta1) * gradient;
                *variance = beta2 * *variance + (1.0 - beta2) * gradient * gradient;
                *value -= rate * *mean / (variance.sqrt() / root_correction + EPSILON);
            }
            var.set(&Tensor::from_slice(values, var.shape(), &Device::Cpu)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_steps_agree_with_the_formula() {
        let var = Var::from_vec(vec![1.0f32, -2.0], 2, &Device::Cpu).unwrap();
        let mut adam = Adam::new(vec![var.clone()], 0.1, 0.5).unwrap();
        let mut expected = [1.0f64, -2.0];
        let (mut mean, mut variance) = ([0.0; 2], [0.0; 2]);
        for t in 1..=3 {
            adam.step(&[vec![0.3, -0.1]]).unwrap();
            for i in 0..2 {
                let g = [0.3, -0.1][i] + 0.5 * expected[i];
                mean[i] = 0.9 * mean[i] + 0.1 * g;
                variance[i] = 0.999 * variance[i] + 0.001 * g * g;
                let m = mean[i] / (1.0 - 0.9f64.powi(t));
                let v: f64 = variance[i] / (1.0 - 0.999f64.powi(t));
                expected[i] -= 0.1 * m / (v.sqrt() + 1e-8);
            }
        }
        for (found, expected) in var.to_vec1::<f32>().unwrap().iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} {expected}");
        }
    }

    #[test]
    fn goes_on_from_a_state_as_if_it_had_never_stopped() {
        let var = || Var::from_vec(vec![1.0f32, -2.0, 0.5], 3, &Device::Cpu).unwrap();
        let gradients = |t: u32| vec![vec![0.3 * t as f32, -0.1, 0.2 / t as f32]];
        let mut straight = Adam::new(vec![var()], 0.1, 0.5).unwrap();
        (1..=5).for_each(|t| straight.step(&gradients(t)).unwrap());
        for stop in 0..5 {
            let mut before = Adam::new(vec![var()], 0.1, 0.5).unwrap();
            (1..=stop).for_each(|t| before.step(&gradients(t)).unwrap());
            let of_after = var();
            let mut after = Adam::new(vec![of_after.clone()], 0.1, 0.5).unwrap();
            after.restore(before.state()).unwrap();
            assert_eq!(of_after.to_vec1::<f32>().unwrap(), before.values()[0]);
            (stop + 1..=5).for_each(|t| after.step(&gradients(t)).unwrap());
            assert_eq!(after.state(), straight.state());
            assert_eq!(of_after.to_vec1::<f32>().unwrap(), straight.values()[0]);
        }
    }
}
