//! Report of a run, as `--json` prints it. Rates are fractions, sizes bytes, times seconds.

use lodestore_client::keep::Keep;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use crate::bottleneck::StepShares;
use crate::config::Strategy;
use crate::options::{Metric, ModelKind};
use crate::sources::RowVersions;
use crate::step::{Place, WorkerStep};
use lodestore_comm::traffic::Traffic;

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
    /// Processes that they are in.
    pub processes: u32,
    /// Bytes that they sent each other, by what these carried.
    pub sent_bytes: Traffic,
    /// Where the model was computed: `cpu`, or `replayed` where recorded times stood for it.
    pub device: &'static str,
    /// Origin of remote rows.
    pub rows_from: RowsFrom,
    /// The versions of workers' own rows and of all others; under `mixed_versions` they may differ.
    pub versions: RowVersions,
    /// Name of the metric behind validation and test accuracy.
    pub metric: Metric,
    /// Accuracy on the test nodes, by the parameters that did best on the validation nodes. Without
    /// validation nodes it is that of the last parameters. Absent without test nodes.
    pub test_accuracy: Option<f64>,
    /// Accuracy on the validation nodes by the same parameters.
    pub validation_accuracy: Option<f64>,
    /// Epoch of these parameters, from 0.
    pub best_epoch: u32,
    /// Whether the run ended, before its last epoch or with it, because accuracy on the validation
    /// nodes had stopped to rise.
    pub stopped_early: bool,
    /// Whether the observer of the run ended it before it was over: epochs are those that were over
    /// then.
    pub interrupted: bool,
    /// Why the model that was asked for could not be saved, if it could not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_error: Option<String>,
    /// BLAKE3 of the last parameters, in hex: equal for equal parameters only.
    pub parameters_digest: String,
    /// BLAKE3 of the best parameters, in hex; of nothing before the first evaluation.
    pub best_parameters_digest: String,
    /// Place from which the run continued after a checkpoint, if it did. Results of the run before
    /// it count. Fetches before it count only for epochs that were over.
    pub resumed_at: Option<Place>,
    /// Checkpoints written by this process.
    pub checkpoints: u64,
    /// Time that they took, no part of any epoch's.
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
    /// Before the first step: labels, schedule, first hot sets.
    pub setup_seconds: f64,
    /// The schedule, if rows came by one. JSON has its fields without one too: zeros, and `null`.
    #[serde(flatten, serialize_with = "schedule_fields")]
    pub schedule: Option<ScheduleReport>,
    /// Most bytes that one worker really had: batches, with memory that waits for the next, and
    /// rows of hot sets or of the oracle's tier. Ids and lists do not count, as in the bound. Under
    /// `massive` these are batches, and the buffer with all of its scores and lists.
    pub memory_measured_bytes: u64,
    /// Most anonymous memory that the process had at once, summed over processes; 0 where the
    /// system does not report it. Pages of mapped files do not count.
    pub peak_anonymous_bytes: u64,
    /// Bytes that the process read from disk while it trained, summed over processes; 0 where all
    /// was in the page cache. Absent where the system does not report it.
    pub disk_bytes: Option<u64>,
}

/// The schedule of a run, and the rows that were kept by it.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleReport {
    /// Part of the set-up that wrote the schedule, or looked whether it is there.
    pub seconds: f64,
    /// Whether the schedule lay there whole, from a run before.
    pub is_stored: bool,
    /// Bytes of the schedule's file.
    pub n_bytes: u64,
    /// Content digest of the schedule, in hex.
    pub digest: String,
    /// 2·n_hot·d + (Q + 2)·m_max·d, for each worker: RapidGNN's bound (section 3), and the batches
    /// that it does not count ([`lodestore_client::budget::RowBudget`]).
    pub memory_bound_bytes: u64,
    /// Which rows were kept.
    pub keep: Keep,
    /// Rows of a hot set, after the memory budget.
    pub n_hot: u64,
    /// Batches prepared ahead, after the memory budget.
    pub window: u64,
    /// Batches to be prepared ahead, before the memory budget.
    pub window_asked: u64,
}

