//! A model with the state of its optimiser.

use candle_core::Result;

use crate::{
    TrainConfig,
    adam::{Adam, AdamState},
    model::Model,
};

/// A model and its optimiser. Mini-batch training has one, which all workers share: its gradients
/// are those of all of them.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) model: Model,
    pub(crate) adam: Adam,
}

/// Everything that later steps of a replica depend on: parameters and moments, and how many updates
/// there were.
pub(crate) type ReplicaState = AdamState;

impl Replica {
    /// Returns a replica of `model`, which has had no update.
    pub(crate) fn new(model: &Model, config: &TrainConfig) -> Result<Self> {
        let adam = Adam::new(model.parameters(), config.learning_rate, config.weight_decay)?;
        Ok(Self { model: model.clone(), adam })
    }
}
