//! The training loop: workers compute gradients, the coordinator averages and updates.

use std::{sync::Arc, thread::scope, time::Instant};

use lodestore_client::{BatchLoader, ClientError, RowSource};
use lodestore_graph::{PartId, PartitionBook, topology::Topology};

use crate::{
    EpochReport, TrainConfig, TrainError, TrainReport, adam::Adam, best::Best, record::Record,
    report::RowsFrom, setup::Setup, team::Team,
};

/// The graph to train on; rows are not part of it.
#[derive(Clone, Copy, Debug)]
pub struct TrainGraph<'a> {
    /// In-neighbours of all nodes.
    pub topology: &'a Topology,
    /// Which partition owns which node.
    pub book: &'a PartitionBook,
    /// Identity of the graph, which a schedule is bound to.
    pub uuid: [u8; 16],
    /// What the remote sources are, for the report.
    pub rows_from: RowsFrom,
}

/// Where one worker's rows come from.
#[derive(Clone)]
pub struct WorkerSources {
    /// Rows of the worker's own partitions.
    pub local: Arc<dyn RowSource>,
    /// All other rows; only these count as communication. For `massive` a
    /// [`lodestore_client::HaloBuffer`], for others any tier or none.
    pub remote: Arc<dyn RowSource>,
    /// The same rows without any tier that `remote` has: measuring accuracy reads all of them once,
    /// and would sweep it. Only the first worker's is used.
    pub untiered: Arc<dyn RowSource>,
}

impl WorkerSources {
    /// A loader of `tensor` for a worker that owns `owned`.
    pub(crate) fn loader(
        &self,
        tensor: &str,
        owned: &[PartId],
    ) -> Result<BatchLoader, ClientError> {
        BatchLoader::new(Arc::clone(&self.local), Arc::clone(&self.remote), tensor, owned)
    }

    /// The same past any tier.
    pub(crate) fn untiered_loader(
        &self,
        tensor: &str,
        owned: &[PartId],
    ) -> Result<BatchLoader, ClientError> {
        BatchLoader::new(Arc::clone(&self.local), Arc::clone(&self.untiered), tensor, owned)
    }
}

/// What a run tells while it runs.
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
    },
    /// An epoch is done and evaluated.
    Epoch(&'a EpochReport),
}

/// Trains as `config` says, with one entry of `sources` per worker.
///
/// The same config, graph and rows give the same losses bit for bit, whatever the strategy, the
/// number of cores, and the sources' speed.
pub fn train(
    config: &TrainConfig,
    graph: &TrainGraph<'_>,
    sources: &[WorkerSources],
    progress: &mut dyn FnMut(&Progress<'_>),
) -> Result<TrainReport, TrainError> {
    let start = Instant::now();
    let setup = Setup::new(config, *graph, sources, progress)?;
    let model = &setup.model;
    let mut adam = Adam::new(model.parameters(), config.learning_rate, config.weight_decay)?;
    let mut evaluator = setup.evaluator()?;
    scope(|scope| {
        let mut team = Team::start(scope, setup.recruits(scope)?)?;
        let mut record = Record::new(start.elapsed().as_secs_f64());
        let mut best = Best::default();
        for epoch in 0..config.epochs {
            train_epoch(epoch, &mut team, &mut adam, &mut record, progress)?;
            let every = config.evaluate_every;
            if epoch + 1 == config.epochs || (every > 0 && (epoch + 1) % every == 0) {
                let accuracy = evaluator.accuracy(model)?;
                record.evaluated(accuracy);
                best.evaluated(epoch, accuracy, || adam.values());
            }
            if let Some(epoch) = record.epochs().last() {
                progress(&Progress::Epoch(epoch));
            }
            if best.is_stale(config.patience) {
                break;
            }
        }
        Ok(record.report(&setup, &best, &adam.values(), &team.stats(config.epochs)))
    })
}

/// One pass over the training nodes.
fn train_epoch(
    epoch: u32,
    team: &mut Team<'_>,
    adam: &mut Adam,
    record: &mut Record,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> Result<(), TrainError> {
    let start = Instant::now();
    let total = team.n_steps();
    record.begin_epoch(epoch);
    for step in 0..total {
        let outcome = team.step(epoch, step)?;
        let loss = outcome.loss;
        if !loss.is_finite() {
            return Err(TrainError::Diverged { epoch, step, loss });
        }
        adam.step(&outcome.gradients)?;
        record.stepped(&outcome);
        progress(&Progress::Step { epoch, done: step + 1, total, loss });
    }
    record.end_epoch(start.elapsed().as_secs_f64(), &team.stats(epoch));
    Ok(())
}
