//! Epochs of mini-batches: all workers step together, and their gradients are averaged.

use std::{borrow::Cow, ops::ControlFlow, thread::Scope, time::Instant};

use super::{Observer, StrategyRun};
use crate::checkpoint::Checkpoints;
use crate::error::TrainError;
use crate::process_group::ProcessGroup;
use crate::record::EpochFigures;
use crate::replica::Replica;
use crate::report::{EpochReport, Progress, TrainReport};
use crate::run::Run;
use crate::setup::Setup;
use crate::step::{Place, StepSeconds, WorkerStep};
use crate::step_outcome::{MemberStats, TeamStep};
use crate::worker::StepOrder;
use crate::workers::{Feed, Team};

/// Origin of the batches of a run's workers.
pub(crate) trait BatchFeed<'scope>: Sync {
    /// Prepares what all workers share, for example a schedule. Breaks if `progress` did.
    fn prepare(
        &mut self,
        _group: &mut ProcessGroup<'_>,
        _progress: Observer<'_>,
    ) -> Result<ControlFlow<()>, TrainError> {
        Ok(ControlFlow::Continue(()))
    }

    /// Returns the batches of a worker from `place` on.
    fn start<'env>(
        &self,
        scope: &'scope Scope<'scope, 'env>,
        worker: u32,
        place: Place,
    ) -> Result<Feed<'scope, ()>, TrainError>;

    /// Adds its figures to the report of a run.
    fn report(&self, _report: &mut TrainReport) {}
}

/// Figures that a strategy adds to the reports of steps and epochs.
pub(crate) trait StepNotes {
    /// Adds figures to the entry of line `line` of `step`.
    fn note_worker(&self, _step: &TeamStep, _line: usize, _worker: &mut WorkerStep) {}

    /// Adds figures to the report of an epoch.
    fn note_epoch(&self, _figures: &EpochFigures, _epoch: &mut EpochReport) {}
}

/// No figures.
pub(crate) struct NoNotes;

impl StepNotes for NoNotes {}

/// A run in which each worker trains on one batch in each step.
pub(crate) struct MiniBatchRun<'scope> {
    setup: &'scope Setup<'scope>,
    feed: Box<dyn BatchFeed<'scope> + 'scope>,
    notes: Box<dyn StepNotes>,
    team: Option<Team<'scope, ()>>,
}

/// Steps of all workers together.
pub(crate) trait Steps {
    /// Trains the next batch of every worker that has one, and averages gradients.
    fn step(
        &mut self,
        place: Place,
        replica: &Replica,
        group: &mut ProcessGroup<'_>,
    ) -> Result<TeamStep, TrainError>;

    /// Returns figures of all workers of the run up to `epoch`.
    fn stats(&mut self, epoch: u32) -> &[MemberStats];
}

impl<'scope> MiniBatchRun<'scope> {
    pub(crate) fn new(setup: &'scope Setup<'scope>, feed: impl BatchFeed<'scope> + 'scope) -> Self {
        Self { setup, feed: Box::new(feed), notes: Box::new(NoNotes), team: None }
    }

    /// Adds `notes` to the reports of steps and epochs.
    pub(crate) fn with_notes(self, notes: impl StepNotes + 'static) -> Self {
        Self { notes: Box::new(notes), ..self }
    }
}

impl<'scope> StrategyRun<'scope> for MiniBatchRun<'scope> {
    fn prepare(
        &mut self,
        group: &mut ProcessGroup<'_>,
        progress: Observer<'_>,
    ) -> Result<ControlFlow<()>, TrainError> {
        self.feed.prepare(group, progress)
    }

    fn start<'env>(
        &mut self,
        scope: &'scope Scope<'scope, 'env>,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<(), TrainError> {
        let place = run.place;
        let feed = |worker| self.feed.start(scope, worker, place);
        self.team = Some(Team::start(scope, self.setup, group, &feed)?);
        Ok(())
    }

    fn epoch(
        &mut self,
        run: &mut Run<'_>,
        group: &mut ProcessGroup<'_>,
        progress: Observer<'_>,
    ) -> Result<(), TrainError> {
        let Some(team) = &mut self.team else { unreachable!("workers start before an epoch") };
        train_epoch(run, team, &*self.notes, self.setup.n_steps(), group, progress)
    }

    fn stats(&mut self, epoch: u32) -> &[MemberStats] {
        self.team.as_mut().map_or(&[], |team| team.stats(epoch))
    }

    fn report(&self, report: &mut TrainReport) {
        self.feed.report(report);
    }
}

