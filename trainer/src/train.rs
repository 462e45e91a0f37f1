//! The training loop: workers compute gradients, the coordinator averages and updates.

use std::{
    ops::ControlFlow,
    thread::{Scope, scope},
    time::Instant,
};

use crate::config::TrainConfig;
use crate::error::TrainError;
use crate::process_group::ProcessGroup;
use crate::replica::Replica;
use crate::report::{Progress, TrainReport};
use crate::run::Run;
use crate::setup::Setup;
use crate::sources::{TrainGraph, WorkerSources};
use crate::strategy::Observer;
use lodestore_comm::collective::Collective;
use lodestore_comm::threads::ThreadCollective;

/// Trains as `config` says, with one entry of `sources` per worker.
///
/// The same config, graph and rows give the same losses bit for bit. The way of fetching, the
/// number of cores, and the sources' speed change nothing, unless times decide what is merged
/// ([`crate::config::Merge`]). A killed run that is resumed from its checkpoint ends with the same
/// parameters as one that was not killed.
///
/// All sources read one version of the rows, or the run is refused, as is a checkpoint of another
/// version; [`TrainConfig::mixed_versions`] allows both.
///
/// `progress` ends the run by breaking: after the step or the epoch that it received, or when the
/// schedule is written. The results so far are reported, as `interrupted`. A run with checkpoints
/// has one of that step, and continues from there.
///
/// Before the first step, the run checks that the model can be saved at its path. If saving fails
/// at the end all the same, the report says so.
pub fn train(
    config: &TrainConfig,
    graph: &TrainGraph<'_>,
    sources: &[WorkerSources],
    progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
) -> Result<TrainReport, TrainError> {
    let report = train_together(config, graph, sources, &mut ThreadCollective::alone(), progress)?;
    let Some(report) = report else { unreachable!("who is alone leads") };
    Ok(report)
}

/// Trains as [`train`] does, as one of several processes. Each calls this with the same settings
/// and its own `sources`: one entry for each of its workers, in order. Worker w belongs to the
/// process of rank w mod ranks, so there are at least as many workers as processes.
///
/// Losses and parameters are those of [`train`], bit for bit: gradients are summed in the order of
/// workers, whichever process has them. The report is returned in the leader, which alone calls
/// `progress`. Checkpoints are the leader's, and the other processes get theirs from it. Under
/// `rapid` the leader writes the schedule, in a folder that all processes must have.
///
/// When one process fails or ends, all end with an error that names it, at the next step at the
/// latest.
pub fn train_together(
    config: &TrainConfig,
    graph: &TrainGraph<'_>,
    sources: &[WorkerSources],
    collective: &mut dyn Collective,
    progress: &mut dyn FnMut(&Progress<'_>) -> ControlFlow<()>,
) -> Result<Option<TrainReport>, TrainError> {
    let mut group = ProcessGroup::new(collective);
    let report = match run_all(config, graph, sources, &mut group, progress) {
        Ok(report) => Some(report),
        Err(TrainError::Ended) => None,
        Err(error) => {
            group.fail(&error);
            return Err(error);
        }
    };
    let sent_bytes = group.end()?;
    Ok(report.filter(|_| group.leads()).map(|report| TrainReport { sent_bytes, ..report }))
}

fn run_all(
    config: &TrainConfig,
    graph: &TrainGraph<'_>,
    sources: &[WorkerSources],
    group: &mut ProcessGroup<'_>,
    progress: Observer<'_>,
) -> Result<TrainReport, TrainError> {
    let start = Instant::now();
    let workers = group.local_workers(config.workers).collect();
    let mut setup = Setup::new(config, *graph, sources, workers, None)?;
    setup.n_processes = group.n_ranks();
    if group.leads() {
        setup.warn_of_idle_workers();
    }
    scope(|scope| run_in(scope, &setup, start, group, progress))
}

/// Runs from `start` on. Worker threads belong to `scope`.
fn run_in<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    setup: &'scope Setup<'scope>,
    start: Instant,
    group: &mut ProcessGroup<'_>,
    progress: Observer<'_>,
) -> Result<TrainReport, TrainError> {
    let config = setup.config;
    let replica = Replica::new(&setup.model, config, setup.n_steps())?;
    let mut strategy = config.strategy.config().run(setup, &replica);
    let strategy = &mut *strategy;
    let mut run = Run::new(setup, replica, strategy, group)?;
    if run.is_over() {
        if run.lacks_last_evaluation() {
            run.evaluate(config.epochs - 1, &setup.evaluator()?, group)?;
        }
        run.save_model(setup, group);
        return Ok(run.report(setup, strategy, &[]));
    }
    if strategy.prepare(group, progress)?.is_break() {
        run.is_interrupted = true;
        return Ok(run.report(setup, strategy, &[]));
    }
    let evaluator = setup.evaluator()?;
    let no_progress = &mut |_: &Progress<'_>| ControlFlow::Continue(());
    let progress = if group.leads() { progress } else { no_progress };
    strategy.start(scope, &mut run, group)?;
    run.record.setup_seconds = start.elapsed().as_secs_f64();
    while !run.is_over() && !run.is_interrupted {
        run.finish_epoch(strategy, group, &evaluator, &mut *progress)?;
    }
    run.save_model(setup, group);
    let stats = strategy.stats(config.epochs).to_vec();
    Ok(run.report(setup, strategy, &stats))
}
