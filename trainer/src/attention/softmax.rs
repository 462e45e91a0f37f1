//! Attention coefficients: LeakyReLU of the scores, softmax over each destination's entries.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use lodestore_graph::batch::Block;

use super::{NEGATIVE_SLOPE, check_rows, entries_of, n_entries, sources_of, with_values};
use crate::spmm::contiguous;

/// Coefficients of shape (entries, heads) from the sources' shares of the scores, of shape
/// (n_src, heads), and the destinations', of shape (n_dst, heads) (equation 3).
#[derive(Clone, Debug)]
pub(crate) struct AttentionSoftmax(pub(crate) Arc<Block>);

impl AttentionSoftmax {
    /// Applies the operation; gradients pass through.
    pub(crate) fn apply(self, of_src: &Tensor, of_dst: &Tensor) -> Result<Tensor> {
        of_src.contiguous()?.apply_op2(&of_dst.contiguous()?, self)
    }

    /// The softmax subtracts the largest score of its destination first, so that no exponential
    /// overflows; the own entry is always there, so that no sum is 0.
    fn coefficients(&self, of_src: &[f32], of_dst: &[f32], heads: usize) -> Vec<f32> {
        let mut out = vec![0.0; n_entries(&self.0) * heads];
        let mut largest = vec![0.0; heads];
        let mut sums = vec![0.0; heads];
        for (dst, own) in of_dst.chunks_exact(heads).enumerate() {
            let entries = entries_of(&self.0, dst);
            let out = &mut out[entries.start * heads..entries.end * heads];
            let last = entries.len() - 1;
            largest.fill(f32::NEG_INFINITY);
            for (i, (out, source)) in
                out.chunks_exact_mut(heads).zip(sources_of(&self.0, dst)).enumerate()
            {
                let score = of_src[source * heads..].iter().zip(own).map(|(a, b)| leaky(a + b));
                let is_twice = i != last && source == dst;
                for ((out, score), largest) in out.iter_mut().zip(score).zip(&mut largest) {
                    *out = if is_twice { f32::NEG_INFINITY } else { score };
                    *largest = largest.max(*out);
                }
            }
            sums.fill(0.0);
            for out in out.chunks_exact_mut(heads) {
                for ((out, largest), sum) in out.iter_mut().zip(&largest).zip(&mut sums) {
                    *out = (*out - largest).exp();
                    *sum += *out;
                }
            }
            for out in out.chunks_exact_mut(heads) {
                out.iter_mut().zip(&sums).for_each(|(out, sum)| *out /= sum);
            }
        }
        out
    }

    /// Gradients of both shares, from the coefficients and their gradient:
    /// `∂e_k = α_k (g_k − Σ_j α_j g_j)`, times the slope of LeakyReLU.
    fn gradients(
        &self,
        [of_src, of_dst]: [&[f32]; 2],
        coefficients: &[f32],
        grad: &[f32],
        heads: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        let (mut src_grad, mut dst_grad) = (vec![0.0; of_src.len()], vec![0.0; of_dst.len()]);
        let mut means = vec![0.0; heads];
        for (dst, own) in of_dst.chunks_exact(heads).enumerate() {
            let entries = entries_of(&self.0, dst);
            let range = entries.start * heads..entries.end * heads;
            let pairs = coefficients[range.clone()].chunks_exact(heads);
            let pairs = pairs.zip(grad[range].chunks_exact(heads));
            means.fill(0.0);
            for (coefficients, grad) in pairs.clone() {
                let terms = coefficients.iter().zip(grad).map(|(a, g)| a * g);
                means.iter_mut().zip(terms).for_each(|(mean, term)| *mean += term);
            }
            let own_grad = &mut dst_grad[dst * heads..][..heads];
            for ((coefficients, grad), source) in pairs.zip(sources_of(&self.0, dst)) {
                for head in 0..heads {
                    let at = source * heads + head;
                    let slope = if of_src[at] + own[head] < 0.0 { NEGATIVE_SLOPE } else { 1.0 };
                    let change = slope * coefficients[head] * (grad[head] - means[head]);
                    src_grad[at] += change;
                    own_grad[head] += change;
                }
            }
        }
        (src_grad, dst_grad)
    }
}

fn leaky(x: f32) -> f32 {
    if x < 0.0 { NEGATIVE_SLOPE * x } else { x }
}

impl CustomOp2 for AttentionSoftmax {
    fn name(&self) -> &'static str {
        "attention-softmax"
    }

    fn cpu_fwd(
        &self,
        src: &CpuStorage,
        src_layout: &Layout,
        dst: &CpuStorage,
        dst_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (n_src, heads) = src_layout.shape().dims2()?;
        let (n_dst, of_dst) = dst_layout.shape().dims2()?;
        check_rows("sources", self.0.n_src as usize, n_src)?;
        check_rows("destinations", self.0.n_dst as usize, n_dst)?;
        if heads == 0 || heads != of_dst {
            candle_core::bail!("attention: {heads} heads of sources, {of_dst} of destinations");
        }
        let (src, dst) = (contiguous(src, src_layout)?, contiguous(dst, dst_layout)?);
        let out = self.coefficients(src, dst, heads);
        Ok((CpuStorage::F32(out), (n_entries(&self.0), heads).into()))
    }

    fn bwd(
        &self,
        src: &Tensor,
        dst: &Tensor,
        res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (_, heads) = src.dims2()?;
        let (src_grad, dst_grad) = with_values(src, |of_src| {
            with_values(dst, |of_dst| {
                with_values(res, |res| {
                    with_values(grad, |grad| Ok(self.gradients([of_src, of_dst], res, grad, heads)))
                })
            })
        })?;
        let src_grad = Tensor::from_vec(src_grad, src.shape(), src.device())?;
        Ok((Some(src_grad), Some(Tensor::from_vec(dst_grad, dst.shape(), dst.device())?)))
    }
}
