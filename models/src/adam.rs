//! The Adam optimiser (Kingma and Ba 2015, algorithm 1) and AdamW (Loshchilov and Hutter 2019,
//! algorithm 2) over averaged gradients.

use rayon::prelude::*;

use crate::options::Optimizer;
use crate::parameter::Parameter;

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPSILON: f32 = 1e-8;

/// Elements that one thread updates at a time.
const ELEMENTS_PER_TASK: usize = 1 << 16;

/// Elements of a parameter, their gradients, means and variances.
type Piece<'p> = (((&'p mut [f32], &'p [f32]), &'p mut [f32]), &'p mut [f32]);

/// Adam with weight decay added to the gradient, as the published GraphSAGE and GCN results use it,
/// or AdamW. Each element by itself, so that the result does not depend on threads.
#[derive(Debug)]
pub struct Adam {
    parameters: Vec<Updated>,
    optimizer: Optimizer,
    weight_decay: f32,
    /// Updates so far.
    pub n_steps: u32,
}

/// Everything that later steps of a replica depend on. Lists are flat, one per parameter, in the
/// order of [`Adam::new`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaState {
    /// Updates so far.
    pub n_steps: u32,
    /// The parameters.
    pub values: Vec<Vec<f32>>,
    /// Running means of gradients.
    pub means: Vec<Vec<f32>>,
    /// Running means of squared gradients.
    pub variances: Vec<Vec<f32>>,
}

/// A parameter and its moments, all of one length.
#[derive(Debug)]
struct Updated {
    parameter: Parameter,
    mean: Vec<f32>,
    variance: Vec<f32>,
}

impl Adam {
    /// Returns an optimiser of `parameters`, with their present values.
    pub fn new(parameters: Vec<Parameter>, optimizer: Optimizer, weight_decay: f32) -> Self {
        let updated = |parameter: Parameter| {
            let n_elements = parameter.n_elements();
            let mean = vec![0.0; n_elements];
            let variance = vec![0.0; n_elements];
            Updated { parameter, mean, variance }
        };
        let parameters = parameters.into_iter().map(updated).collect();
        Self { parameters, optimizer, weight_decay, n_steps: 0 }
    }

    /// Returns the parameters, one flat list each, in the order of `new`.
    pub fn values(&self) -> Vec<Vec<f32>> {
        self.parameters.iter().map(|updated| updated.parameter.read().to_vec()).collect()
    }

    /// Returns the number of elements of each parameter.
    pub fn lengths(&self) -> Vec<usize> {
        self.parameters.iter().map(|updated| updated.parameter.n_elements()).collect()
    }

    /// Returns all that later steps depend on.
    pub fn state(&self) -> ReplicaState {
        ReplicaState {
            n_steps: self.n_steps,
            values: self.values(),
            means: self.parameters.iter().map(|updated| updated.mean.clone()).collect(),
            variances: self.parameters.iter().map(|updated| updated.variance.clone()).collect(),
        }
    }

    /// Goes back to `state`, of an optimiser of the same parameters.
    pub fn restore(&mut self, state: ReplicaState) {
        self.n_steps = state.n_steps;
        let moments = state.means.into_iter().zip(state.variances);
        for (updated, (mean, variance)) in self.parameters.iter_mut().zip(moments) {
            updated.mean = mean;
            updated.variance = variance;
        }
        self.set_values(&state.values);
    }

    /// Replaces the parameters, one flat list each; moments stay.
    pub fn set_values(&mut self, values: &[Vec<f32>]) {
        for (updated, values) in self.parameters.iter().zip(values) {
            updated.parameter.set(values);
        }
    }

    /// Makes one update. `gradients` has one flat list per parameter, in the order of `new`.
    pub fn step(&mut self, gradients: &[Vec<f32>], learning_rate: f64) {
        self.n_steps = self.n_steps.saturating_add(1);
        let n_steps = i32::try_from(self.n_steps).unwrap_or(i32::MAX);
        let correction1 = 1.0 - BETA1.powi(n_steps);
        let correction2 = 1.0 - BETA2.powi(n_steps);
        let rate = (learning_rate / correction1) as f32;
        let root_correction = correction2.sqrt() as f32;
        let (beta1, beta2) = (BETA1 as f32, BETA2 as f32);
        let shrink = (learning_rate * f64::from(self.weight_decay)) as f32;
        for (updated, gradient) in self.parameters.iter_mut().zip(gradients) {
            let Updated { parameter, mean, variance } = updated;
            let mut values = parameter.write();
            let (optimizer, weight_decay) = (self.optimizer, self.weight_decay);
            let update = |(((values, gradient), mean), variance): Piece<'_>| {
                let moments = mean.iter_mut().zip(variance);
                for ((value, &gradient), (mean, variance)) in
                    values.iter_mut().zip(gradient).zip(moments)
                {
                    let gradient = match optimizer {
                        Optimizer::Adam => gradient + weight_decay * *value,
                        Optimizer::AdamW => {
                            *value -= shrink * *value;
                            gradient
                        }
                    };
                    *mean = beta1 * *mean + (1.0 - beta1) * gradient;
                    *variance = beta2 * *variance + (1.0 - beta2) * gradient * gradient;
                    *value -= rate * *mean / (variance.sqrt() / root_correction + EPSILON);
                }
            };
            if values.len() <= ELEMENTS_PER_TASK {
                update((((&mut values, gradient), mean), variance));
            } else {
                let n = ELEMENTS_PER_TASK;
                let pieces = values.par_chunks_mut(n).zip(gradient.par_chunks(n));
                let pieces = pieces.zip(mean.par_chunks_mut(n)).zip(variance.par_chunks_mut(n));
                pieces.for_each(update);
            }
        }
    }
}

