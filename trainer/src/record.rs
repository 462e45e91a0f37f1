//! The run's report as it grows.

use std::mem::take;

use lodestore_client::load_stats::LoadStats;
use lodestore_client::prefetch::PrefetchStats;

use crate::bottleneck::StepSums;
use crate::checkpoint::Measured;
use crate::config::{Mode, TrainConfig};
use crate::metric::Accuracy;
use crate::report::EpochReport;
use crate::step::WorkerStep;
use crate::step_outcome::{MemberStats, TeamStep};

/// Measurements so far.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Measurements since the run began, in any process.
    pub(crate) measured: Measured,
    pub(crate) step_losses: Vec<f64>,
    pub(crate) setup_seconds: f64,
    /// The fill of the workers' sources, until an epoch has counted it.
    pub(crate) filled: LoadStats,
    /// Mode of the run, which decides what an epoch's report has.
    mode: Option<Mode>,
    n_workers: u32,
    epoch: EpochSum,
    sdt: SdtSum,
    full: FullSum,
    /// Measurements of this process.
    pub(crate) steps: StepSums,
    /// Each worker's figures at the end of the epoch before.
    before: Vec<MemberStats>,
    /// Whether the present epoch is the first since the run was resumed.
    is_resumed: bool,
}

/// Counters of the present epoch's fetches, of the steps of this process.
#[derive(Debug, Default)]
struct EpochSum {
    steps: u32,
    batches: u64,
    load: LoadStats,
    /// For each step, the largest batch over the mean of all workers, less 1.
    imbalance: f64,
    gradient_bytes: u64,
    time_steps: u64,
    model_bytes: u64,
}

/// Rows and bytes that the partitions of the present epoch moved.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SdtSum {
    pub(crate) halo_rows: u64,
    pub(crate) halo_bytes: u64,
    pub(crate) synchronised_bytes: u64,
    /// Share of a whole epoch.
    pub(crate) kept_share: f64,
}

/// Figures of the partitions' exchanges in the present epoch under `full`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FullSum {
    pub(crate) halo_rows: u64,
    pub(crate) input_bytes: u64,
    /// Rows of other workers in halos, and those of them whose features were pulled.
    pub(crate) input_rows: u64,
    pub(crate) pulled_rows: u64,
    pub(crate) embedding_bytes: u64,
    pub(crate) gradient_bytes: u64,
    pub(crate) synchronised_bytes: u64,
    pub(crate) kept_share: f64,
    pub(crate) max_staleness: u32,
    pub(crate) compression_error: f64,
    pub(crate) exchange_seconds: f64,
    pub(crate) exchange_wait_seconds: f64,
    pub(crate) compute_imbalance: f64,
}

impl FullSum {
    /// Returns the share of halos' rows of other workers whose features were in memory. A resumed
    /// epoch may pull them twice, once to restore rows.
    fn input_hit_rate(&self) -> f64 {
        (1.0 - self.pulled_rows as f64 / self.input_rows.max(1) as f64).max(0.0)
    }

    /// Returns the bytes of rows and gradients of halos that went from worker to worker.
    fn halo_bytes(&self) -> u64 {
        self.input_bytes + self.embedding_bytes + self.gradient_bytes
    }
}

impl Record {
    /// Returns the record of a run that begins.
    pub(crate) fn new(config: &TrainConfig) -> Self {
        let (mode, n_workers) = (Some(config.strategy.mode()), config.workers);
        Self { mode, n_workers, ..Self::default() }
    }

    /// Returns the record of a run that continues.
    pub(crate) fn resumed(self, measured: Measured, step_losses: Vec<f64>) -> Self {
        Self { measured, step_losses, is_resumed: true, ..self }
    }

    pub(crate) fn stepped(&mut self, step: &TeamStep, workers: &[WorkerStep]) {
        for (worker, (_, outcome)) in workers.iter().zip(&step.outcomes) {
            self.steps.add(worker, outcome.met);
        }
        self.step_losses.push(step.loss);
        self.measured.n_roots += step.n_roots;
        self.measured.n_right += step.n_right;
        self.measured.loss += step.loss * step.n_roots as f64;
        self.epoch.steps += 1;
        self.epoch.batches += step.n_batches;
        self.epoch.load += step.load;
        let most = step.outcomes.iter().map(|(_, outcome)| outcome.n_roots).max().unwrap_or(0);
        let n_workers = self.n_workers.max(1);
        self.epoch.imbalance +=
            most as f64 * f64::from(n_workers) / step.n_roots.max(1) as f64 - 1.0;
        self.epoch.time_steps += u64::from(step.n_time_steps);
        self.epoch.model_bytes += step.model_bytes;
        self.epoch.gradient_bytes += step.gradient_bytes(self.n_workers);
    }

    /// Takes note of what partitions moved.
    pub(crate) fn partitioned(&mut self, more: SdtSum) {
        self.sdt.halo_rows += more.halo_rows;
        self.sdt.halo_bytes += more.halo_bytes;
        self.sdt.synchronised_bytes += more.synchronised_bytes;
        self.sdt.kept_share += more.kept_share;
    }

    /// Takes note of what partitions exchanged in the present epoch.
    pub(crate) fn exchanged(&mut self, full: FullSum) {
        self.full = full;
    }

