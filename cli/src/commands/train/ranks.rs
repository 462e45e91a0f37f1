//! Training in one process as if each worker were a machine, with links between them.

use std::ops::ControlFlow;
use std::thread;

use anyhow::{Context, Result};
use lodestore_trainer::collective::Collective;
use lodestore_trainer::{Progress, TrainError, TrainReport, train_together};

use super::policy_inputs::LocalWorkers;
use super::{Opened, TrainRun};

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
    let opened = Opened::with(run, LocalWorkers { workers, n_processes: 1 })?;
    let (config, on) = (&run.train, opened.train_graph(run));
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
