//! A training run: its resources, its epochs, and its end.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use lodestore_client::Client;
use lodestore_comm::collective::Collective;
use lodestore_graph::process::{disk_read_bytes, peak_anonymous_bytes};
use lodestore_graph::topology::Topology;
use lodestore_store::Graph;
use lodestore_trainer::report::{EpochReport, RowsFrom};
use lodestore_trainer::{
    Progress, RowVersions, TrainConfig, TrainError, TrainGraph, TrainReport, WorkerSources,
    train_together,
};

use super::local_workers::LocalWorkers;
use super::log::StepLog;
use super::processes::Joined;
use super::sources::Sources;
use super::tiers::{TierReport, Tiers};
use super::watch::VersionWatch;
use super::{TrainRun, Trained, report, sources};
use crate::console::Console;
use crate::interrupt::{RemovedOnInterrupt, SignalGuard};
use crate::scratch::ScratchFolder;
use crate::usage::UsageError;

/// Trains, and reports no epochs.
pub fn train(run: &TrainRun, console: &Console) -> Result<Trained> {
    let (trained, told) = train_telling(run, console, false, &mut |_| Ok(()))?;
    told.map(|()| trained)
}

/// Trains as one of several processes, another of which reports.
pub(super) fn follow(run: &TrainRun) -> Result<()> {
    let console = Console::silent();
    let mut joined = run.form.join(run.train.workers)?;
    let opened = Opened::new(run, &joined, &console);
    // The first process is asked too, or alone, and ends the run for all at the same step.
    let (opened, _heeded) = match opened.and_then(|opened| Ok((opened, SignalGuard::start()?))) {
        Ok(opened) => opened,
        Err(error) => return Err(joined.failed_before(error)),
    };
    let (on, sources) = (opened.train_graph(run), &opened.sources);
    let no_progress = &mut |_: &Progress<'_>| ControlFlow::Continue(());
    // The first process says where the schedule is.
    let config = run.with_schedule(Path::new(""));
    match train_together(&config, &on, sources, joined.collective(), no_progress) {
        Err(error) => Err(joined.failed(error)),
        Ok(_) => {
            let mut figures =
                figures(peak_anonymous_bytes(), disk_read_bytes(), &opened.tiers.report());
            joined.sums(&mut figures)
        }
    }
}

/// Trains; `on_epoch` receives each epoch when it is done. An error of it, or of the log, ends the
/// run immediately; the results so far are returned beside it. So does a signal, from the first
/// step on, if the run `heeds` any; before that, nothing is lost, and the process ends.
pub(super) fn train_telling(
    run: &TrainRun,
    console: &Console,
    heeds: bool,
    on_epoch: &mut dyn FnMut(&EpochReport) -> Result<()>,
) -> Result<(Trained, Result<()>)> {
    if run.form.starts_processes() {
        // Before there is one for each of too many workers.
        check_workers(run.train.workers, Graph::open(&run.graph)?.book().n_parts())?;
    }
    let mut joined = run.form.join(run.train.workers)?;
    let open = || -> Result<_> {
        let (opened, log) = Opened::and_log(run, &joined, console)?;
        let watch = opened.watch(run)?;
        // A schedule without a place of its own goes away with the folder.
        let folder = ScratchFolder::new("lode-train-")?;
        let interrupt = RemovedOnInterrupt::watch(folder.path())?;
        Ok((opened, log, folder, interrupt, watch))
    };
    let (opened, mut log, folder, _interrupt, _watch) = match open() {
        Ok(opened) => opened,
        Err(error) => return Err(joined.failed_before(error)),
    };
    let config = run.with_schedule(folder.path());
    console.stage("setup");
    let (mut told, mut heeded) = (Ok(()), None);
    let (on, sources) = (opened.train_graph(run), &opened.sources);
    let trained = train_together(&config, &on, sources, joined.collective(), &mut |progress| {
        match progress {
            Progress::Schedule { done, total } => console.at("schedule", *done, *total),
            Progress::Step { epoch, done, total, loss, workers } => {
                let stage = format!("{} epoch {} of {}", config.strategy, epoch + 1, config.epochs);
                console.at(&stage, u64::from(*done), u64::from(*total));
                console.detail(|| report::step_line(*loss, workers));
                told = console.check_reader();
                if let (Ok(()), Some(log)) = (&told, &mut log) {
                    told = log.write(workers);
                }
            }
            Progress::Epoch(epoch) => told = on_epoch(epoch),
        }
        if heeds && told.is_ok() && !matches!(progress, Progress::Schedule { .. }) {
            told = heed(&mut heeded);
        }
        if told.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let mut report = match trained {
        Ok(report) => report.context("another process has the report")?,
        Err(error) => return Err(joined.failed(error)),
    };
    let mut tiers = opened.tiers.report();
    if joined.leads() && report.processes > 1 {
        let mut sums = figures(report.peak_anonymous_bytes, report.disk_bytes, &tiers);
        joined.sums(&mut sums)?;
        report.peak_anonymous_bytes = sums[0];
        report.disk_bytes = report.disk_bytes.map(|_| sums[1]);
        tiers.iter_mut().zip(sums[2..].as_chunks().0).for_each(|(tier, sums)| tier.set(*sums));
    }
    if let (Ok(()), Some(error)) = (&told, &report.save_error) {
        told = Err(anyhow!("--save-model: {error}"));
    }
    let error = told.as_ref().err().map(|error| format!("{error:#}"));
    Ok((Trained { report, tiers, error }, told))
}

/// Fails once a signal has asked for the end; heeds them from the first call on.
fn heed(heeded: &mut Option<SignalGuard>) -> Result<()> {
    if heeded.is_none() {
        *heeded = Some(SignalGuard::start()?);
    }
    heeded.iter().try_for_each(SignalGuard::check)?;
    Ok(())
}

/// Returns the report of a process at the end: its memory, and the counters of each tier.
fn figures(memory_bytes: u64, disk_bytes: Option<u64>, tiers: &[TierReport]) -> Vec<u64> {
    let of_tiers = tiers.iter().flat_map(TierReport::figures);
    [memory_bytes, disk_bytes.unwrap_or(0)].into_iter().chain(of_tiers).collect()
}

/// Resources that a process has open to train.
struct Opened {
    graph: Graph,
    topology: Topology,
    sources: Vec<WorkerSources>,
    tiers: Tiers,
    versions: RowVersions,
    client: Option<Arc<Client>>,
}

impl Opened {
    fn new(run: &TrainRun, joined: &Joined, console: &Console) -> Result<Self> {
        console.stage("topology");
        let workers = joined.workers_here(run.train.workers);
        Self::with(run, &LocalWorkers { workers, n_processes: joined.n_here() })
    }

    /// Opens what the workers of `here` need.
    fn with(run: &TrainRun, here: &LocalWorkers) -> Result<Self> {
        let graph = Graph::open(&run.graph)?;
        check_workers(run.train.workers, graph.book().n_parts())?;
        let topology = graph.open_topology()?;
        let opened = sources::open(run, &graph, &topology, here)?;
        let Sources { workers: sources, tiers, versions, client } = opened;
        Ok(Self { graph, topology, sources, tiers, versions, client })
    }

    fn and_log(
        run: &TrainRun,
        joined: &Joined,
        console: &Console,
    ) -> Result<(Self, Option<StepLog>)> {
        let opened = Self::new(run, joined, console)?;
        let resumes = run.train.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.resume);
        let versions = opened.versions;
        let open_log = |path| StepLog::open(path, resumes, versions);
        Ok((opened, run.log.as_deref().map(open_log).transpose()?))
    }

    /// Watches the servers, if there are any, until the result is dropped.
    fn watch(&self, run: &TrainRun) -> Result<Option<VersionWatch>> {
        let watch = |client| VersionWatch::start(client, &run.train.feature_tensor);
        Ok(self.client.as_ref().map(watch).transpose()?.flatten())
    }

    fn train_graph(&self, run: &TrainRun) -> TrainGraph<'_> {
        let (topology, book) = (&self.topology, self.graph.book());
        let uuid = *self.graph.uuid().as_bytes();
        let rows_from = if run.connect.is_empty() { RowsFrom::Embedded } else { RowsFrom::Servers };
        TrainGraph { uuid, topology, book, rows_from }
    }
}

