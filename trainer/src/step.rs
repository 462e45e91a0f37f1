//! Places of steps in a run, times of one step of one worker, and the sources of its rows.

use std::{fmt, ops::AddAssign};

use lodestore_client::load_stats::LoadStats;
use lodestore_client::parts::PartitionTraffic;
use lodestore_client::prefetch::BatchReadiness;
use serde::{Deserialize, Serialize};

/// A place between two steps of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The epoch of the next step, from 0; the number of epochs after the last.
    pub epoch: u32,
    /// The next step of it, from 0; the number of steps when only the evaluation is missing.
    pub step: u32,
}

/// One batch of one worker, as the log of a run has it.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerStep {
    /// Epoch, from 0.
    pub epoch: u32,
    /// Step of the epoch, from 0.
    pub step: u32,
    /// Worker, from 0.
    pub worker: u32,
    /// Mean loss over its roots.
    pub loss: f64,
    /// Roots of its batch.
    pub roots: u64,
    /// Input nodes of its batch: the sum of all `rows` but `ahead`.
    pub nodes: u64,
    /// `ready`, `waited` (for a prefetch thread), or `default` (prepared by the worker itself).
    pub batch: &'static str,
    /// Seconds of each part of the step.
    pub seconds: StepSeconds,
    /// Rows by source.
    pub rows: RowsBySource,
    /// Bytes of these rows; of remote rows the bytes on the wire.
    pub bytes: RowsBySource,
    /// Epochs so far that began before the worker's hot set was complete.
    pub late_swaps: u64,
    /// Bytes that `hop` moved, without rows.
    #[serde(flatten)]
    pub hop: Option<HopTraffic>,
    /// Bytes that `sdt` loaded for partition `step`.
    #[serde(flatten)]
    pub sdt: Option<PartitionTraffic>,
    /// Bytes that partitions exchanged under `full`.
    #[serde(flatten)]
    pub full: Option<FullTraffic>,
}

/// Bytes that the partitions of a worker exchanged in an epoch.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FullTraffic {
    /// Rows of their halos, whichever worker owns them.
    pub halo_rows: u64,
    /// Bytes of rows of layers received from other workers.
    pub embedding_bytes: u64,
    /// Bytes of gradients of such rows sent back.
    pub gradient_bytes: u64,
}

/// A worker's equal share of the bytes that a step of `hop` moved, without rows. The first worker
/// has the remainder.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HopTraffic {
    /// Time steps of the iteration.
    pub time_steps: u32,
    /// Bytes of models that moved to other workers, parameters and gradients.
    pub model_bytes: u64,
    /// Bytes of gradients and of their sums, each worker a process of its own.
    pub gradient_bytes: u64,
}

/// Seconds of a step. Preparation (`sample`, `lookup`, `pull`, `read`, `copy`) is part of `wait` on
/// the default path; otherwise it overlaps earlier steps. The rest of `step` without `wait`,
/// `compute` and `update` is the time that the worker waited for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSeconds {
    /// From the order to train on a batch to the new parameters; the same for all workers.
    pub step: f64,
    /// To sample the batch, or to read it from the schedule.
    pub sample: f64,
    /// To look up rows in hot set and tiers, and to copy rows out of tiers.
    pub lookup: f64,
    /// Waiting for pulled rows.
    pub pull: f64,
    /// To read the worker's own rows from disk or memory.
    pub read: f64,
    /// To copy other rows.
    pub copy: f64,
    /// Waiting for a batch.
    pub wait: f64,
    /// For the forward and the backward pass.
    pub compute: f64,
    /// To move models, to average gradients, between processes too, and to update parameters; the
    /// same for all workers.
    pub update: f64,
}

/// A count for each place that rows come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowsBySource {
    /// The worker's own partitions.
    pub local: u64,
    /// The hot set of `rapid`, or its oracle's.
    pub hot_set: u64,
    /// The buffer of `massive`.
    pub buffer: u64,
    /// The worker's device.
    pub device_tier: u64,
    /// The tier that workers share.
    pub host_tier: u64,
    /// An earlier batch that was loaded together with this one.
    pub together: u64,
    /// Other workers' partitions, pulled for the batch.
    pub remote: u64,
    /// Pulled ahead together with them, not for the batch.
    pub ahead: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, step {}", self.epoch, self.step)
    }
}

impl Place {
    /// Returns the number of the next batch of a worker with `per_epoch` in each epoch.
    pub(crate) fn first_batch(self, per_epoch: u32) -> u32 {
        self.epoch.saturating_mul(per_epoch).saturating_add(self.step.min(per_epoch))
    }
}

impl RowsBySource {
    /// Returns numbers and bytes of the rows of `row_bytes` in `load`.
    pub(crate) fn of(load: &LoadStats, row_bytes: u64) -> (Self, Self) {
        let rows = Self {
            local: load.local_rows,
            hot_set: load.hit_rows.saturating_sub(load.found.all()),
            buffer: load.found.buffer,
            device_tier: load.found.device,
            host_tier: load.found.host,
            together: load.found.together,
            remote: load.remote_rows - load.ahead_rows,
            ahead: load.ahead_rows,
        };
        // All rows of a pull have equal lengths on the wire.
        let travelled = |n: u64| (load.remote_bytes * n).checked_div(load.remote_rows).unwrap_or(0);
        let bytes = Self {
            local: rows.local * row_bytes,
            hot_set: rows.hot_set * row_bytes,
            buffer: rows.buffer * row_bytes,
            device_tier: rows.device_tier * row_bytes,
            host_tier: rows.host_tier * row_bytes,
            together: rows.together * row_bytes,
            remote: travelled(rows.remote),
            ahead: travelled(rows.ahead),
        };
        (rows, bytes)
    }
}

impl AddAssign for StepSeconds {
    fn add_assign(&mut self, more: Self) {
        self.step += more.step;
        self.sample += more.sample;
        self.lookup += more.lookup;
        self.pull += more.pull;
        self.read += more.read;
        self.copy += more.copy;
        self.wait += more.wait;
        self.compute += more.compute;
        self.update += more.update;
    }
}

/// Returns the word for how ready a batch was.
pub(crate) fn word_of(met: BatchReadiness) -> &'static str {
    match met {
        BatchReadiness::Ready => "ready",
        BatchReadiness::Waited => "waited",
        BatchReadiness::DefaultPath => "default",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lodestore_client::source::TierRows;

    #[test]
    fn every_row_is_counted_at_one_source() {
        let found = TierRows { device: 1, host: 2, buffer: 4, together: 64 };
        let (local_rows, hit_rows, remote_rows, ahead_rows) = (8, 87, 48, 32);
        let load = LoadStats {
            local_rows,
            hit_rows,
            found,
            remote_rows,
            remote_bytes: 480,
            ahead_rows,
            ..LoadStats::default()
        };
        let (rows, bytes) = RowsBySource::of(&load, 5);
        let list = |of: RowsBySource| {
            let tiers = [of.buffer, of.device_tier, of.host_tier, of.together];
            let [buffer, device, host, together] = tiers;
            [of.local, of.hot_set, buffer, device, host, together, of.remote, of.ahead]
        };
        assert_eq!(list(rows), [8, 16, 4, 1, 2, 64, 16, 32]);
        assert_eq!(list(bytes), [40, 80, 20, 5, 10, 320, 160, 320]);
        assert_eq!(list(RowsBySource::of(&LoadStats::default(), 5).1), [0; 8]);
    }
}
