//! Report of a run, as `--json` prints it. Rates are fractions, sizes bytes, times seconds.

use lodestore_client::keep::Keep;
use lodestore_comm::traffic::Traffic;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use crate::bottleneck::StepShares;
use crate::config::Strategy;
use crate::options::{Metric, ModelKind};
use crate::sources::RowVersions;
use crate::step::{Place, WorkerStep};

/// Origin of remote rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RowsFrom {
    /// The store in the trainer's process.
    Embedded,
    /// Servers, over a socket.
    Servers,
}

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct TrainReport {
    /// The strategy with its settings. JSON has its name, and the settings that decide what is
    /// computed: `roots` of mini-batches, else `hop`, `sdt` or `full`.
    #[serde(flatten)]
    pub strategy: Strategy,
    /// Which layers the model had.
    pub model: ModelKind,
    /// Workers.
    pub workers: u32,
    /// Processes of the run.
    pub processes: u32,
    /// Bytes that processes sent each other, by payload.
    pub sent_bytes: Traffic,
    /// Where the model was computed: `cpu`, or `replayed` if recorded step times replaced it.
    pub device: &'static str,
    /// Origin of remote rows.
    pub rows_from: RowsFrom,
    /// The versions of workers' own rows and of all others; under `mixed_versions` they may differ.
    pub versions: RowVersions,
    /// Name of the metric behind validation and test accuracy.
    pub metric: Metric,
    /// Accuracy on the test nodes with the parameters of the best validation accuracy; with the
    /// last parameters if there are no validation nodes. Absent without test nodes.
    pub test_accuracy: Option<f64>,
    /// Validation accuracy with the same parameters.
    pub validation_accuracy: Option<f64>,
    /// Epoch of these parameters, from 0.
    pub best_epoch: u32,
    /// Whether the run stopped early because validation accuracy no longer rose.
    pub stopped_early: bool,
    /// Whether the observer interrupted the run; `epochs` has the epochs that were complete by
    /// then.
    pub interrupted: bool,
    /// Why the requested model could not be saved, if saving failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_error: Option<String>,
    /// BLAKE3 of the last parameters, in hex: equal for equal parameters only.
    pub parameters_digest: String,
    /// BLAKE3 of the best parameters, in hex; of no parameters before the first evaluation.
    pub best_parameters_digest: String,
    /// Place at which a checkpoint resumed the run. Earlier results of the run count; earlier
    /// fetches count only for complete epochs.
    pub resumed_at: Option<Place>,
    /// Checkpoints written by this process.
    pub checkpoints: u64,
    /// Seconds spent writing them, outside of all epochs.
    pub checkpoint_seconds: f64,
    /// Every epoch in order.
    pub epochs: Vec<EpochReport>,
    /// Loss of every step of every epoch, averaged over the step's roots.
    pub step_losses: Vec<f64>,
    /// Mean of the epochs' `mean_step_seconds`, weighted by `timed_steps`.
    pub mean_step_seconds: f64,
    /// Breakdown of a step's time, and its bottleneck; absent if this process made no step.
    pub step: Option<StepShares>,
    /// Remote rows fetched per batch of one worker, hot sets included.
    pub remote_rows_per_step: f64,
    /// Remote bytes fetched per batch of one worker, hot sets included.
    pub remote_bytes_per_step: f64,
    /// Seconds before the first step: labels, schedule, first hot sets.
    pub setup_seconds: f64,
    /// The schedule, for strategies that use one. JSON always has its fields: zeros and `null`
    /// without a schedule.
    #[serde(flatten, serialize_with = "schedule_fields")]
    pub schedule: Option<ScheduleReport>,
    /// Peak bytes of one worker: batches with spare memory, and rows of hot sets or of the oracle's
    /// tier, without ids and lists, like the bound. Under `massive`: batches, and the buffer with
    /// its scores and lists.
    pub memory_measured_bytes: u64,
    /// Most anonymous memory that the process had at once, summed over processes; 0 where the
    /// system does not report it. Pages of mapped files do not count.
    pub peak_anonymous_bytes: u64,
    /// Bytes read from disk during training, summed over processes; 0 if the page cache had all.
    /// Absent if the system does not report it.
    pub disk_bytes: Option<u64>,
}

