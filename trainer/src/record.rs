//! Measurements of a run, from which its report is made.

use std::mem::take;

use lodestore_client::load_stats::LoadStats;
use lodestore_client::prefetch::PrefetchStats;
use lodestore_models::metric::Accuracy;

use crate::bottleneck::StepSums;
use crate::checkpoint::Measured;
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
    /// Pulls that filled the workers' sources, until an epoch counts them.
    pub(crate) filled: LoadStats,
    n_workers: u32,
    /// Bytes of a row of features.
    row_bytes: u64,
    epoch: EpochSum,
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

/// Figures of an epoch that only some strategies report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EpochFigures {
    /// Share of input rows that were remote and in no tier.
    pub(crate) miss_rate: f64,
    /// Bytes of models that moved to other workers.
    pub(crate) model_bytes: u64,
    /// Bytes of gradients and of their sums.
    pub(crate) gradient_bytes: u64,
    pub(crate) time_steps: u64,
    /// Roots of the worker with most over the mean of all workers, less 1.
    pub(crate) roots_imbalance: f64,
}

impl Record {
    pub(crate) fn new(n_workers: u32, row_bytes: u64) -> Self {
        Self { n_workers, row_bytes, ..Self::default() }
    }

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

    /// Closes an epoch. `report` has its number, its steps, the seconds of this process, and the
    /// rows that partitions moved. `stats` are each worker's figures since the process began.
    pub(crate) fn end_epoch(
        &mut self,
        report: &EpochReport,
        stats: &[MemberStats],
    ) -> EpochFigures {
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
        let accesses = sum.load.hit_rows + missed;
        let planned = hot.remote_rows + filled.remote_rows + sum.load.ahead_rows;
        let found = sum.load.hit_rows - sum.load.found.together;
        let saved = found.saturating_sub(planned) as f64 / accesses.max(1) as f64;
        let inputs = (accesses + sum.load.local_rows).max(1) as f64;
        self.measured.epochs.push(EpochReport {
            timed_steps: sum.steps,
            resumed: take(&mut self.is_resumed),
            batches: sum.batches,
            loss: loss / n_roots,
            accuracy: n_right as f64 / n_roots,
            local_rows: sum.load.local_rows,
            local_bytes: sum.load.local_rows * self.row_bytes,
            hit_rows: sum.load.hit_rows,
            remote_rows: sum.load.remote_rows + hot.remote_rows + filled.remote_rows,
            remote_bytes,
            hot_set_rows: hot.remote_rows,
            kept_rows,
            late_swaps,
            filled_rows: filled.remote_rows,
            ahead_rows: sum.load.ahead_rows,
            pulls: sum.load.pulls + hot.pulls + filled.pulls,
            hit_rate: (found + planned > 0).then_some(saved),
            together_rows: sum.load.found.together,
            wait_seconds: prefetch.wait_seconds / stats.len().max(1) as f64,
            mean_step_seconds: mean(report.seconds, sum.steps.into()),
            remote_bytes_per_step: mean(remote_bytes as f64, sum.batches),
            ready_batches: prefetch.ready,
            waited_batches: prefetch.waited,
            default_path_batches: prefetch.default_path,
            ..report.clone()
        });
        (self.measured.n_roots, self.measured.n_right, self.measured.loss) = (0, 0, 0.0);
        self.before = stats.to_vec();
        EpochFigures {
            miss_rate: missed as f64 / inputs,
            model_bytes: sum.model_bytes,
            gradient_bytes: sum.gradient_bytes,
            time_steps: sum.time_steps,
            roots_imbalance: mean(sum.imbalance, sum.steps.into()),
        }
    }

    /// Records the accuracy after the last closed epoch.
    pub(crate) fn evaluated(&mut self, accuracy: Accuracy) {
        if let Some(epoch) = self.measured.epochs.last_mut() {
            epoch.validation_accuracy = accuracy.validation;
            epoch.test_accuracy = accuracy.test;
        }
    }
}