impl Steps for Team<'_, ()> {
    fn step(
        &mut self,
        Place { epoch, step }: Place,
        _replica: &Replica,
        group: &mut ProcessGroup<'_>,
    ) -> Result<TeamStep, TrainError> {
        let order = StepOrder { epoch, batch: step, ..StepOrder::default() };
        let mut outcomes = self.train(&order)?;
        // A batch without roots takes no part in the step.
        outcomes.retain(|(_, outcome)| outcome.n_roots > 0);
        let gradients =
            outcomes.iter_mut().map(|(worker, outcome)| outcome.take_gradient(*worker)).collect();
        group.step(outcomes, gradients, self.stats(epoch))
    }

    fn stats(&mut self, epoch: u32) -> &[MemberStats] {
        Team::stats(self, epoch)
    }
}

/// Makes the remaining steps of the present epoch, of `total`. `notes` adds to their reports.
pub(crate) fn train_epoch(
    run: &mut Run<'_>,
    steps: &mut dyn Steps,
    notes: &dyn StepNotes,
    total: u32,
    group: &mut ProcessGroup<'_>,
    progress: Observer<'_>,
) -> Result<(), TrainError> {
    let start = Instant::now();
    let saving = run.checkpoint_seconds();
    let epoch = run.place.epoch;
    while run.place.step < total {
        let began = Instant::now();
        let mut outcome = steps.step(run.place, &run.replica, group)?;
        let loss = outcome.loss;
        outcome.check_finite(run.place)?;
        let update = Instant::now();
        run.replica.update(&mut outcome.gradients);
        let update = update.elapsed().as_secs_f64() + outcome.average_seconds;
        let step_seconds = began.elapsed().as_secs_f64();
        let mut workers = worker_steps(run, steps, &outcome, step_seconds, update);
        for (line, worker) in workers.iter_mut().enumerate() {
            notes.note_worker(&outcome, line, worker);
        }
        run.record.stepped(&outcome, &workers);
        run.place.step += 1;
        let done = run.place.step;
        // Before the checkpoint: a run killed in between repeats the step.
        let flow = progress(&Progress::Step { epoch, done, total, loss, workers: &workers });
        run.is_interrupted = flow.is_break();
        let is_due = |c: &Checkpoints| c.is_due(run.replica.adam.n_steps);
        if run.is_interrupted || run.checkpoints.as_ref().is_some_and(is_due) {
            run.save(Cow::Owned(vec![run.replica.adam.state()]))?;
        }
        if run.is_interrupted {
            return Ok(());
        }
    }
    let seconds = start.elapsed().as_secs_f64() - (run.checkpoint_seconds() - saving);
    let report = EpochReport { epoch, steps: total, seconds, ..EpochReport::default() };
    let figures = run.record.end_epoch(&report, steps.stats(epoch));
    if let Some(report) = run.record.measured.epochs.last_mut() {
        notes.note_epoch(&figures, report);
    }
    Ok(())
}

/// Returns each worker's entry for the present step.
fn worker_steps(
    run: &Run<'_>,
    steps: &mut dyn Steps,
    step: &TeamStep,
    step_seconds: f64,
    update_seconds: f64,
) -> Vec<WorkerStep> {
    let late_swaps: Vec<u64> =
        steps.stats(run.place.epoch).iter().map(|stats| stats.steady.late).collect();
    let mut workers = Vec::with_capacity(step.outcomes.len());
    for (worker, outcome) in &step.outcomes {
        let seconds = StepSeconds { step: step_seconds, update: update_seconds, ..outcome.seconds };
        workers.push(WorkerStep {
            seconds,
            late_swaps: late_swaps[*worker as usize],
            ..outcome.worker_step(run.place, *worker, run.row_bytes)
        });
    }
    workers
}
