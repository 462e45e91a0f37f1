//! Settings of `rapid`, and of rows that come by a schedule under any strategy.

use std::path::PathBuf;

use lodestore_client::keep::Keep;

use crate::config::Roots;

/// Settings of batches from a schedule (RapidGNN).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RapidConfig {
    /// Which worker trains on which root.
    pub roots: Roots,
    /// The schedule, and the rows that are kept by it.
    pub schedule: ScheduleConfig,
}

/// Settings of a schedule on disk, and of the rows that are kept by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleConfig {
    /// Which rows each worker keeps. The oracle unless given: it pulls the fewest rows on any
    /// schedule.
    pub keep: Keep,
    /// Rows in each worker's hot set, of those that it does not own. There are two sets, so that
    /// the oracle keeps twice as many.
    pub n_hot: usize,
    /// Batches prepared ahead, Q in the paper.
    pub window: usize,
    /// Most batches of the window whose rows are read together; as many as the window allows
    /// unless given.
    pub together: Option<usize>,
    /// The most bytes of rows that one worker's hot sets and batches may hold. `window` and `n_hot`
    /// shrink to it, down to one batch at a time. Less than a batch takes is an error.
    pub memory_budget_bytes: Option<u64>,
    /// Where the schedule is written, unless that of this very run is there. A file that is no
    /// schedule stays, and is an error.
    pub path: PathBuf,
    /// Whether the schedule of another run may be replaced there; otherwise it is an error.
    pub replaces_other: bool,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            keep: Keep::Oracle,
            n_hot: 10_000,
            window: 4,
            together: None,
            memory_budget_bytes: None,
            path: PathBuf::from("train.schedule"),
            replaces_other: false,
        }
    }
}
