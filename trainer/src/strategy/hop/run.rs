//! Epochs without migration: those of mini-batches, with the figures of `hop`.

use std::{ops::ControlFlow, thread::Scope};

use crate::error::TrainError;
use crate::process_group::ProcessGroup;
use crate::record::EpochFigures;
use crate::replica::Replica;
use crate::report::{EpochReport, TrainReport};
use crate::run::Run;
use crate::setup::Setup;
use crate::step::{HopTraffic, Place, WorkerStep};
use crate::step_outcome::{MemberStats, TeamStep};
use crate::strategy::mini_batches::{BatchFeed, MiniBatchRun, Steps, train_epoch};
use crate::strategy::{Observer, StrategyRun};
use crate::workers::Team;

/// A run whose workers train on all roots that they own.
pub(super) struct HopRun<'scope> {
    batches: MiniBatchRun<'scope>,
}

/// Steps that are reported as those of `hop`.
struct HopSteps<'team, 'scope> {
    team: &'team mut Team<'scope, ()>,
    n_workers: u32,
}

impl<'scope> HopRun<'scope> {
    pub(super) fn new(setup: &'scope Setup<'scope>, feed: impl BatchFeed<'scope> + 'scope) -> Self {
        Self { batches: MiniBatchRun::new(setup, feed) }
    }
}

impl<'scope> StrategyRun<'scope> for HopRun<'scope> {
    fn prepare(
        &mut self,
        group: &mut ProcessGroup<'_>,
        progress: Observer<'_>,
    ) -> Result<ControlFlow<()>, TrainError> {
        self.batches.prepare(group, progress)
    }

    fn start<'env>(
        &mut self,
        scope: &'scope Scope<'scope, 'env>,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError> {
        self.batches.start(scope, run, group)
    }

    fn epoch(
        &mut self,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
        progress: Observer<'_>,
    ) -> Result<(), TrainError> {
        let n_steps = self.batches.setup.n_steps();
        let n_workers = self.batches.setup.config.workers;
        let mut steps = HopSteps { team: self.batches.team(), n_workers };
        train_epoch(run, &mut steps, n_steps, group, progress)
    }

    fn stats(&mut self, epoch: u32) -> &[MemberStats] {
        self.batches.stats(epoch)
    }

    fn report(&self, report: &mut TrainReport) {
        self.batches.report(report);
    }
}

impl Steps for HopSteps<'_, '_> {
    fn step(
        &mut self,
        place: Place,
        replica: &Replica,
        group: &mut ProcessGroup<'_>,
    ) -> Result<TeamStep, TrainError> {
        Steps::step(self.team, place, replica, group)
    }

    fn stats(&mut self, epoch: u32) -> &[MemberStats] {
        self.team.stats(epoch)
    }

    fn note_worker(&self, step: &TeamStep, line: usize, worker: &mut WorkerStep) {
        worker.hop = Some(traffic_of(step, line, self.n_workers));
    }

    fn note_epoch(&self, figures: &EpochFigures, epoch: &mut EpochReport) {
        note_figures(figures, epoch);
    }
}

/// Returns the share of line `line` in what a step of `n_workers` moved; the first has the remainder.
pub(super) fn traffic_of(step: &TeamStep, line: usize, n_workers: u32) -> HopTraffic {
    let n_lines = step.outcomes.len().max(1) as u64;
    let share = |of: u64| of / n_lines + if line == 0 { of % n_lines } else { 0 };
    HopTraffic {
        time_steps: step.n_time_steps,
        model_bytes: share(step.model_bytes),
        gradient_bytes: share(step.gradient_bytes(n_workers)),
    }
}

/// Adds the figures of `hop` to the report of an epoch.
pub(super) fn note_figures(figures: &EpochFigures, epoch: &mut EpochReport) {
    epoch.miss_rate = Some(figures.miss_rate);
    epoch.model_bytes = Some(figures.model_bytes);
    epoch.gradient_bytes = Some(figures.gradient_bytes);
    epoch.time_steps = Some(figures.time_steps);
    epoch.roots_imbalance = Some(figures.roots_imbalance);
}
