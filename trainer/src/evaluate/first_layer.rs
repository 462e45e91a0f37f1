//! The first layer in chunks of feature rows.
//!
//! Transforms first and aggregates after, `A·(X·W)`, for GraphSAGE and GCN the other way round than
//! training: so each row of features is read once, and what stays in memory is narrow.

use candle_core::{Device, Result, Tensor};
use lodestore_client::RowBuffer;

use super::{EvaluationBatch, Evaluator};
use crate::{
    TrainError,
    layer::{Hop, Layer},
};

impl Evaluator<'_> {
    /// The first layer's output for all destinations of batch `batch`.
    pub(super) fn first_layer(
        &mut self,
        batch: usize,
        layer: &Layer,
    ) -> std::result::Result<Tensor, TrainError> {
        let EvaluationBatch { nodes, blocks, .. } = &self.batches[batch];
        let width = self.features.width();
        let weights = layer.feature_weights(width)?;
        let mut projected: Vec<Vec<f32>> = vec![Vec::new(); weights.len()];
        let mut buffer = RowBuffer::default();
        for chunk in nodes.chunks((self.limits.chunk_bytes / (4 * width)).max(1)) {
            buffer.resize(chunk.len() * self.loader.row_bytes());
            self.loader.load(chunk, buffer.bytes_mut())?;
            let rows = self.features.view(buffer.bytes());
            let rows = Tensor::from_slice(rows, (chunk.len(), width), &Device::Cpu)?;
            for (projected, weight) in projected.iter_mut().zip(&weights) {
                projected.extend(rows.matmul(weight)?.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        let topology = self.topology;
        let degree = |node| topology.in_degree(node);
        let hop = Hop { block: &blocks[0], nodes, degree: &degree };
        // Without the operations that made it, which would keep what they read.
        Ok(layer.finish_features(hop, projected)?.detach())
    }
}

impl Layer {
    /// What each row of `width` features is multiplied with.
    fn feature_weights(&self, width: usize) -> Result<Vec<Tensor>> {
        match self {
            // The own row's weights stand above those of the neighbours' mean.
            Self::Sage(linear) => {
                let weight = linear.weight();
                Ok(vec![weight.narrow(0, 0, width)?, weight.narrow(0, width, width)?])
            }
            Self::Gcn(linear) => Ok(vec![linear.weight().as_tensor().clone()]),
            Self::Gat(gat) => Ok(vec![gat.projection().weight().as_tensor().clone()]),
        }
    }

    /// The layer's output from all rows of the block's sources, multiplied with each of
    /// [`Layer::feature_weights`].
    fn finish_features(&self, hop: Hop<'_>, mut projected: Vec<Vec<f32>>) -> Result<Tensor> {
        let (n_src, n_dst) = (hop.block.n_src as usize, hop.block.n_dst as usize);
        let rows = projected.pop().unwrap_or_default();
        let width = rows.len() / n_src.max(1);
        let (linear, out) = match self {
            Self::Sage(linear) => {
                let mut out = projected.pop().unwrap_or_default();
                out.truncate(n_dst * width);
                hop.mean().add_all_neighbours(&rows, width, &mut out);
                (linear, out)
            }
            Self::Gcn(linear) => (linear, hop.normalised().product(&rows, width)),
            Self::Gat(gat) => {
                let rows = Tensor::from_vec(rows, (n_src, width), &Device::Cpu)?;
                return gat.attend(hop, &rows, None);
            }
        };
        Tensor::from_vec(out, (n_dst, width), &Device::Cpu)?.broadcast_add(linear.bias())
    }
}
