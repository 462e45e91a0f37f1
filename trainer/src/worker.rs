//! One worker: batches in, gradients out.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender},
    },
    time::Instant,
};

use candle_core::{D, Device, Tensor, Var};
use lodestore_client::{Prefetcher, PreparedBatch};
use lodestore_graph::topology::Topology;

use crate::{
    TrainConfig, TrainError,
    features::FeatureRows,
    labels::Labels,
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
    pub(crate) parameters: Vec<Var>,
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
        let classes = self.labels.classes_of(batch.roots());
        let targets = Tensor::from_vec(classes, n_roots, &Device::Cpu)?;
        let blocks: Vec<_> = batch.blocks.into_iter().map(Arc::new).collect();
        let degree = |node| self.topology.in_degree(node);
        let hops = Hops { blocks: &blocks, nodes: &batch.nodes, degree: &degree };

        let seed =
            seed_of_batch(self.config, self.worker, order.epoch, order.batch) ^ DROPOUT_STREAM;
        let width = self.features.width();
        let logits = self.model.forward(hops, self.features.view(rows.bytes()), width, seed)?;
        drop(rows);
        let loss = candle_nn::loss::cross_entropy(&logits, &targets)?;
        let (n_right, gradients) = (count_right(&logits, &targets)?, self.gradients(&loss)?);
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
            loss: f64::from(loss.to_scalar::<f32>()?),
            n_roots: n_roots as u64,
            n_right,
            gradients,
            load,
            n_nodes: batch.nodes.len() as u64,
            seconds,
            met,
            prefetch: self.prefetcher.stats(),
        })
    }

    fn gradients(&self, loss: &Tensor) -> Result<Vec<Vec<f32>>, TrainError> {
        let grads = loss.backward()?;
        let gradient = |parameter: &Var| match grads.get(parameter) {
            Some(grad) => grad.flatten_all()?.to_vec1(),
            None => Ok(vec![0.0; parameter.elem_count()]),
        };
        Ok(self.parameters.iter().map(gradient).collect::<Result<_, _>>()?)
    }
}

/// Rows whose largest logit is that of their class.
pub(crate) fn count_right(logits: &Tensor, targets: &Tensor) -> Result<u64, TrainError> {
    let right = logits.argmax(D::Minus1)?.eq(targets)?;
    let n_right = right.to_vec1::<u8>()?.into_iter().map(u64::from).sum();
    Ok(n_right)
}