/// Scales `gradients` so that the Euclidean norm of all together is at most `limit`.
pub fn clip(gradients: &mut [Vec<f32>], limit: f32) {
    let squares = gradients.iter().flatten().map(|&gradient| f64::from(gradient).powi(2));
    let scale = f64::from(limit) / squares.sum::<f64>().sqrt();
    if scale < 1.0 {
        for gradient in gradients.iter_mut().flatten() {
            *gradient *= scale as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Optimizer; 2] = [Optimizer::Adam, Optimizer::AdamW];

    fn vector(values: &[f32]) -> Parameter {
        Parameter::new(values.to_vec(), &[values.len()])
    }

    fn optimizer(parameter: &Parameter, optimizer: Optimizer) -> Adam {
        Adam::new(vec![parameter.clone()], optimizer, 0.5)
    }

    #[test]
    fn first_steps_agree_with_the_formulas() {
        for kind in BOTH {
            let parameter = vector(&[1.0, -2.0]);
            let mut adam = optimizer(&parameter, kind);
            let mut expected = [1.0f64, -2.0];
            let (mut mean, mut variance) = ([0.0; 2], [0.0; 2]);
            for (t, rate) in [(1, 0.1), (2, 0.1), (3, 0.05)] {
                adam.step(&[vec![0.3, -0.1]], rate);
                for i in 0..2 {
                    let mut g = [0.3, -0.1][i];
                    match kind {
                        Optimizer::Adam => g += 0.5 * expected[i],
                        Optimizer::AdamW => expected[i] *= 1.0 - rate * 0.5,
                    }
                    mean[i] = 0.9 * mean[i] + 0.1 * g;
                    variance[i] = 0.999 * variance[i] + 0.001 * g * g;
                    let m = mean[i] / (1.0 - 0.9f64.powi(t));
                    let v: f64 = variance[i] / (1.0 - 0.999f64.powi(t));
                    expected[i] -= rate * m / (v.sqrt() + 1e-8);
                }
            }
            for (found, expected) in parameter.read().iter().zip(expected) {
                assert!((f64::from(*found) - expected).abs() < 1e-5, "{kind}: {found} {expected}");
            }
        }
    }

    #[test]
    fn continues_from_a_state_as_if_it_had_never_stopped() {
        let parameter = || vector(&[1.0, -2.0, 0.5]);
        let gradients = |t: u32| vec![vec![0.3 * t as f32, -0.1, 0.2 / t as f32]];
        for kind in BOTH {
            let mut straight = optimizer(&parameter(), kind);
            (1..=5).for_each(|t| straight.step(&gradients(t), 0.1));
            for stop in 0..5 {
                let mut before = optimizer(&parameter(), kind);
                (1..=stop).for_each(|t| before.step(&gradients(t), 0.1));
                let of_after = parameter();
                let mut after = optimizer(&of_after, kind);
                after.restore(before.state());
                assert_eq!(*of_after.read(), before.values()[0]);
                (stop + 1..=5).for_each(|t| after.step(&gradients(t), 0.1));
                assert_eq!(after.state(), straight.state());
                assert_eq!(*of_after.read(), straight.values()[0]);
            }
        }
    }

    #[test]
    fn a_large_parameter_is_updated_as_small_ones_are() {
        let random = crate::random::CounterRandom::new(3, 1);
        let n = 3 * ELEMENTS_PER_TASK + 77;
        let values = |first: u64| -> Vec<f32> {
            (first..first + n as u64).map(|i| random.unit(i) - 0.5).collect()
        };
        for kind in BOTH {
            let start = values(0);
            let whole = vector(&start);
            let pieces: Vec<Parameter> = start.chunks(1000).map(vector).collect();
            let mut of_whole = optimizer(&whole, kind);
            let mut of_pieces = Adam::new(pieces, kind, 0.5);
            for step in 1..3 {
                let gradient = values(step * n as u64);
                let of_each: Vec<Vec<f32>> = gradient.chunks(1000).map(<[f32]>::to_vec).collect();
                of_whole.step(&[gradient], 0.1);
                of_pieces.step(&of_each, 0.1);
            }
            let (found, expected) = (of_whole.state(), of_pieces.state());
            assert_ne!(found.values[0], start);
            assert!(found.values[0] == expected.values.concat(), "{kind}");
            assert!(found.means[0] == expected.means.concat(), "{kind}");
            assert!(found.variances[0] == expected.variances.concat(), "{kind}");
            assert!(*whole.read() == found.values[0], "{kind}");
        }
    }

    #[test]
    fn clipping_bounds_the_norm_of_all_lists_together() {
        let gradients = [vec![3.0f32, 0.0], vec![0.0, -4.0]];
        let clipped = |limit| {
            let mut clipped = gradients.clone();
            clip(&mut clipped, limit);
            clipped
        };
        for within in [5.0, 6.0, f32::MAX] {
            assert_eq!(clipped(within), gradients, "{within}");
        }
        assert_eq!(clipped(2.5), [vec![1.5, 0.0], vec![0.0, -2.0]]);
        let mut zeros = gradients.clone().map(|list| vec![0.0; list.len()]);
        clip(&mut zeros, 1.0);
        assert!(zeros.iter().flatten().all(|gradient| *gradient == 0.0));
    }
}