/// The schedule of a run, and the rows kept by it.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleReport {
    /// Seconds of the set-up spent writing or checking the schedule.
    pub seconds: f64,
    /// Whether a complete schedule of an earlier run was used.
    pub is_stored: bool,
    /// Bytes of the schedule's file.
    pub n_bytes: u64,
    /// Content digest of the schedule, in hex.
    pub digest: String,
    /// 2·n_hot·d + (Q + 2)·m_max·d, for each worker: RapidGNN's bound (section 3), and the batches
    /// that it does not count ([`lodestore_client::budget::RowBudget`]).
    pub memory_bound_bytes: u64,
    /// The rule for kept rows.
    pub keep: Keep,
    /// Rows of a hot set, after the memory budget.
    pub n_hot: u64,
    /// Batches prepared ahead, after the memory budget.
    pub window: u64,
    /// Batches to be prepared ahead, before the memory budget.
    pub window_asked: u64,
}

/// Writes the fields of a schedule; 0, `false` or `null` without a schedule.
fn schedule_fields<S: Serializer>(
    schedule: &Option<ScheduleReport>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let schedule = schedule.as_ref();
    let mut fields = serializer.serialize_map(None)?;
    fields.serialize_entry("schedule_seconds", &schedule.map_or(0.0, |of| of.seconds))?;
    fields.serialize_entry("schedule_stored", &schedule.is_some_and(|of| of.is_stored))?;
    fields.serialize_entry("schedule_bytes", &schedule.map_or(0, |of| of.n_bytes))?;
    fields.serialize_entry("schedule_digest", &schedule.map(|of| &of.digest))?;
    fields.serialize_entry("hot_policy", &schedule.map(|of| of.keep))?;
    fields.serialize_entry("n_hot", &schedule.map_or(0, |of| of.n_hot))?;
    fields.serialize_entry("window", &schedule.map_or(0, |of| of.window))?;
    fields.serialize_entry("window_asked", &schedule.map_or(0, |of| of.window_asked))?;
    fields.serialize_entry("memory_bound_bytes", &schedule.map(|of| of.memory_bound_bytes))?;
    fields.end()
}

