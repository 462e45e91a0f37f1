//! Attention coefficients: scores of nodes, LeakyReLU of their sums, softmax over each
//! destination's entries.

use rayon::prelude::*;

use super::{Entries, NEGATIVE_SLOPE};
use crate::matrix::spmm::ROWS_PER_TASK;

/// Memory for the softmax of one destination, an element for each head.
struct SoftmaxScratch {
    largest: Vec<f32>,
    sums: Vec<f32>,
}

/// Returns the scores of shape (n, heads) of rows `z` of shape (n, heads · width) by a vector `a`
/// of shape (heads · width). Head `h` of a row is the dot product of the `h`-th parts of both.
///
/// The score of an edge (equation 1) is the sum of a share of its source and one of its
/// destination. Each share is computed once per node, not once per edge.
pub(crate) fn head_scores(z: &[f32], a: &[f32], heads: usize) -> Vec<f32> {
    let (n_rows, part) = (z.len() / a.len().max(1), a.len() / heads);
    let mut out = vec![0.0; n_rows * heads];
    out.par_chunks_mut(ROWS_PER_TASK * heads).enumerate().for_each(|(task, out)| {
        let z = z[task * ROWS_PER_TASK * a.len()..].chunks_exact(part);
        for ((out, z), a) in out.iter_mut().zip(z).zip(a.chunks_exact(part).cycle()) {
            *out = z.iter().zip(a).map(|(z, a)| z * a).sum();
        }
    });
    out
}

/// Returns the gradients of `z` and of `a`, given that of their scores.
pub(crate) fn head_score_gradients(
    z: &[f32],
    a: &[f32],
    grad: &[f32],
    heads: usize,
) -> (Vec<f32>, Vec<f32>) {
    let (width, part) = (a.len(), a.len() / heads);
    let (mut z_grad, mut a_grad) = (vec![0.0; z.len()], vec![0.0; width]);
    z_grad.par_chunks_mut(ROWS_PER_TASK * width).enumerate().for_each(|(task, z_grad)| {
        let grad = &grad[task * ROWS_PER_TASK * heads..];
        let parts = z_grad.chunks_exact_mut(part).zip(a.chunks_exact(part).cycle());
        for ((z_grad, a), grad) in parts.zip(grad) {
            z_grad.iter_mut().zip(a).for_each(|(z_grad, a)| *z_grad = grad * a);
        }
    });
    // Each head's vector is summed over the rows in order, heads beside each other.
    a_grad.par_chunks_mut(part).enumerate().for_each(|(head, a_grad)| {
        let grad = grad.iter().skip(head).step_by(heads);
        let of_head = z.get(head * part..).unwrap_or_default();
        for (z, grad) in of_head.chunks(width).zip(grad) {
            a_grad.iter_mut().zip(z).for_each(|(a_grad, z)| *a_grad += grad * z);
        }
    });
    (z_grad, a_grad)
}

impl Entries {
    /// Returns the coefficients, of shape (entries, heads), from the shares of the scores (equation
    /// 3). Those of sources have the shape (n_src, heads), and those of destinations (n_dst,
    /// heads).
    ///
    /// The softmax first subtracts the largest score of the destination, so no exponential
    /// overflows. The destination's own entry always exists, so no sum is 0.
    pub(crate) fn coefficients(&self, of_src: &[f32], of_dst: &[f32], heads: usize) -> Vec<f32> {
        let mut out = vec![0.0; self.len() * heads];
        let pieces = self.pieces(&mut out, heads, ROWS_PER_TASK);
        pieces.into_par_iter().for_each(|(destinations, mut piece)| {
            let [largest, sums] = [(); 2].map(|()| vec![0.0; heads]);
            let mut scratch = SoftmaxScratch { largest, sums };
            for dst in destinations {
                let n_entries = self.of_destination(dst).len();
                let (out, rest) = piece.split_at_mut(n_entries * heads);
                let own = &of_dst[dst * heads..][..heads];
                self.write_coefficients(dst, of_src, own, out, &mut scratch);
                piece = rest;
            }
        });
        out
    }