/// Writes the fields of a schedule, with 0, `false` or `null` without one.
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
    /// Steps: updates of the parameters; of `sdt` partitions.
    pub steps: u32,
    /// Those of the process that ended the epoch: less only if the run was resumed within it.
    pub timed_steps: u32,
    /// Whether the run was resumed in this epoch, at its first step too: caches and connections
    /// were new then.
    #[serde(default)]
    pub resumed: bool,
    /// Batches: at most one per step and worker.
    pub batches: u64,
    /// Mean training loss over all roots.
    pub loss: f64,
    /// Share of roots that the model got right while it was trained on them.
    pub accuracy: f64,
    /// Accuracy on the validation nodes after the epoch, where measured.
    pub validation_accuracy: Option<f64>,
    /// Accuracy on the test nodes after the epoch, where measured.
    pub test_accuracy: Option<f64>,
    /// Rows of own partitions that batches used.
    pub local_rows: u64,
    /// Bytes of them.
    #[serde(default)]
    pub local_bytes: u64,
    /// Remote rows that batches found in a hot set or a tier, or had together with a batch before.
    pub hit_rows: u64,
    /// Part of `hit_rows` that a batch before had, of those loaded together.
    pub together_rows: u64,
    /// Remote rows fetched: by batches, for this epoch's hot sets, and in the first epoch of a
    /// process those that filled buffers.
    pub remote_rows: u64,
    /// Bytes of them.
    pub remote_bytes: u64,
    /// Part of `remote_rows` that filled hot sets, or the oracle's tier before the first batch.
    pub hot_set_rows: u64,
    /// Rows of hot sets built meanwhile that were taken over from the set before, and did not
    /// travel.
    #[serde(default)]
    pub kept_rows: u64,
    /// Hot sets, of all workers, that were not ready when the first batch of their epoch was
    /// prepared. That may be in the epoch before. The previous set served until they were ready.
    #[serde(default)]
    pub late_swaps: u64,
    /// Part of `remote_rows` that filled buffers before the first batch.
    pub filled_rows: u64,
    /// Part of `remote_rows` that a buffer brought beside what batches missed.
    pub ahead_rows: u64,
    /// Requests that fetched them, one per server asked.
    pub pulls: u64,
    /// Share of the batches' remote rows that kept rows saved from travelling: those found in a hot
    /// set, buffer or tier, less those pulled in the epoch to be kept there. Absent where nothing
    /// was kept.
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
    /// `hop`: time steps, of which an iteration has one without migration, else one for each worker
    /// less those that were merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_steps: Option<u64>,
    /// `hop`: how far the worker with most roots is above the mean, as a share of it; mean over the
    /// steps of this process.
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
    /// `full`: share of the input rows of other workers that were in memory: kept, or in a tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_hit_rate: Option<f64>,
    /// `full`: bytes of rows of layers that workers sent to others, narrowed if they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_bytes: Option<u64>,
    /// `full`: how many epochs old the oldest rows or gradients of halos were that were used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_staleness: Option<u32>,
    /// `full`: what narrowing took from rows and gradients that travelled, relative to these: both
    /// as root mean squares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression_error: Option<f64>,
    /// `full`: time in which rows and gradients were on their way between processes, of the process
    /// in which it was longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange_seconds: Option<f64>,
    /// `full`: the part of it in which nothing was left to compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange_wait_seconds: Option<f64>,
    /// `full`: how far the computing time of the slowest worker is above the mean, as a share of
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_imbalance: Option<f64>,
    /// Batches that lay ready in the window.
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
    /// A step is done.
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
    /// An epoch is done and evaluated.
    Epoch(&'a EpochReport),
}

impl EpochReport {
    /// Returns the share of the batches' remote rows that a hot set, buffer or tier had, whenever
    /// these were pulled: the hit rate of the papers.
    #[must_use]
    pub fn found_share(&self) -> f64 {
        let planned_rows = self.hot_set_rows + self.filled_rows + self.ahead_rows;
        let missed_rows = self.remote_rows - planned_rows;
        let found_rows = self.hit_rows - self.together_rows;
        found_rows as f64 / (self.hit_rows + missed_rows).max(1) as f64
    }
}