/// One epoch, summed over all workers unless it says otherwise. In an epoch in which the run was
/// resumed, times, batches, rows and bytes are those since then. Means of no steps are 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochReport {
    /// From 0.
    pub epoch: u32,
    /// Time of its steps, without evaluation.
    pub seconds: f64,
    /// Updates of the parameters; for `sdt`, trained partitions.
    pub steps: u32,
    /// Steps of the process that ended the epoch: fewer only if the run was resumed within it.
    pub timed_steps: u32,
    /// Whether the run was resumed in this epoch, at its first step too: caches and connections
    /// were new then.
    #[serde(default)]
    pub resumed: bool,
    /// Batches: at most one per step and worker.
    pub batches: u64,
    /// Mean training loss over all roots.
    pub loss: f64,
    /// Share of roots that the model classified correctly during training.
    pub accuracy: f64,
    /// Accuracy on the validation nodes after the epoch, where measured.
    pub validation_accuracy: Option<f64>,
    /// Accuracy on the test nodes after the epoch, where measured.
    pub test_accuracy: Option<f64>,
    /// Rows of batches from the worker's own partitions.
    pub local_rows: u64,
    /// Bytes of them.
    #[serde(default)]
    pub local_bytes: u64,
    /// Remote rows of batches that a hot set, a tier, or an earlier batch of the same load had.
    pub hit_rows: u64,
    /// Part of `hit_rows` that an earlier batch of the same load had.
    pub together_rows: u64,
    /// Remote rows fetched: by batches, for this epoch's hot sets, and, in the first epoch of a
    /// process, to fill buffers.
    pub remote_rows: u64,
    /// Bytes of them.
    pub remote_bytes: u64,
    /// Part of `remote_rows` that filled hot sets, or the oracle's tier before the first batch.
    pub hot_set_rows: u64,
    /// Rows that hot sets copied from the previous set instead of pulling them.
    #[serde(default)]
    pub kept_rows: u64,
    /// Hot sets, of all workers, that were not ready when the first batch of their epoch was
    /// prepared. That may be in the epoch before. The previous set served until they were ready.
    #[serde(default)]
    pub late_swaps: u64,
    /// Part of `remote_rows` that filled buffers before the first batch.
    pub filled_rows: u64,
    /// Part of `remote_rows` that a buffer pulled beyond the misses of batches.
    pub ahead_rows: u64,
    /// Requests for these rows, one per server asked.
    pub pulls: u64,
    /// Share of the batches' remote rows that keeping rows saved: rows found in a hot set, buffer
    /// or tier, less the rows pulled in the epoch to be kept. Absent if no rows were kept.
    #[serde(default)]
    pub hit_rate: Option<f64>,
    /// Time in which a worker had no batch to train on, averaged over workers.
    pub wait_seconds: f64,
    /// Mean time of a step.
    pub mean_step_seconds: f64,
    /// Remote bytes per batch.
    pub remote_bytes_per_step: f64,
    /// `hop`: share of the batches' input rows that were remote and in no tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss_rate: Option<f64>,
    /// `hop`: bytes of models that moved to other workers, parameters and gradients: none without
    /// migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_bytes: Option<u64>,
    /// `hop`: bytes of gradients and of their sums that workers send, each as a process of its own,
    /// in the steps of this process. `full`: bytes of gradients of halo rows that workers sent
    /// back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_bytes: Option<u64>,
    /// `hop`: time steps. An iteration has one without migration, else one for each worker less
    /// merged ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_steps: Option<u64>,
    /// `hop`: roots of the worker with the most, above the mean, as a share of the mean; averaged
    /// over the steps of this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roots_imbalance: Option<f64>,
    /// `sdt`: rows of halos that were loaded with their partitions, whichever worker owns them.
    /// `full`: nodes in halos.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halo_rows: Option<u64>,
    /// `sdt`: bytes of them. `full`: all bytes of inputs, rows and gradients of halos that went
    /// from worker to worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halo_bytes: Option<u64>,
    /// Bytes that workers send to synchronise models, each worker counted as a process of its own.
    /// `sdt`: local models and their average, where the epoch ends with an average. `full`:
    /// gradients of parameters and their sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synchronised_bytes: Option<u64>,
    /// `sdt`: share of the entries of the last hop of whole neighbourhoods, one for each path to a
    /// training node, that the partitions keep. `full`: share of the edges that partitions have, of
    /// which RAPA leaves some out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_share: Option<f64>,
    /// `full`: bytes of other workers' input rows that were pulled: without tiers in the first
    /// epoch of a process, which keeps them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_bytes: Option<u64>,
    /// `full`: share of the input rows of other workers that were in memory, kept or in a tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_hit_rate: Option<f64>,
    /// `full`: bytes of rows of layers that workers sent to others, narrowed if they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_bytes: Option<u64>,
    /// `full`: age in epochs of the oldest halo rows or gradients used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_staleness: Option<u32>,
    /// `full`: root mean square error of narrowed rows and gradients, relative to their root mean
    /// square.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression_error: Option<f64>,
    /// `full`: seconds in which rows and gradients were in transit, in the slowest process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange_seconds: Option<f64>,
    /// `full`: part of `exchange_seconds` in which the process had nothing to compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange_wait_seconds: Option<f64>,
    /// `full`: computing time of the slowest worker above the mean, as a share of the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_imbalance: Option<f64>,
    /// Batches that were ready in the window.
    pub ready_batches: u64,
    /// Batches that a trainer waited for.
    pub waited_batches: u64,
    /// Batches that a trainer fetched itself.
    pub default_path_batches: u64,
}

/// Progress of a run.
#[derive(Debug)]
pub enum Progress<'a> {
    /// Batches of the schedule written so far.
    Schedule {
        /// Batches written.
        done: u64,
        /// Batches in all.
        total: u64,
    },
    /// A step ended.
    Step {
        /// Epoch, from 0.
        epoch: u32,
        /// Steps done in it.
        done: u32,
        /// Steps of an epoch.
        total: u32,
        /// Loss of the step.
        loss: f64,
        /// Times of each worker that had a batch.
        workers: &'a [WorkerStep],
    },
    /// An epoch ended and was evaluated.
    Epoch(&'a EpochReport),
}

impl EpochReport {
    /// Returns the share of the batches' remote rows that a hot set, buffer or tier had, whenever
    /// it pulled them: the hit rate of the papers.
    #[must_use]
    pub fn found_share(&self) -> f64 {
        let planned_rows = self.hot_set_rows + self.filled_rows + self.ahead_rows;
        let missed_rows = self.remote_rows - planned_rows;
        let found_rows = self.hit_rows - self.together_rows;
        found_rows as f64 / (self.hit_rows + missed_rows).max(1) as f64
    }
}
