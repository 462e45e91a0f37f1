//! One worker: batches in, gradients out.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender},
    },
    time::Instant,
};

use lodestore_client::{Prefetcher, PreparedBatch};
use lodestore_graph::{NodeId, topology::Topology};

use crate::{
    TrainConfig, TrainError,
    features::FeatureRows,
    labels::Labels,
    layer::Input,
    loss::Loss,
    model::{Hops, Model},
    step::StepSeconds,
    step_outcome::StepOutcome,
    strategy::seed_of_batch,
};

/// Mixed into a batch's seed, so that dropout does not reuse the sampler's numbers.
const DROPOUT_STREAM: u64 = 0x6472_6f70_6f75_7400;

/// A worker's state between steps.
pub(crate) struct Worker<'run> {
    pub(crate) worker: u32,
    pub(crate) config: &'run TrainConfig,
    pub(crate) prefetcher: Prefetcher<'run>,
    pub(crate) features: FeatureRows,
    pub(crate) model: &'run Model,
    pub(crate) topology: &'run Topology,
    pub(crate) labels: &'run Labels,
}

/// Which batch a worker is to train on next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepOrder {
    pub(crate) epoch: u32,
    pub(crate) batch: u32,
}

impl Worker<'_> {
    /// Fails for features that are no numbers, of `nodes` in their order.
    fn check_features(
        &mut self,
        order: StepOrder,
        nodes: &[NodeId],
        rows: &[u8],
    ) -> Result<(), TrainError> {
        let width = self.features.width();
        let values = self.features.view(rows);
        let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
        Err(TrainError::Feature {
            node: nodes[at / width],
            column: at % width,
            found: values[at],
            epoch: order.epoch,
            step: order.batch,
        })
    }

    /// Trains on one batch per order until the orders end or a batch fails.
    pub(crate) fn run(
        mut self,
        orders: &Receiver<StepOrder>,
        outcomes: &SyncSender<Result<StepOutcome, TrainError>>,
    ) {
        while let Ok(order) = orders.recv() {
            let outcome = self.step(order);
            let failed = outcome.is_err();
            if outcomes.send(outcome).is_err() || failed {
                return;
            }
        }
    }

    fn step(&mut self, order: StepOrder) -> Result<StepOutcome, TrainError> {
        let Some(prepared) = self.prefetcher.next_batch()? else {
            unreachable!("as many orders as batches")
        };
        let start = Instant::now();
        let PreparedBatch { batch, rows, load, sample_seconds, met, wait_seconds } = prepared;
        let n_roots = batch.n_roots;
        if n_roots == 0 {
            return Ok(StepOutcome {
                met,
                prefetch: self.prefetcher.stats(),
                ..StepOutcome::default()
            });
        }
        let targets = self.labels.targets_of(batch.roots());
        let blocks: Vec<_> = batch.blocks.into_iter().map(Arc::new).collect();
        let degree = |node| self.topology.in_degree(node);
        let hops = Hops { blocks: &blocks, nodes: &batch.nodes, degree: &degree };

        let seed =
            seed_of_batch(self.config, self.worker, order.epoch, order.batch) ^ DROPOUT_STREAM;
        let (sparse, width) = (self.features.sparse(rows.bytes()), self.features.width());
        let features = match &sparse {
            Some(sparse) => Input::Sparse(sparse),
            None => Input::Features { x: self.features.view(rows.bytes()), width },
        };
        let pass = self.model.forward(hops, features, seed)?;
        let loss = Loss::new(pass.logits(), targets)?;
        if !loss.mean.is_finite() {
            self.check_features(order, &batch.nodes, rows.bytes())?;
        }
        drop((rows, sparse));
        let gradients = self.model.backward(pass, loss.gradient)?;
        let seconds = StepSeconds {
            sample: sample_seconds,
            lookup: load.lookup_seconds,
            pull: load.pull_seconds,
            copy: load.copy_seconds,
            wait: wait_seconds,
            compute: start.elapsed().as_secs_f64(),
            ..StepSeconds::default()
        };
        Ok(StepOutcome {
            loss: loss.mean,
            n_roots: n_roots as u64,
            n_right: loss.n_right,
            gradients,
            load,
            n_nodes: batch.nodes.len() as u64,
            seconds,
            met,
            prefetch: self.prefetcher.stats(),
        })
    }
}
