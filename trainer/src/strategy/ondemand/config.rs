//! Settings of `ondemand`.

use crate::config::{Roots, TrainConfig};
use crate::error::{TrainError, check};

/// Settings of batches that are sampled and pulled when they are needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OndemandConfig {
    /// Which worker trains on which root.
    pub roots: Roots,
    /// Source of the random numbers.
    pub sampling: Sampling,
}

/// Source of the random numbers of batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// A stream for each worker, epoch and batch (RapidGNN, section 4.1): all strategies draw the
    /// same.
    #[default]
    Seeded,
    /// One stream for all of a worker's run, as in trainers without a schedule. Only with
    /// [`Roots::Owned`], and for a run that neither resumes nor is resumed.
    Ordinary,
}

impl OndemandConfig {
    /// Fails for settings that cannot work.
    pub(super) fn check(&self, config: &TrainConfig) -> Result<(), TrainError> {
        let is_plain = self.roots == Roots::Owned && config.checkpoint.is_none();
        let expected = "seeded with global roots or a checkpoint";
        check(is_plain || self.sampling == Sampling::Seeded, "sampling", expected, "ordinary")
    }
}
