//! Rows summed with a weight per entry and head.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use lodestore_graph::batch::Block;
use rayon::prelude::*;

use super::{check_rows, entries_of, n_entries, sources_of, with_values};
use crate::spmm::{ROWS_PER_TASK, add_scaled, contiguous};

/// Rows of shape (n_dst, heads · width) from weights of shape (entries, heads) and rows of shape
/// (n_src, heads · width): `Σ_k w_k,h · z_source(k),h` over the entries of a destination
/// (equation 5 without its activation).
#[derive(Clone, Debug)]
pub(crate) struct WeightedSum(pub(crate) Arc<Block>);

impl WeightedSum {
    /// Applies the operation; gradients pass through.
    pub(crate) fn apply(self, weights: &Tensor, z: &Tensor) -> Result<Tensor> {
        weights.contiguous()?.apply_op2(&z.contiguous()?, self)
    }

    fn sums(&self, weights: &[f32], z: &[f32], heads: usize, width: usize) -> Vec<f32> {
        let part = width / heads;
        let mut out = vec![0.0; self.0.n_dst as usize * width];
        out.par_chunks_mut(ROWS_PER_TASK * width).enumerate().for_each(|(task, rows)| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                let dst = task * ROWS_PER_TASK + i;
                let weights = weights[entries_of(&self.0, dst).start * heads..].chunks_exact(heads);
                for (weights, source) in weights.zip(sources_of(&self.0, dst)) {
                    let z = z[source * width..][..width].chunks_exact(part);
                    for ((row, z), &weight) in row.chunks_exact_mut(part).zip(z).zip(weights) {
                        add_scaled(row, weight, z);
                    }
                }
            }
        });
        out
    }

    /// Gradients of weights and rows. Sequential, because different destinations add to the same
    /// source row.
    fn gradients(
        &self,
        weights: &[f32],
        z: &[f32],
        grad: &[f32],
        [heads, width]: [usize; 2],
    ) -> (Vec<f32>, Vec<f32>) {
        let part = width / heads;
        let (mut weight_grad, mut z_grad) = (vec![0.0; weights.len()], vec![0.0; z.len()]);
        for (dst, grad) in grad.chunks_exact(width).enumerate() {
            for (entry, source) in entries_of(&self.0, dst).zip(sources_of(&self.0, dst)) {
                let row = source * width..(source + 1) * width;
                let of_z = z[row.clone()].chunks_exact(part);
                let of_z = of_z.zip(z_grad[row].chunks_exact_mut(part));
                let entry = entry * heads..(entry + 1) * heads;
                let of_weights = weights[entry.clone()].iter().zip(&mut weight_grad[entry]);
                let parts = grad.chunks_exact(part).zip(of_z).zip(of_weights);
                for ((grad, (z, z_grad)), (&weight, weight_grad)) in parts {
                    *weight_grad = grad.iter().zip(z).map(|(grad, z)| grad * z).sum();
                    add_scaled(z_grad, weight, grad);
                }
            }
        }
        (weight_grad, z_grad)
    }
}

impl CustomOp2 for WeightedSum {
    fn name(&self) -> &'static str {
        "weighted-sum"
    }

    fn cpu_fwd(
        &self,
        weights: &CpuStorage,
        weights_layout: &Layout,
        z: &CpuStorage,
        z_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (found, heads) = weights_layout.shape().dims2()?;
        let (n_src, width) = z_layout.shape().dims2()?;
        check_rows("entries", n_entries(&self.0), found)?;
        check_rows("sources", self.0.n_src as usize, n_src)?;
        if heads == 0 || width == 0 || width % heads != 0 {
            candle_core::bail!("attention: rows of {width} elements, {heads} heads");
        }
        let (weights, z) = (contiguous(weights, weights_layout)?, contiguous(z, z_layout)?);
        let out = self.sums(weights, z, heads, width);
        Ok((CpuStorage::F32(out), (self.0.n_dst as usize, width).into()))
    }

    fn bwd(
        &self,
        weights: &Tensor,
        z: &Tensor,
        _res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let shape = [weights.dims2()?.1, z.dims2()?.1];
        let (weight_grad, z_grad) = with_values(weights, |of_weights| {
            with_values(z, |of_z| {
                with_values(grad, |grad| Ok(self.gradients(of_weights, of_z, grad, shape)))
            })
        })?;
        let weight_grad = Tensor::from_vec(weight_grad, weights.shape(), weights.device())?;
        Ok((Some(weight_grad), Some(Tensor::from_vec(z_grad, z.shape(), z.device())?)))
    }
}