impl TrainRun {
    /// Returns the settings with a place for the schedule. It is the one that is given, else beside
    /// the checkpoints, where a run that continues finds it, else in `scratch`.
    fn with_schedule(&self, scratch: &Path) -> TrainConfig {
        let mut config = self.train.clone();
        let folder = config.checkpoint.as_ref().map_or(scratch, |checkpoint| &checkpoint.dir);
        let beside = folder.join("schedule");
        if let Some(schedule) = config.strategy.schedule_mut() {
            // A path that was not given holds no other user's schedule.
            schedule.replaces_other = self.schedule.is_none();
            schedule.path = self.schedule.clone().unwrap_or(beside);
        }
        config
    }
}

/// Fails for more workers than the graph has partitions, of which each worker owns some.
pub(crate) fn check_workers(workers: u32, n_parts: u16) -> Result<(), UsageError> {
    if workers <= u32::from(n_parts) {
        return Ok(());
    }
    Err(UsageError::new(format!(
        "--workers {workers} needs as many partitions, but the graph has {n_parts}; import it with \
         --parts {workers} or use fewer workers"
    )))
}

/// Trains with a rank for each worker, which is a thread. Gradients and models travel between
/// `ranks`, rows from the servers that `run` names.
///
/// # Errors
/// A graph or source that cannot be opened, and the error of the first worker that fails.
pub fn train_over_links<R: Collective + Send>(
    run: &TrainRun,
    ranks: Vec<R>,
) -> Result<TrainReport> {
    let workers: Vec<u32> = (0..run.train.workers).collect();
    let opened = Opened::with(run, &LocalWorkers { workers, n_processes: 1 })?;
    // Goes away with the folder.
    let folder = ScratchFolder::new("lode-train-")?;
    let (config, on) = (&run.with_schedule(folder.path()), opened.train_graph(run));
    let reports: Vec<Result<Option<TrainReport>, TrainError>> = thread::scope(|scope| {
        let start = |(mut rank, source)| {
            scope.spawn(move || {
                let no_progress = &mut |_: &Progress<'_>| ControlFlow::Continue(());
                let source = std::slice::from_ref(source);
                train_together(config, &on, source, &mut rank, no_progress)
            })
        };
        let threads: Vec<_> = ranks.into_iter().zip(&opened.sources).map(start).collect();
        let join = |(thread, worker): (thread::ScopedJoinHandle<'_, _>, u32)| {
            thread.join().unwrap_or(Err(TrainError::WorkerPanicked { worker }))
        };
        threads.into_iter().zip(0..).map(join).collect()
    });
    let mut leader = None;
    for report in reports {
        leader = report?.or(leader);
    }
    leader.context("a run whose first rank has no report")
}
