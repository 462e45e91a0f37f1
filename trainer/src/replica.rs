//! A model with the state of its optimiser.

use crate::adam::{Adam, AdamState};
use crate::config::TrainConfig;
use crate::error::TrainError;
use crate::model::Model;
use crate::rate::LearningRate;

/// A model and its optimiser. Mini-batch training has one, which all workers share: its gradients
/// are those of all of them. `sdt` has one for each partition.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) model: Model,
    pub(crate) adam: Adam,
    rate: LearningRate,
    clip_norm: Option<f32>,
}

/// Everything that later steps of a replica depend on: parameters and moments, and how many updates
/// there were.
pub(crate) type ReplicaState = AdamState;

impl Replica {
    /// Returns a replica of `model`, which has had no update, in a run of `n_steps` an epoch.
    pub(crate) fn new(
        model: &Model,
        config: &TrainConfig,
        n_steps: u32,
    ) -> Result<Self, TrainError> {
        let (optimizer, clip_norm) = (config.update.optimizer, config.update.clip_norm);
        let (parameters, are_statistics) = (model.parameters(), model.are_statistics());
        let adam = Adam::new(parameters, are_statistics, optimizer, config.weight_decay)?;
        let rate = LearningRate::new(config, n_steps)?;
        Ok(Self { model: model.clone(), adam, rate, clip_norm })
    }

    /// Replaces the parameters.
    pub(crate) fn set_values(&mut self, values: Vec<Vec<f32>>) -> Result<(), TrainError> {
        Ok(self.adam.set_values(values)?)
    }

    /// Makes one update by gradients that have been reduced over all workers, so that all
    /// processes clip alike.
    pub(crate) fn update(&mut self, gradients: &mut [Vec<f32>]) -> Result<(), TrainError> {
        self.update_at(self.adam.n_steps().into(), gradients)
    }

    /// Makes one update, of step number `step` of the run, whatever the optimiser has counted.
    pub(crate) fn update_at(
        &mut self,
        step: u64,
        gradients: &mut [Vec<f32>],
    ) -> Result<(), TrainError> {
        if let Some(limit) = self.clip_norm {
            self.adam.clip(gradients, limit);
        }
        Ok(self.adam.step(gradients, self.rate.at(step))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelSpec;
    use crate::options::{RateSchedule, UpdateOptions, WarmUp};

    fn replica(update: UpdateOptions) -> Replica {
        let (learning_rate, weight_decay, epochs) = (0.5, 0.0, 2);
        let usual = TrainConfig::default();
        let config = TrainConfig { update, learning_rate, weight_decay, epochs, ..usual };
        let model = Model::new(&ModelSpec::new(&config, 2, 2), 1).unwrap();
        Replica::new(&model, &config, 4).unwrap()
    }

    fn gradients(replica: &Replica, value: f32) -> Vec<Vec<f32>> {
        replica.adam.lengths().into_iter().map(|n| vec![value; n]).collect()
    }

    #[test]
    fn each_update_moves_by_the_rate_of_its_step() {
        let (schedule, warm_up) = (RateSchedule::Cosine, WarmUp::Steps(4));
        let mut replica = replica(UpdateOptions { schedule, warm_up, ..UpdateOptions::default() });
        // Under a constant gradient Adam's update is the rate itself.
        let half = 0.5f64.sqrt() / 2.0;
        for share in [0.25, 0.5, 0.75, 1.0, 1.0, 0.5 + half, 0.5, 0.5 - half] {
            let before = replica.adam.values()[0][0];
            let mut gradients = gradients(&replica, 0.1);
            replica.update(&mut gradients).unwrap();
            let moved = f64::from(before - replica.adam.values()[0][0]);
            assert!((moved - 0.5 * share).abs() < 1e-4, "{moved} {share}");
        }
    }

    #[test]
    fn an_update_takes_the_clipped_gradient() {
        let clip_norm = Some(0.25);
        let mut replica = replica(UpdateOptions { clip_norm, ..UpdateOptions::default() });
        let mut gradients = gradients(&replica, 3.0);
        replica.update(&mut gradients).unwrap();
        let means = replica.adam.state().means;
        let norm = means.iter().flatten().map(|mean| (10.0 * mean).powi(2)).sum::<f32>().sqrt();
        assert!((norm - 0.25).abs() < 1e-5, "{norm}");
    }
}
