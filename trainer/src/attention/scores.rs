//! The share of one node in an attention score: `a · z` for each head.

use rayon::prelude::*;

use crate::matrix::spmm::ROWS_PER_TASK;

/// Scores of shape (n, heads) for rows `z` of shape (n, heads · width) and a vector `a` of shape
/// (heads · width). Head `h` of a row is the dot product of the `h`-th parts of both.
///
/// The score of an edge (equation 1) is the sum of a share of its source and one of its
/// destination. Each share is computed once per node, not once per edge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadScores {
    pub(crate) heads: usize,
}

impl HeadScores {
    /// Returns the scores of the rows `z`.
    pub(crate) fn scores(self, z: &[f32], a: &[f32]) -> Vec<f32> {
        let (n_rows, part) = (z.len() / a.len().max(1), a.len() / self.heads);
        let mut out = vec![0.0; n_rows * self.heads];
        out.par_chunks_mut(ROWS_PER_TASK * self.heads).enumerate().for_each(|(task, out)| {
            let z = z[task * ROWS_PER_TASK * a.len()..].chunks_exact(part);
            for ((out, z), a) in out.iter_mut().zip(z).zip(a.chunks_exact(part).cycle()) {
                *out = z.iter().zip(a).map(|(z, a)| z * a).sum();
            }
        });
        out
    }

    /// Returns the gradients of `z` and of `a`, given that of the scores.
    pub(crate) fn gradients(self, z: &[f32], a: &[f32], grad: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (width, part) = (a.len(), a.len() / self.heads);
        let (mut z_grad, mut a_grad) = (vec![0.0; z.len()], vec![0.0; width]);
        z_grad.par_chunks_mut(ROWS_PER_TASK * width).enumerate().for_each(|(task, z_grad)| {
            let grad = &grad[task * ROWS_PER_TASK * self.heads..];
            let parts = z_grad.chunks_exact_mut(part).zip(a.chunks_exact(part).cycle());
            for ((z_grad, a), grad) in parts.zip(grad) {
                z_grad.iter_mut().zip(a).for_each(|(z_grad, a)| *z_grad = grad * a);
            }
        });
        // Each head's vector is summed over the rows in order, heads beside each other.
        a_grad.par_chunks_mut(part).enumerate().for_each(|(head, a_grad)| {
            let grad = grad.iter().skip(head).step_by(self.heads);
            let of_head = z.get(head * part..).unwrap_or_default();
            for (z, grad) in of_head.chunks(width).zip(grad) {
                a_grad.iter_mut().zip(z).for_each(|(a_grad, z)| *a_grad += grad * z);
            }
        });
        (z_grad, a_grad)
    }
}
