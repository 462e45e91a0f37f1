//! Accuracy with full neighbourhoods.

use candle_core::{Device, Tensor};
use lodestore_cache::HotSet;
use lodestore_client::{BatchLoader, ClientError, RowBuffer};
use lodestore_graph::{NodeId, batch::Batch, sampler::Sampler, topology::Topology};
use rayon::prelude::*;

use crate::{
    TrainError,
    features::FeatureRows,
    labels::Labels,
    linear::Linear,
    model::Model,
    spmm::{OwnRows, Spmm},
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
/// Memory: per 65 536 roots, the edges of their neighbourhoods (8 bytes each and layer) and two
/// hidden rows for each node of the neighbourhoods. Features pass in chunks.
pub(crate) struct Evaluator<'a> {
    batches: Vec<EvaluationBatch>,
    labels: &'a Labels,
    features: FeatureRows,
    loader: BatchLoader,
    no_hot: HotSet,
    limits: EvaluationLimits,
}

struct EvaluationBatch {
    nodes: Vec<NodeId>,
    n_roots: usize,
    /// Roots before this one are validation nodes, the others test nodes.
    n_validation: usize,
    steps: Vec<Spmm>,
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
        model: &Model,
        labels: &'a Labels,
        topology: &Topology,
        mut sampler: Sampler<'_>,
        features: FeatureRows,
        loader: BatchLoader,
        limits: EvaluationLimits,
    ) -> Result<Self, TrainError> {
        let no_hot = HotSet::empty(loader.row_bytes()).map_err(ClientError::from)?;
        let roots: Vec<NodeId> = labels.validation.iter().chain(&labels.test).copied().collect();
        let batches = roots
            .chunks(limits.roots)
            .enumerate()
            .map(|(i, roots)| {
                let before = i * limits.roots;
                let n_validation = labels.validation.len().saturating_sub(before).min(roots.len());
                let Batch { nodes, blocks, .. } = sampler.sample(roots, 0);
                let degree = |node| topology.in_degree(node);
                let steps = model.steps(blocks, &nodes, &degree);
                EvaluationBatch { nodes, n_roots: roots.len(), n_validation, steps }
            })
            .collect();
        Ok(Self { batches, labels, features, loader, no_hot, limits })
    }

    /// The accuracy of `model` as it is now.
    pub(crate) fn accuracy(&mut self, model: &Model) -> Result<Accuracy, TrainError> {
        let (mut right_validation, mut right_test) = (0, 0);
        for i in 0..self.batches.len() {
            let hidden = self.first_layer(i, &model.layers()[0])?;
            let EvaluationBatch { nodes, n_roots, n_validation, steps } = &self.batches[i];
            let logits = model.finish_evaluation(&steps[1..], hidden)?;
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

    /// The first layer's output for all destinations of batch `batch`.
    ///
    /// Transforms first and aggregates after, `A·(X·W)`, the other way round than training:
    /// so each row of features is read once, and what stays in memory is narrow.
    fn first_layer(&mut self, batch: usize, layer: &Linear) -> Result<Tensor, TrainError> {
        let EvaluationBatch { nodes, steps, .. } = &self.batches[batch];
        let (step, width) = (&steps[0], self.features.width());
        let (n_dst, out_width) = (step.block().n_dst as usize, layer.weight().dim(1)?);
        let weight = layer.weight().as_tensor();
        let (own_weight, weight) = match step.own_rows() {
            OwnRows::Beside => (Some(weight.narrow(0, 0, width)?), weight.narrow(0, width, width)?),
            OwnRows::Added(_) => (None, weight.clone()),
        };
        let mut transformed = Vec::with_capacity(nodes.len() * out_width);
        let mut out = Vec::with_capacity(n_dst * out_width);
        let mut buffer = RowBuffer::default();
        for chunk in nodes.chunks((self.limits.chunk_bytes / (4 * width)).max(1)) {
            buffer.resize(chunk.len() * self.loader.row_bytes());
            self.loader.load(chunk, &self.no_hot, buffer.bytes_mut())?;
            let rows = self.features.view(&mut buffer);
            let rows = Tensor::from_slice(rows, (chunk.len(), width), &Device::Cpu)?;
            transformed.extend(rows.matmul(&weight)?.flatten_all()?.to_vec1::<f32>()?);
            if let Some(own_weight) = &own_weight {
                out.extend(rows.matmul(own_weight)?.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        if let OwnRows::Added(weights) = step.own_rows() {
            let rows = transformed.chunks_exact(out_width).zip(weights.iter());
            out.extend(rows.flat_map(|(row, weight)| row.iter().map(move |v| v * weight)));
        }
        out.truncate(n_dst * out_width);
        out.par_chunks_exact_mut(out_width).enumerate().for_each(|(dst, row)| {
            step.add_neighbours(dst, &transformed, row);
        });
        Ok(Tensor::from_vec(out, (n_dst, out_width), &Device::Cpu)?.broadcast_add(layer.bias())?)
    }
}

#[cfg(test)]
mod tests;
