//! Accuracy with full neighbourhoods.

mod first_layer;

use std::sync::Arc;

use candle_core::{Device, Tensor};
use lodestore_client::BatchLoader;
use lodestore_graph::{
    NodeId,
    batch::{Batch, Block},
    sampler::Sampler,
    topology::Topology,
};

use crate::{
    TrainError,
    features::FeatureRows,
    labels::Labels,
    model::{Hops, Model},
    worker::count_right,
};

/// What is held at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvaluationLimits {
    /// Roots evaluated together: their neighbourhoods overlap, and each row is read once for all.
    pub(crate) roots: usize,
    /// Bytes of feature rows, as f32.
    pub(crate) chunk_bytes: usize,
}

impl Default for EvaluationLimits {
    fn default() -> Self {
        Self { roots: 1 << 16, chunk_bytes: 16 << 20 }
    }
}

/// The nodes to evaluate with their full computation graphs, sampled once and used every time.
///
/// Memory: per 65 536 roots, the edges of their neighbourhoods (4 bytes each and layer). In the layer
/// at hand 4 more for each edge, with attention 8 for each head; and hidden rows, two for each source
/// (three with attention) and four for each destination. Features pass in chunks.
pub(crate) struct Evaluator<'a> {
    batches: Vec<EvaluationBatch>,
    labels: &'a Labels,
    topology: &'a Topology,
    features: FeatureRows,
    loader: BatchLoader,
    limits: EvaluationLimits,
}

struct EvaluationBatch {
    nodes: Vec<NodeId>,
    n_roots: usize,
    /// Roots before this one are validation nodes, the others test nodes.
    n_validation: usize,
    blocks: Vec<Arc<Block>>,
}

/// Accuracy on both splits; absent for an empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Accuracy {
    pub(crate) validation: Option<f64>,
    pub(crate) test: Option<f64>,
}

impl<'a> Evaluator<'a> {
    /// Samples the neighbourhoods of all validation and test nodes; `sampler` takes all
    /// neighbours at every hop.
    pub(crate) fn new(
        labels: &'a Labels,
        topology: &'a Topology,
        mut sampler: Sampler<'_>,
        features: FeatureRows,
        loader: BatchLoader,
        limits: EvaluationLimits,
    ) -> Result<Self, TrainError> {
        let roots: Vec<NodeId> = labels.validation.iter().chain(&labels.test).copied().collect();
        let batches = roots
            .chunks(limits.roots)
            .enumerate()
            .map(|(i, roots)| {
                let before = i * limits.roots;
                let n_validation = labels.validation.len().saturating_sub(before).min(roots.len());
                let Batch { nodes, blocks, .. } = sampler.sample(roots, 0);
                let blocks = blocks.into_iter().map(Arc::new).collect();
                EvaluationBatch { nodes, n_roots: roots.len(), n_validation, blocks }
            })
            .collect();
        Ok(Self { batches, labels, topology, features, loader, limits })
    }

    /// The accuracy of `model` as it is now.
    pub(crate) fn accuracy(&mut self, model: &Model) -> Result<Accuracy, TrainError> {
        let (mut right_validation, mut right_test) = (0, 0);
        for i in 0..self.batches.len() {
            let hidden = self.first_layer(i, model.first_layer())?;
            let EvaluationBatch { nodes, n_roots, n_validation, blocks } = &self.batches[i];
            let topology = self.topology;
            let degree = |node| topology.in_degree(node);
            let hops = Hops { blocks, nodes, degree: &degree };
            let logits = model.finish_evaluation(hops, hidden)?;
            let classes = self.labels.classes_of(&nodes[..*n_roots]);
            let targets = Tensor::from_vec(classes, *n_roots, &Device::Cpu)?;
            let right = |from, n| -> Result<u64, TrainError> {
                if n == 0 {
                    return Ok(0);
                }
                count_right(&logits.narrow(0, from, n)?, &targets.narrow(0, from, n)?)
            };
            right_validation += right(0, *n_validation)?;
            right_test += right(*n_validation, n_roots - n_validation)?;
        }
        let rate = |right: u64, n: usize| (n > 0).then(|| right as f64 / n as f64);
        Ok(Accuracy {
            validation: rate(right_validation, self.labels.validation.len()),
            test: rate(right_test, self.labels.test.len()),
        })
    }
}

#[cfg(test)]
mod tests;
