//! Settings of `hop` (HopGNN).

use serde::{Serialize, Serializer};

use crate::config::ScheduleConfig;
use crate::error::{TrainError, check};
use crate::options::by_name;

/// Settings of roots, models and rows under `hop`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HopConfig {
    /// Whether models move to the roots.
    pub migration: Migration,
    /// [`Migration::Paper`]: the rows of all time steps of an iteration are pulled together
    /// (section
    /// 5.2).
    pub pregather: bool,
    /// [`Migration::Paper`]: which time step is merged into the others (section 5.3).
    pub merge: Merge,
    /// [`Migration::None`]: the schedule that rows come by, as under `rapid`; on demand without
    /// one. Reports have its name in place of its settings, which never change a loss.
    #[serde(rename = "fetch", serialize_with = "fetch_name")]
    pub schedule: Option<ScheduleConfig>,
}

/// Place where a model trains on its roots (HopGNN, section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Migration {
    /// Models stay: parameters are equal within an iteration, so that each worker trains on all
    /// roots that it owns, in one step.
    None,
    /// Model d trains on its own roots, by turns at the workers that own them. In time step t it is
    /// at worker (d + t) mod N, with the gradients so far.
    Paper,
}

/// Time step of an iteration that is merged into the others (HopGNN, section 5.3). Merging begins
/// with the second epoch and continues as long as epochs become faster.
///
/// Measured times decide how many time steps are merged. So two runs may group roots differently,
/// and then agree only up to rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Merge {
    /// No time step.
    None,
    /// The time step with the fewest roots.
    Min,
    /// A random time step.
    Random,
}

impl Default for HopConfig {
    fn default() -> Self {
        Self { migration: Migration::None, pregather: true, merge: Merge::None, schedule: None }
    }
}

impl HopConfig {
    /// Fails for settings that cannot work.
    pub(super) fn check(&self) -> Result<(), TrainError> {
        let Self { migration, pregather, merge, ref schedule } = *self;
        if migration == Migration::Paper {
            return check(schedule.is_none(), "schedule", "none with migration", "a schedule");
        }
        check(pregather, "pregather", "true without migration", pregather)?;
        check(merge == Merge::None, "merge", "none without migration", merge)
    }
}

/// Writes how rows reach a worker: the name of the strategy whose way it is.
fn fetch_name<S: Serializer>(
    schedule: &Option<ScheduleConfig>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if schedule.is_some() { "rapid" } else { "ondemand" })
}

by_name!(Migration, "migration", None = "none", Paper = "paper");
by_name!(Merge, "way to merge", None = "none", Min = "min", Random = "random");
