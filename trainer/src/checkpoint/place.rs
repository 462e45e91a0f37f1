//! Position of a run.

use serde::{Deserialize, Serialize};

/// A place between two steps of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The epoch of the next step, from 0; the number of epochs after the last.
    pub epoch: u32,
    /// The next step of it, from 0; the number of steps when only the evaluation is missing.
    pub step: u32,
}

impl Place {
    /// Returns the number of the next batch of a worker with `per_epoch` in each epoch.
    pub(crate) fn first_batch(self, per_epoch: u32) -> u32 {
        self.epoch.saturating_mul(per_epoch).saturating_add(self.step.min(per_epoch))
    }
}
