//! One worker: batches in, gradients out.

use std::{sync::Arc, time::Instant};

use lodestore_client::hot_set_cache::HotSetStats;
use lodestore_client::load_stats::LoadStats;
use lodestore_client::prefetch::{BatchReadiness, BatchRows, PrefetchStats, PreparedBatch};
use lodestore_client::{BatchLoader, Prefetcher};
use lodestore_graph::{NodeId, batch::Batch, sampler::RootPlan, topology::Topology};
use lodestore_models::conv::Input;
use lodestore_models::loss::{Loss, worst_row};
use lodestore_models::matrix::first_not_finite;
use lodestore_models::matrix::sparse::SparseRows;
use lodestore_models::matrix::workspace::Workspace;
use lodestore_models::model::{Hops, Model};

use crate::config::{Due, TrainConfig};
use crate::error::TrainError;
use crate::features::FeatureRows;
use crate::labels::Labels;
use crate::replay::Replay;
use crate::step::{Place, StepSeconds};
use crate::step_outcome::StepOutcome;

/// Mixed into a batch's seed, so that dropout does not reuse the sampler's numbers.
pub(crate) const DROPOUT_STREAM: u64 = 0x6472_6f70_6f75_7400;

/// A worker's state between steps.
pub(crate) struct Worker<'run, P> {
    pub(crate) worker: u32,
    pub(crate) plan: RootPlan<'run>,
    pub(crate) batches: Box<dyn WorkerBatches<P> + 'run>,
    pub(crate) learner: Learner<'run>,
    /// Recorded times that replace the model.
    pub(crate) replay: Option<&'run Replay>,
    pub(crate) topology: &'run Topology,
    /// Settings of the run.
    pub(crate) config: &'run TrainConfig,
}

/// A model with labels, degrees, and memory for its matrices.
pub(crate) struct Learner<'run> {
    pub(crate) features: FeatureRows,
    pub(crate) model: Model,
    pub(crate) labels: &'run Labels,
    pub(crate) workspace: Workspace,
}

/// Source of a worker's batches.
pub(crate) trait WorkerBatches<P>: Send {
    /// Returns the batch of an order with its rows. With `form`, rows may be returned by their
    /// non-zero elements.
    fn next(
        &mut self,
        order: &StepOrder<P>,
        seed: u64,
        form: Option<&FeatureRows>,
    ) -> Result<LoadedBatch, TrainError>;

    /// Returns how ready batches were so far.
    fn stats(&self) -> PrefetchStats;
}

/// Rows that a worker keeps from batch to batch.
pub(crate) trait KeptRows: Send + Sync {
    /// Returns counters and memory of the kept rows.
    fn stats(&self) -> HotSetStats;

    /// Returns the VectorPulls that filled it for epochs up to and including `epoch`.
    fn pulled_until(&self, epoch: u32) -> LoadStats;
}

/// A batch with its rows, and the figures of its preparation.
pub(crate) struct LoadedBatch {
    pub(crate) batch: Batch,
    pub(crate) rows: StepRows<BatchBytes>,
    pub(crate) load: LoadStats,
    pub(crate) met: BatchReadiness,
    pub(crate) sample_seconds: f64,
    pub(crate) wait_seconds: f64,
}

/// The rows of a batch as bytes, borrowed from their owner.
pub(crate) struct BatchBytes(Box<dyn AsRef<[u8]>>);

/// Batches of a prefetcher, one for each step.
pub(crate) struct WindowBatches<'run>(pub(crate) Prefetcher<'run>);

/// Bytes of rows that a prefetcher brought.
struct PrefetchedRows(BatchRows);

/// The feature rows of a batch.
pub(crate) enum StepRows<R> {
    Bytes(R),
    /// By non-zero elements, without a copy of all bytes.
    Sparse(SparseRows),
}

/// A batch with its rows.
pub(crate) struct StepInput<R> {
    pub(crate) batch: Batch,
    pub(crate) rows: StepRows<R>,
    pub(crate) place: Place,
    /// Seed of the batch.
    pub(crate) seed: u64,
}

/// Batch that a worker trains on next.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepOrder<P> {
    pub(crate) epoch: u32,
    pub(crate) batch: u32,
    /// Part of the step, if a step has several.
    pub(crate) part: P,
    /// Whether it is the worker's last batch of the epoch.
    pub(crate) ends_epoch: bool,
}

