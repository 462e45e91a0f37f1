//! A model with the state of its optimiser.

use crate::{
    TrainConfig, TrainError,
    adam::{Adam, AdamState},
    model::Model,
    rate::LearningRate,
};

/// A model and its optimiser. Mini-batch training has one, which all workers share: its gradients
/// are those of all of them.
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

    /// Makes one update by gradients that have been reduced over all workers, so that all
    /// processes clip alike.
    pub(crate) fn update(&mut self, gradients: &mut [Vec<f32>]) -> Result<(), TrainError> {
        if let Some(limit) = self.clip_norm {
            self.adam.clip(gradients, limit);
        }
        let rate = self.rate.at(self.adam.n_steps().into());
        Ok(self.adam.step(gradients, rate)?)
    }
}