    /// Writes the coefficients of the entries of `dst` to `out`.
    fn write_coefficients(
        &self,
        dst: usize,
        of_src: &[f32],
        own: &[f32],
        out: &mut [f32],
        SoftmaxScratch { largest, sums }: &mut SoftmaxScratch,
    ) {
        let heads = own.len();
        let last = out.len() / heads - 1;
        largest.fill(f32::NEG_INFINITY);
        let entries = out.chunks_exact_mut(heads).zip(self.sources_of(dst));
        for (i, (out, source)) in entries.enumerate() {
            let score = of_src[source * heads..].iter().zip(own).map(|(a, b)| leaky(a + b));
            let is_twice = i != last && source == dst;
            for ((out, score), largest) in out.iter_mut().zip(score).zip(&mut *largest) {
                *out = if is_twice { f32::NEG_INFINITY } else { score };
                *largest = largest.max(*out);
            }
        }
        sums.fill(0.0);
        for out in out.chunks_exact_mut(heads) {
            for ((out, largest), sum) in out.iter_mut().zip(&*largest).zip(&mut *sums) {
                *out = (*out - largest).exp();
                *sum += *out;
            }
        }
        for out in out.chunks_exact_mut(heads) {
            out.iter_mut().zip(&*sums).for_each(|(out, sum)| *out /= sum);
        }
    }

    /// Returns the gradients of both shares of the scores, from the coefficients and their
    /// gradient: `∂e_k = α_k (g_k − Σ_j α_j g_j)`, times the slope of LeakyReLU.
    pub(crate) fn coefficient_gradients(
        &self,
        shares: [&[f32]; 2],
        coefficients: &[f32],
        grad: &[f32],
        heads: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        let [of_src, of_dst] = shares;
        // Gradients of the scores, by entry.
        let mut changes = vec![0.0; coefficients.len()];
        let mut dst_grad = vec![0.0; of_dst.len()];
        let pieces = self.pieces(&mut changes, heads, ROWS_PER_TASK).into_par_iter();
        let of_pieces = dst_grad.par_chunks_mut(ROWS_PER_TASK * heads);
        pieces.zip(of_pieces).for_each(|((destinations, mut piece), dst_grad)| {
            for (dst, dst_grad) in destinations.zip(dst_grad.chunks_exact_mut(heads)) {
                let range = self.of_destination(dst);
                let (changes, rest) = piece.split_at_mut(range.len() * heads);
                let range = range.start * heads..range.end * heads;
                let of_entries = [&coefficients[range.clone()], &grad[range]];
                self.change_scores(dst, shares, of_entries, changes, dst_grad);
                piece = rest;
            }
        });
        let mut src_grad = vec![0.0; of_src.len()];
        let rows = src_grad.par_chunks_exact_mut(heads).enumerate().with_min_len(ROWS_PER_TASK);
        rows.for_each(|(source, sum)| {
            for [entry, _] in self.uses_of(source) {
                let changes = &changes[entry * heads..][..heads];
                sum.iter_mut().zip(changes).for_each(|(sum, change)| *sum += change);
            }
        });
        (src_grad, dst_grad)
    }

    /// Writes the gradients of the scores of the entries of `dst` to `changes`, and adds their sum
    /// to `dst_grad`.
    fn change_scores(
        &self,
        dst: usize,
        [of_src, of_dst]: [&[f32]; 2],
        [coefficients, grad]: [&[f32]; 2],
        changes: &mut [f32],
        dst_grad: &mut [f32],
    ) {
        let heads = dst_grad.len();
        let own = &of_dst[dst * heads..][..heads];
        for head in 0..heads {
            let of_head = |values: &[f32], i: usize| values[i * heads + head];
            let n_entries = changes.len() / heads;
            let mean = (0..n_entries)
                .fold(0.0, |mean, i| mean + of_head(coefficients, i) * of_head(grad, i));
            for (i, source) in self.sources_of(dst).enumerate() {
                let score = of_head(of_src, source) + own[head];
                let slope = if score < 0.0 { NEGATIVE_SLOPE } else { 1.0 };
                let change = slope * of_head(coefficients, i) * (of_head(grad, i) - mean);
                changes[i * heads + head] = change;
                dst_grad[head] += change;
            }
        }
    }
}

fn leaky(x: f32) -> f32 {
    if x < 0.0 { NEGATIVE_SLOPE * x } else { x }
}
