//! The settings of a training run.

use std::path::PathBuf;

use lodestore_graph::{
    PartitionBook,
    sampler::{Deal, Fanout, RootPlan},
};
use lodestore_models::model::MAX_LAYERS;
use serde::Serialize;

use crate::error::{TrainError, check};
use crate::options::{
    LayerOptions, Metric, ModelKind, UpdateOptions, by_name, check_layer_options,
};
use crate::replay::Replay;
pub use crate::strategy::Strategy;
pub use crate::strategy::full::config::{Compression, FullConfig, Halo};
pub use crate::strategy::hop::config::{HopConfig, Merge, Migration};
pub use crate::strategy::massive::MassiveConfig;
pub use crate::strategy::ondemand::config::{OndemandConfig, Sampling};
pub use crate::strategy::rapid::config::{RapidConfig, ScheduleConfig};
pub use crate::strategy::sdt::config::{OptimizerState, SdtConfig};

/// Settings of a run: its training, and the way it gets its rows, which never changes the losses.
#[derive(Clone, Debug)]
pub struct TrainConfig {
    /// The computation, and the way of rows to the trainer.
    pub strategy: Strategy,
    /// Which layers the model has.
    pub model: ModelKind,
    /// Steps that take as long as recorded ones, in place of the model's. Parameters then only
    /// decay, and a step's loss stands for the rows of its batches.
    pub replay: Option<Replay>,
    /// Workers in all processes, at least 1; partition p belongs to worker p mod workers.
    pub workers: u32,
    /// Neighbours sampled per node, one entry per layer; the first is the hop next to the roots.
    /// Under `full` all, as many times as there are layers.
    pub fanouts: Vec<Fanout>,
    /// Width of hidden rows, at least 1.
    pub hidden: usize,
    /// `gat`: attention heads of each layer, at least 1; `hidden` is a multiple of it.
    pub n_heads: usize,
    /// `gat`: heads of the last layer, at least 1, whose rows are averaged.
    pub n_output_heads: usize,
    /// Normalisation and residuals of layers.
    pub layer: LayerOptions,
    /// Share of the elements of aggregated features, hidden rows and attention coefficients
    /// dropped, in [0, 1).
    pub dropout: f32,
    /// The optimiser's step size.
    pub learning_rate: f64,
    /// Adam: added to each gradient times the parameter. AdamW: the share of the parameter, times
    /// the learning rate, that each update takes away.
    pub weight_decay: f32,
    /// Optimiser, schedule of the learning rate, and clipping of gradients.
    pub update: UpdateOptions,
    /// Passes over the training nodes, at least 1.
    pub epochs: u32,
    /// Roots per batch and worker, at least 1.
    pub batch_size: usize,
    /// Fixes the batches, the first parameters and all dropout.
    pub seed: u64,
    /// Divides each feature row by the sum of its absolute values.
    pub normalize: bool,
    /// Accuracy is measured after every `n` epochs, and after the last; 0: only there.
    pub evaluate_every: u32,
    /// Metric of validation and test nodes, reported as accuracy.
    pub metric: Metric,
    /// Whether accuracy is measured on the test nodes too. With an `evaluate_every` of 0 and no
    /// test nodes to measure, accuracy is not measured at all.
    pub measure_test: bool,
    /// Most bytes of rows that an evaluation holds in memory; more go to a temporary file. The
    /// memory of [`Metric::RocAuc`] comes on top.
    pub evaluation_bytes: u64,
    /// Training ends when accuracy on the validation nodes has not risen for this many epochs; 0:
    /// never. Counts with `evaluate_every` of at least 1 only.
    pub patience: u32,
    /// Whether rows of several versions may meet: a worker's own with those of others in a batch,
    /// or those of a checkpoint with those after it. Otherwise each is an error.
    pub mixed_versions: bool,
    /// Where checkpoints go, if there are to be any.
    pub checkpoint: Option<CheckpointConfig>,
    /// Where the best parameters go when the run is over or ended, as safetensors.
    pub save_model: Option<PathBuf>,
    /// Name of the tensor of features.
    pub feature_tensor: String,
    /// Name of the tensor of labels. Classes are i64 of width 1, with −1 for none. Several labels
    /// per node are u8 or f32 of a greater width, each 0 or 1.
    pub label_tensor: String,
    /// Name of the tensor of splits (u8, width 1: 0 train, 1 validation, 2 test).
    pub split_tensor: String,
}

/// Checkpoints of a run: one after each epoch, and within epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointConfig {
    /// The folder; it holds the last checkpoint, and no other run's.
    pub dir: PathBuf,
    /// One after every `n` steps of the run too; 0: none within epochs.
    pub every_steps: u32,
    /// Continues from the checkpoint that is there, or from the start if there is none. Otherwise a
    /// checkpoint that is there is an error.
    pub resume: bool,
}

