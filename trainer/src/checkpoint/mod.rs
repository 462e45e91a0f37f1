//! Checkpoints. A killed run that is resumed has the same bits of parameters and losses as if it
//! had never ended, on a processor of the same kind.
//!
//! Batches, dropout and initial parameters are functions of seeds. So training needs only the place
//! in the run, the parameters, and Adam's moments of each replica. The best parameters and the
//! measurements so far are stored with them. Caches start empty, since they never change what is
//! computed.

mod folder;
mod format;
mod settings;

use std::{borrow::Cow, time::Instant};

use lodestore_models::adam::ReplicaState;
use serde::{Deserialize, Serialize};

use crate::best_model::BestModel;
use crate::error::TrainError;
use crate::report::EpochReport;
use crate::sources::RowVersions;

pub use crate::checkpoint_error::{CheckpointError, CheckpointFault};
pub use crate::step::Place;
pub(crate) use folder::Folder;
pub(crate) use settings::{Computation, Settings};

/// A run between two steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Checkpoint<'a> {
    pub(crate) place: Place,
    /// The state of each replica.
    pub(crate) replicas: Cow<'a, [ReplicaState]>,
    pub(crate) best: BestModel,
    pub(crate) measured: Measured,
    /// Losses of all steps so far.
    pub(crate) step_losses: Vec<f64>,
}

/// Measurements so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The versions of the rows with which the last steps were made; `None` in checkpoints of older
    /// releases.
    #[serde(default)]
    pub(crate) versions: Option<RowVersions>,
    /// Finished epochs.
    pub(crate) epochs: Vec<EpochReport>,
    /// Sums over the steps of the present epoch: roots, those of them that the model got right, and
    /// their losses.
    pub(crate) n_roots: u64,
    pub(crate) n_right: u64,
    pub(crate) loss: f64,
}

/// Identity of the run of a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) graph_uuid: [u8; 16],
    pub(crate) settings: Settings,
    /// Elements of each parameter.
    pub(crate) lengths: Vec<usize>,
    /// Models that are trained.
    pub(crate) n_replicas: u32,
    /// Whether each replica is updated once in each step of the run.
    pub(crate) updates_each_step: bool,
    /// Epochs of the run, and steps of each.
    pub(crate) epochs: u32,
    pub(crate) n_steps: u32,
}

impl Identity {
    /// Returns the number of elements of all parameters.
    fn n_elements(&self) -> u64 {
        self.lengths.iter().map(|&n| n as u64).sum()
    }

    /// Fails unless a checkpoint of this run, as far as it goes, can have such a place and that
    /// many losses.
    fn check_place(&self, place: Place, n_losses: u64) -> Result<(), CheckpointFault> {
        let Place { epoch, step } = place;
        let (epochs, n_steps) = (self.epochs, self.n_steps);
        let expected = u64::from(epoch) * u64::from(n_steps) + u64::from(step);
        if step > n_steps || n_losses != expected {
            let what = format!("{n_losses} losses in {place}, with {n_steps} steps an epoch");
            return Err(CheckpointFault::Contradiction { what });
        }
        // A damaged place has other losses: this one can be believed before the digest is known.
        if place > (Place { epoch: epochs, step: 0 }) {
            return Err(CheckpointFault::Over { place, epochs });
        }
        Ok(())
    }
}

/// Loads and writes the checkpoints of a run.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    folder: Folder,
    identity: Identity,
    every_steps: u32,
    pub(crate) written: u64,
    pub(crate) seconds: f64,
}

impl Checkpoints {
    /// Opens the checkpoints in `folder`, one after every `n` steps (0: none within epochs).
    pub(crate) fn new(folder: Folder, identity: Identity, every_steps: u32) -> Self {
        Self { folder, identity, every_steps, written: 0, seconds: 0.0 }
    }

    /// Loads the checkpoint to continue from, if there is one. Unless `any_version`, it must have
    /// been made with rows of `versions`.
    pub(crate) fn load(
        &self,
        versions: RowVersions,
        any_version: bool,
    ) -> Result<Option<Checkpoint<'static>>, TrainError> {
        let checkpoint = self.folder.load(&self.identity)?;
        let found = checkpoint.as_ref().and_then(|checkpoint| checkpoint.measured.versions);
        match found {
            Some(found) if !found.agree(versions) && !any_version => {
                let (expected, found) = (versions.to_string(), found.to_string());
                Err(self.folder.fault(CheckpointFault::Rows { expected, found }).into())
            }
            _ => Ok(checkpoint),
        }
    }

    /// Returns whether a checkpoint is due within an epoch, after the `n_steps`-th step of the run.
    pub(crate) fn is_due(&self, n_steps: u32) -> bool {
        self.every_steps > 0 && n_steps.is_multiple_of(self.every_steps)
    }

    /// Returns whether a checkpoint is due within an epoch after the steps of the run from `before`
    /// to `now`.
    pub(crate) fn is_passed(&self, before: u64, now: u64) -> bool {
        let every = u64::from(self.every_steps);
        every > 0 && before / every < now / every
    }

    /// Replaces the last checkpoint by `checkpoint`; durable on return.
    pub(crate) fn save(&mut self, checkpoint: &Checkpoint<'_>) -> Result<(), TrainError> {
        let start = Instant::now();
        self.folder.save(&format::encode(checkpoint, &self.identity)?)?;
        self.written += 1;
        self.seconds += start.elapsed().as_secs_f64();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
