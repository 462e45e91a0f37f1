//! A worker that trains the local models of its partitions, one after the other.

use std::time::Instant;

use lodestore_client::ClientError;
use lodestore_client::buffer::RowBuffer;
use lodestore_client::load_stats::LoadStats;
use lodestore_client::parts::PartitionTraffic;
use lodestore_client::parts::turns::{Ready, Turns};
use lodestore_client::prefetch::{BatchReadiness, PrefetchStats};
use lodestore_graph::{
    NodeId,
    sampler::{Fanout, RootPlan, Sampler, epoch_order},
};
use lodestore_models::adam::ReplicaState;
use serde::{Deserialize, Serialize};

use super::average::check_finite;
use crate::config::{Due, TrainConfig};
use crate::error::TrainError;
use crate::replica::Replica;
use crate::step::Place;
use crate::step_outcome::StepOutcome;
use crate::worker::{Learner, StepInput, StepRows};

/// A worker's state between partitions.
pub(crate) struct PartitionWorker<'run> {
    pub(crate) config: &'run TrainConfig,
    /// Whether all neighbours of a partition's training nodes are in its batch.
    pub(crate) full_partition: bool,
    /// One share of the training nodes for each partition.
    pub(crate) plan: RootPlan<'run>,
    pub(crate) train: &'run [NodeId],
    pub(crate) learner: Learner<'run>,
    pub(crate) turns: Turns,
    /// The epoch of the cached order of training nodes, and that order.
    pub(crate) order: Option<(u32, Vec<NodeId>)>,
    pub(crate) stats: PrefetchStats,
    /// Memory of a batch's rows.
    pub(crate) rows: RowBuffer,
}

/// Local model that a worker trains next.
pub(crate) struct PartitionOrder {
    pub(crate) epoch: u32,
    pub(crate) part: u32,
    pub(crate) state: ReplicaState,
}

/// A local model after an epoch of its partition.
pub(crate) struct Trained {
    pub(crate) figures: PartitionFigures,
    pub(crate) state: ReplicaState,
}

/// The figures of an epoch of a partition.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PartitionFigures {
    pub(crate) part: u32,
    pub(crate) n_batches: u64,
    #[serde(flatten)]
    pub(crate) loaded: PartitionTraffic,
    pub(crate) outcome: StepOutcome,
}

impl PartitionWorker<'_> {
    /// Trains the local model of a partition for an epoch, with no row from outside of it.
    pub(super) fn train(&mut self, order: PartitionOrder) -> Result<Trained, TrainError> {
        let PartitionOrder { epoch, part, state } = order;
        let batches = self.batches(epoch, part);
        let mut figures = PartitionFigures { part, ..PartitionFigures::default() };
        if batches.is_empty() {
            return Ok(Trained { figures, state });
        }
        let (ready, met, wait) = self.turns.next()?;
        let mut replica = Replica::new(&self.learner.model, self.config, batches.len() as u32)?;
        replica.adam.restore(state);
        figures.n_batches = batches.len() as u64;
        let fanouts = match self.full_partition {
            true => vec![Fanout::All; self.config.fanouts.len()],
            false => self.config.fanouts.clone(),
        };
        let local = &*ready.partition;
        let mut sampler = Sampler::named(&local.topology, &fanouts, &local.nodes);
        let mut outcome = StepOutcome::default();
        for (number, roots) in (0..).zip(&batches) {
            let of_batch = self.step(&ready, &mut sampler, Place { epoch, step: number }, roots);
            let mut of_batch = of_batch.map_err(|error| match error {
                TrainError::Diverged { loss, .. } => TrainError::LocalModel {
                    part,
                    fault: format!(
                        "a loss of {loss} in epoch {epoch}, batch {number}; it is not averaged in; \
                         try a lower learning rate"
                    ),
                },
                error => error,
            })?;
            let update = Instant::now();
            let done = u64::from(epoch) * batches.len() as u64 + u64::from(number);
            replica.update_at(done, &mut of_batch.gradients);
            of_batch.seconds.update = update.elapsed().as_secs_f64();
            self.learner.workspace.end_step();
            outcome.add(&of_batch);
        }
        drop(sampler);
        if ready.is_new {
            figures.loaded = local.loaded;
            outcome.load += local.pulled;
        }
        self.stats.peak_bytes = self.stats.peak_bytes.max(ready.held_bytes);
        self.stats.wait_seconds += wait;
        *match met {
            BatchReadiness::Ready => &mut self.stats.ready,
            _ => &mut self.stats.waited,
        } += 1;
        self.turns.release(ready);
        let has_test = !self.learner.labels.test.is_empty();
        if self.config.evaluation_after(epoch + 1, has_test) != Due::No {
            // An evaluation allocates its own memory.
            self.learner.workspace.clear();
        }
        outcome.seconds.wait += wait;
        (outcome.met, outcome.prefetch) = (met, self.stats);
        let state = replica.adam.state();
        check_finite(part, &state)?;
        Ok(Trained { figures: PartitionFigures { outcome, ..figures }, state })
    }

    /// Computes the gradient of a batch.
    fn step(
        &mut self,
        ready: &Ready,
        sampler: &mut Sampler<'_>,
        place: Place,
        roots: &[NodeId],
    ) -> Result<StepOutcome, TrainError> {
        let (start, local) = (Instant::now(), &*ready.partition);
        let seed = self.plan.seed_of(local.part, place.epoch, place.step);
        let roots = local.local_ids(roots);
        let batch = sampler.sample_at_most(&roots, seed, u32::MAX).map_err(ClientError::from);
        let mut batch = batch?;
        let sampled = start.elapsed().as_secs_f64();
        let row_of = |row: usize| local.row(batch.nodes[row]);
        let rows = match self.learner.features.sparse_of(batch.nodes.len(), row_of) {
            Some(rows) => StepRows::Sparse(rows),
            None => {
                local.gather(&batch.nodes, &mut self.rows);
                StepRows::Bytes(self.rows.bytes())
            }
        };
        batch.nodes.iter_mut().for_each(|node| *node = local.nodes[node.index()]);
        let gathered = start.elapsed().as_secs_f64();
        let mut outcome = StepOutcome {
            n_roots: batch.n_roots as u64,
            n_nodes: batch.nodes.len() as u64,
            load: LoadStats { local_rows: batch.nodes.len() as u64, ..LoadStats::default() },
            ..StepOutcome::default()
        };
        self.stats.max_nodes = self.stats.max_nodes.max(outcome.n_nodes);
        let degree = |node| local.degree(node);
        self.learner.learn(StepInput { batch, rows, place, seed }, &degree, &mut outcome)?;
        outcome.seconds.sample = sampled;
        outcome.seconds.copy = gathered - sampled;
        outcome.seconds.wait = gathered;
        outcome.seconds.compute = start.elapsed().as_secs_f64() - gathered;
        Ok(outcome)
    }

    /// Returns the roots of each batch of a partition in an epoch.
    fn batches(&mut self, epoch: u32, part: u32) -> Vec<Vec<NodeId>> {
        if self.order.as_ref().is_none_or(|(of, _)| *of != epoch) {
            self.order = Some((epoch, epoch_order(self.plan.seed, epoch, self.train)));
        }
        let order = self.order.as_ref().map_or(&[][..], |(_, order)| order);
        self.plan.batches(order, part)
    }
}
