//! Rows summed with a weight per entry and head.

use rayon::prelude::*;

use super::Entries;
use crate::matrix::spmm::{ROWS_PER_TASK, add_scaled};

impl Entries {
    /// Returns the rows of shape (n_dst, heads · part) from weights of shape (entries, heads) and
    /// rows of shape (n_src, heads · part). A row is `Σ_k w_k,h · z_source(k),h` over the entries
    /// of its destination (equation 5 without its activation).
    pub(crate) fn weighted_sums(
        &self,
        weights: &[f32],
        z: &[f32],
        [heads, width]: [usize; 2],
    ) -> Vec<f32> {
        let part = width / heads;
        let mut out = vec![0.0; self.n_dst() * width];
        out.par_chunks_mut(ROWS_PER_TASK * width).enumerate().for_each(|(task, rows)| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                let dst = task * ROWS_PER_TASK + i;
                let weights = weights[self.of_destination(dst).start * heads..].chunks_exact(heads);
                for (weights, source) in weights.zip(self.sources_of(dst)) {
                    let z = z[source * width..][..width].chunks_exact(part);
                    for ((row, z), &weight) in row.chunks_exact_mut(part).zip(z).zip(weights) {
                        add_scaled(row, weight, z);
                    }
                }
            }
        });
        out
    }

    /// Returns the gradients of the weights and rows of [`Self::weighted_sums`]. Each entry's
    /// weight has its own. Each source's row has the sum over the entries that use it, in order.
    pub(crate) fn weighted_sum_gradients(
        &self,
        weights: &[f32],
        z: &[f32],
        grad: &[f32],
        [heads, width]: [usize; 2],
    ) -> (Vec<f32>, Vec<f32>) {
        let part = width / heads;
        let (mut weight_grad, mut z_grad) = (vec![0.0; weights.len()], vec![0.0; z.len()]);
        let pieces = self.pieces(&mut weight_grad, heads, ROWS_PER_TASK);
        pieces.into_par_iter().for_each(|(destinations, piece)| {
            let of_destination = |dst| self.sources_of(dst).map(move |source| (dst, source));
            let entries = destinations.flat_map(of_destination);
            for (weight_grad, (dst, source)) in piece.chunks_exact_mut(heads).zip(entries) {
                let grad = grad[dst * width..][..width].chunks_exact(part);
                let parts = grad.zip(z[source * width..][..width].chunks_exact(part));
                for (weight_grad, (grad, z)) in weight_grad.iter_mut().zip(parts) {
                    *weight_grad = grad.iter().zip(z).map(|(grad, z)| grad * z).sum();
                }
            }
        });
        let rows = z_grad.par_chunks_exact_mut(width).enumerate().with_min_len(ROWS_PER_TASK);
        rows.for_each(|(source, z_grad)| {
            for [entry, dst] in self.uses_of(source) {
                let grad = grad[dst * width..][..width].chunks_exact(part);
                let weights = &weights[entry * heads..][..heads];
                for ((z_grad, grad), &weight) in
                    z_grad.chunks_exact_mut(part).zip(grad).zip(weights)
                {
                    add_scaled(z_grad, weight, grad);
                }
            }
        });
        (weight_grad, z_grad)
    }
}