/// Need of an evaluation at the end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    No,
    /// However many epochs the run has.
    InAnyRun,
    /// Only because it is the last one.
    AsLast,
}

/// Deal of roots to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Roots {
    /// Each worker trains on the training nodes of its own partitions, as in DGL: batches of the
    /// worker's own order.
    #[default]
    Owned,
    /// One order of all training nodes, cut into global batches of `batch_size` for each worker.
    /// Their roots are dealt to workers by turns: the model-centric baseline of HopGNN. The sampled
    /// neighbourhoods are those of the global batch, whichever worker has a root.
    Global,
}

impl Roots {
    /// Returns how training nodes are dealt to workers.
    pub(crate) fn deal(self) -> Deal {
        match self {
            Self::Owned => Deal::Owned,
            Self::Global => Deal::Turns,
        }
    }
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            model: ModelKind::Sage,
            replay: None,
            workers: 1,
            fanouts: Fanout::at_most(10).into_iter().cycle().take(2).collect(),
            hidden: 64,
            n_heads: 8,
            n_output_heads: 8,
            layer: LayerOptions::default(),
            dropout: 0.5,
            learning_rate: 0.01,
            weight_decay: 5e-4,
            update: UpdateOptions::default(),
            epochs: 10,
            batch_size: 512,
            seed: 0,
            normalize: false,
            evaluate_every: 1,
            metric: Metric::Accuracy,
            measure_test: true,
            evaluation_bytes: 1 << 30,
            patience: 0,
            mixed_versions: false,
            checkpoint: None,
            save_model: None,
            feature_tensor: "feat".to_owned(),
            label_tensor: "label".to_owned(),
            split_tensor: "split".to_owned(),
        }
    }
}

impl TrainConfig {
    /// Fails for a setting that cannot work, before any file is opened.
    pub fn validate(&self) -> Result<(), TrainError> {
        let at_least_1 = |setting, found: u64| check(found >= 1, setting, "at least 1", found);
        at_least_1("workers", u64::from(self.workers))?;
        at_least_1("hidden", self.hidden as u64)?;
        at_least_1("n_heads", self.n_heads as u64)?;
        at_least_1("n_output_heads", self.n_output_heads as u64)?;
        let is_multiple = self.model != ModelKind::Gat || self.hidden.is_multiple_of(self.n_heads);
        let expected = format!("a multiple of {} heads", self.n_heads);
        check(is_multiple, "hidden", &expected, self.hidden)?;
        self.strategy.config().validate(self)?;
        let learns_nothing = self.checkpoint.is_none() && self.save_model.is_none();
        let expected = "none where parameters are saved";
        check(self.replay.is_none() || learns_nothing, "replay", expected, "a recording")?;
        at_least_1("epochs", u64::from(self.epochs))?;
        at_least_1("batch_size", self.batch_size as u64)?;
        at_least_1("fanouts", self.fanouts.len() as u64)?;
        let n_layers = self.fanouts.len();
        let expected = format!("at most {MAX_LAYERS} layers");
        check(n_layers <= MAX_LAYERS, "fanouts", &expected, n_layers)?;
        let is_measured = self.patience == 0 || self.evaluate_every > 0;
        check(is_measured, "evaluate_every", "at least 1 with a patience", self.evaluate_every)?;
        let (dropout, rate) = (self.dropout, self.learning_rate);
        check((0.0..1.0).contains(&dropout), "dropout", "in [0, 1)", dropout)?;
        check(rate.is_finite() && rate > 0.0, "learning_rate", "positive", rate)?;
        let decay = self.weight_decay;
        check(decay.is_finite() && decay >= 0.0, "weight_decay", "0 or more", decay)?;
        check_layer_options(self.layer, self.model, self.fanouts.len())?;
        self.update.validate(self.epochs)
    }

    /// Returns whether accuracy is measured after `n_done` epochs, of a graph that has test nodes
    /// or none.
    pub(crate) fn evaluation_after(&self, n_done: u32, has_test: bool) -> Due {
        let (every, has_test) = (self.evaluate_every, self.measure_test && has_test);
        if every > 0 && n_done.is_multiple_of(every) {
            Due::InAnyRun
        } else if n_done == self.epochs && (every > 0 || has_test) {
            Due::AsLast
        } else {
            Due::No
        }
    }

    /// Returns the plan of batches whose roots are dealt this way.
    pub(crate) fn plan_of<'a>(&self, deal: Deal, book: &'a PartitionBook) -> RootPlan<'a> {
        let Self { seed, workers, batch_size, .. } = *self;
        RootPlan { seed, deal, workers, batch_size, book }
    }
}

by_name!(Roots, "roots", Owned = "owned", Global = "global");

#[cfg(test)]
mod tests;