    /// Closes `epoch` after `steps` steps; `seconds` are those of this process, `stats` each
    /// worker's figures since it began.
    pub(crate) fn end_epoch(
        &mut self,
        epoch: u32,
        steps: u32,
        seconds: f64,
        stats: &[MemberStats],
    ) {
        self.before.resize(stats.len(), MemberStats::default());
        let (sum, mut hot, mut prefetch) =
            (take(&mut self.epoch), LoadStats::default(), PrefetchStats::default());
        let Measured { n_roots, n_right, loss, .. } = self.measured;
        let (mut late_swaps, mut kept_rows) = (0, 0);
        for (now, before) in stats.iter().zip(&self.before) {
            hot.remote_rows += now.pulled.remote_rows - before.pulled.remote_rows;
            hot.remote_bytes += now.pulled.remote_bytes - before.pulled.remote_bytes;
            hot.pulls += now.pulled.pulls - before.pulled.pulls;
            prefetch.ready += now.prefetch.ready - before.prefetch.ready;
            prefetch.waited += now.prefetch.waited - before.prefetch.waited;
            prefetch.default_path += now.prefetch.default_path - before.prefetch.default_path;
            prefetch.wait_seconds += now.prefetch.wait_seconds - before.prefetch.wait_seconds;
            late_swaps += now.steady.late - before.steady.late;
            kept_rows += now.steady.kept_rows - before.steady.kept_rows;
        }
        let filled = take(&mut self.filled);
        let remote_bytes = sum.load.remote_bytes + hot.remote_bytes + filled.remote_bytes;
        let mean = |of: f64, n: u64| if n > 0 { of / n as f64 } else { 0.0 };
        let n_roots = n_roots.max(1) as f64;
        let missed = sum.load.remote_rows - sum.load.ahead_rows;
        let accesses = (sum.load.hit_rows + missed).max(1) as f64;
        let of_hop = self.mode == Some(Mode::Hop);
        let inputs = accesses + sum.load.local_rows as f64;
        let (of_sdt, sdt) = (self.mode == Some(Mode::Sdt), take(&mut self.sdt));
        let full = take(&mut self.full);
        let full = (self.mode == Some(Mode::Full)).then_some(full);
        self.measured.epochs.push(EpochReport {
            miss_rate: of_hop.then_some(missed as f64 / inputs),
            model_bytes: of_hop.then_some(sum.model_bytes),
            gradient_bytes: match &full {
                Some(full) => Some(full.gradient_bytes),
                None => of_hop.then_some(sum.gradient_bytes),
            },
            time_steps: of_hop.then_some(sum.time_steps),
            roots_imbalance: of_hop.then(|| mean(sum.imbalance, sum.steps.into())),
            halo_rows: full.map(|of| of.halo_rows).or(of_sdt.then_some(sdt.halo_rows)),
            halo_bytes: full.map(|of| of.halo_bytes()).or(of_sdt.then_some(sdt.halo_bytes)),
            synchronised_bytes: full
                .map(|of| of.synchronised_bytes)
                .or(of_sdt.then_some(sdt.synchronised_bytes)),
            kept_share: full.map(|of| of.kept_share).or(of_sdt.then_some(sdt.kept_share)),
            input_bytes: full.map(|of| of.input_bytes),
            input_hit_rate: full.map(|of| of.input_hit_rate()),
            embedding_bytes: full.map(|of| of.embedding_bytes),
            max_staleness: full.map(|of| of.max_staleness),
            compression_error: full.map(|of| of.compression_error),
            exchange_seconds: full.map(|of| of.exchange_seconds),
            exchange_wait_seconds: full.map(|of| of.exchange_wait_seconds),
            compute_imbalance: full.map(|of| of.compute_imbalance),
            epoch,
            seconds,
            steps,
            timed_steps: sum.steps,
            resumed: take(&mut self.is_resumed),
            batches: sum.batches,
            loss: loss / n_roots,
            accuracy: n_right as f64 / n_roots,
            validation_accuracy: None,
            test_accuracy: None,
            local_rows: sum.load.local_rows,
            hit_rows: sum.load.hit_rows,
            remote_rows: sum.load.remote_rows + hot.remote_rows + filled.remote_rows,
            remote_bytes,
            hot_set_rows: hot.remote_rows,
            kept_rows,
            late_swaps,
            filled_rows: filled.remote_rows,
            ahead_rows: sum.load.ahead_rows,
            pulls: sum.load.pulls + hot.pulls + filled.pulls,
            hit_rate: (sum.load.hit_rows - sum.load.found.together) as f64 / accesses,
            together_rows: sum.load.found.together,
            wait_seconds: prefetch.wait_seconds / stats.len().max(1) as f64,
            mean_step_seconds: mean(seconds, sum.steps.into()),
            remote_bytes_per_step: mean(remote_bytes as f64, sum.batches),
            ready_batches: prefetch.ready,
            waited_batches: prefetch.waited,
            default_path_batches: prefetch.default_path,
        });
        (self.measured.n_roots, self.measured.n_right, self.measured.loss) = (0, 0, 0.0);
        self.before = stats.to_vec();
    }

    /// Notes the accuracy after the epoch closed last.
    pub(crate) fn evaluated(&mut self, accuracy: Accuracy) {
        if let Some(epoch) = self.measured.epochs.last_mut() {
            epoch.validation_accuracy = accuracy.validation;
            epoch.test_accuracy = accuracy.test;
        }
    }

    /// Returns the epochs closed so far.
    pub(crate) fn epochs(&self) -> &[EpochReport] {
        &self.measured.epochs
    }
}