impl<P> Worker<'_, P> {
    /// Trains on the batch of an order.
    pub(crate) fn step(&mut self, order: &StepOrder<P>) -> Result<StepOutcome, TrainError> {
        let seed = self.plan.seed_of(self.worker, order.epoch, order.batch);
        let form = self.replay.is_none().then_some(&self.learner.features);
        let loaded = self.batches.next(order, seed, form)?;
        let mut outcome = loaded.outcome();
        let LoadedBatch { batch, rows, .. } = loaded;
        if batch.n_roots > 0 {
            let place = Place { epoch: order.epoch, step: order.batch };
            self.train_on(StepInput { batch, rows, place, seed }, &mut outcome)?;
        }
        self.learner.workspace.end_step();
        let has_test = !self.learner.labels.test.is_empty();
        let is_evaluated = || self.config.evaluation_after(order.epoch + 1, has_test) != Due::No;
        if order.ends_epoch && is_evaluated() {
            self.learner.workspace.clear();
        }
        outcome.prefetch = self.batches.stats();
        Ok(outcome)
    }

    /// Computes the gradient of a batch with roots.
    fn train_on(
        &mut self,
        input: StepInput<BatchBytes>,
        outcome: &mut StepOutcome,
    ) -> Result<(), TrainError> {
        let start = Instant::now();
        let batch = &input.batch;
        (outcome.n_roots, outcome.n_nodes) = (batch.n_roots as u64, batch.nodes.len() as u64);
        if let (Some(replay), StepRows::Bytes(rows)) = (self.replay, &input.rows) {
            let parameters = self.learner.model.parameters();
            outcome.gradients = parameters.iter().map(|of| vec![0.0; of.n_elements()]).collect();
            outcome.loss = replay.step(input.place.step, outcome.n_roots, rows.as_ref(), start);
            outcome.seconds.compute = start.elapsed().as_secs_f64();
            return Ok(());
        }
        let degree = |node| self.topology.in_degree(node);
        self.learner.learn(input, &degree, outcome)?;
        outcome.seconds.compute = start.elapsed().as_secs_f64();
        Ok(())
    }
}

impl Learner<'_> {
    /// Computes the gradient of a batch with roots; `degree` returns in-degrees in the whole graph.
    pub(crate) fn learn(
        &mut self,
        input: StepInput<impl AsRef<[u8]>>,
        degree: &dyn Fn(NodeId) -> u32,
        outcome: &mut StepOutcome,
    ) -> Result<(), TrainError> {
        let StepInput { batch, rows, place, seed } = input;
        let targets = self.labels.targets_of(batch.roots());
        let blocks: Vec<_> = batch.blocks.into_iter().map(Arc::new).collect();
        let hops = Hops { blocks: &blocks, nodes: &batch.nodes, degree };

        let (width, mut of_bytes) = (self.features.width, None);
        let features = match &rows {
            StepRows::Sparse(rows) => Input::Sparse(rows),
            StepRows::Bytes(rows) => match of_bytes.insert(self.features.sparse(rows.as_ref())) {
                Some(rows) => Input::Sparse(rows),
                None => Input::Features { x: self.features.view(rows.as_ref()), width },
            },
        };
        let pass = self.model.forward(hops, features, seed ^ DROPOUT_STREAM, &self.workspace);
        let loss = Loss::new(pass.logits(), &targets);
        if !loss.mean.is_finite() {
            self.check_features(place, &batch.nodes, &rows)?;
            let node = batch.nodes[worst_row(pass.logits())];
            return Err(TrainError::Diverged { node, place, loss: loss.mean });
        }
        drop((rows, of_bytes));
        outcome.gradients = self.model.backward(pass, loss.gradient, &self.workspace);
        (outcome.loss, outcome.n_right) = (loss.mean, loss.n_right);
        Ok(())
    }

    /// Fails if a feature of `nodes` is not finite.
    fn check_features(
        &mut self,
        place: Place,
        nodes: &[NodeId],
        rows: &StepRows<impl AsRef<[u8]>>,
    ) -> Result<(), TrainError> {
        let width = self.features.width;
        let found = match rows {
            StepRows::Sparse(rows) => rows.first_not_finite(),
            StepRows::Bytes(rows) => first_not_finite(self.features.view(rows.as_ref()), width),
        };
        let Some((row, column, found)) = found else { return Ok(()) };
        Err(TrainError::Feature { node: nodes[row], column, found, place })
    }
}

impl BatchBytes {
    pub(crate) fn new(rows: impl AsRef<[u8]> + 'static) -> Self {
        Self(Box::new(rows))
    }
}

impl AsRef<[u8]> for BatchBytes {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl LoadedBatch {
    /// Returns the outcome of a step with this batch, without loss and gradients.
    fn outcome(&self) -> StepOutcome {
        let load = self.load;
        let seconds = StepSeconds {
            sample: self.sample_seconds,
            lookup: load.lookup_seconds,
            pull: load.pull_seconds,
            read: load.read_seconds,
            copy: load.copy_seconds,
            wait: self.wait_seconds,
            ..StepSeconds::default()
        };
        StepOutcome { load, met: self.met, seconds, ..StepOutcome::default() }
    }
}

impl<P> WorkerBatches<P> for WindowBatches<'_> {
    fn next(
        &mut self,
        _order: &StepOrder<P>,
        _seed: u64,
        form: Option<&FeatureRows>,
    ) -> Result<LoadedBatch, TrainError> {
        let mut sparse = None;
        let mut take = |loader: &BatchLoader, nodes: &[NodeId]| {
            let loaded = form.map(|form| form.load_sparse(loader, nodes)).transpose()?;
            Ok(loaded.flatten().map(|(rows, stats)| {
                sparse = Some(rows);
                stats
            }))
        };
        let Some(prepared) = self.0.next_batch_or(&mut take)? else {
            unreachable!("as many orders as batches")
        };
        let PreparedBatch { batch, rows, load, sample_seconds, met, wait_seconds } = prepared;
        let rows = match sparse {
            Some(rows) => StepRows::Sparse(rows),
            None => StepRows::Bytes(BatchBytes::new(PrefetchedRows(rows))),
        };
        Ok(LoadedBatch { batch, rows, load, met, sample_seconds, wait_seconds })
    }

    fn stats(&self) -> PrefetchStats {
        self.0.stats()
    }
}

impl AsRef<[u8]> for PrefetchedRows {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}
