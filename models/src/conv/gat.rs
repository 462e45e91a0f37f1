//! Graph attention (Velickovic et al. 2018).

use std::sync::Arc;

use crate::{
    attention::{Entries, head_score_gradients, head_scores},
    conv::Hop,
    linear::{Projection, glorot},
    matrix::Matrix,
    matrix::dropout::{Dropout, Mask},
    matrix::sparse::Rows,
    matrix::spmm::{ROWS_PER_TASK, add_scaled},
    parameter::Parameter,
};
use rayon::prelude::*;

/// Streams of first parameters; those below are of [`Projection`].
const SOURCE_STREAM: u64 = 1 << 32;
const DESTINATION_STREAM: u64 = 2 << 32;

/// Combination of the heads' rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heads {
    /// They stand beside each other: hidden layers (equation 5).
    Concatenated,
    /// Their mean: the last layer (equation 6).
    Averaged,
}

/// One layer with several attention heads.
#[derive(Clone, Debug)]
pub struct Gat {
    /// The weights of all heads side by side.
    pub projection: Projection,
    /// The attention vector, cut into the part for sources and the part for destinations.
    of_source: Parameter,
    of_destination: Parameter,
    bias: Parameter,
    n_heads: usize,
    heads: Heads,
}

/// Values that the backward pass of a layer needs from its forward pass.
#[derive(Debug)]
pub struct Attended {
    /// The projected rows.
    z: Matrix,
    /// Scores of the block's sources and of its destinations.
    shares: [Vec<f32>; 2],
    coefficients: Vec<f32>,
    /// The same after dropout.
    dropped: Option<(Mask, Vec<f32>)>,
    entries: Arc<Entries>,
}

impl Gat {
    /// Returns a layer from rows of `in_width` to rows of `out_width`, a multiple of `n_heads` if
    /// the heads are concatenated. Its first parameters are a function of `seed` and `layer`.
    pub(crate) fn new(
        [in_width, out_width]: [usize; 2],
        n_heads: usize,
        heads: Heads,
        seed: u64,
        layer: u64,
    ) -> Self {
        let part = match heads {
            Heads::Concatenated => out_width / n_heads,
            Heads::Averaged => out_width,
        };
        let all = n_heads * part;
        // A head's vector makes one score of 2 · part elements.
        let vector =
            |stream| Parameter::new(glorot([2 * part, 1], all, seed, stream | layer), &[all]);
        Self {
            projection: Projection::new(in_width, all, seed, layer),
            of_source: vector(SOURCE_STREAM),
            of_destination: vector(DESTINATION_STREAM),
            bias: Parameter::zeros(out_width),
            n_heads,
            heads,
        }
    }

    /// Returns all parameters, in a fixed order.
    pub fn parameters(&self) -> [&Parameter; 4] {
        [self.projection.weight(), &self.of_source, &self.of_destination, &self.bias]
    }

    /// Returns the output for the projected rows `z` of the block's sources, with `dropout` of the
    /// coefficients (section 3.3), and what the backward pass needs.
    pub(crate) fn attend(
        &self,
        hop: Hop<'_>,
        z: Matrix,
        dropout: Option<Dropout>,
    ) -> (Matrix, Attended) {
        let mask = dropout.map(|dropout| dropout.mask(hop.entry_keys()));
        self.attend_over(Entries::of(hop.block), z, mask)
    }

    /// Returns the output for the projected rows `z` of the sources of `entries`, with a mask of the
    /// coefficients (section 3.3), and what the backward pass needs.
    pub fn attend_over(
        &self,
        entries: Arc<Entries>,
        z: Matrix,
        mask: Option<Mask>,
    ) -> (Matrix, Attended) {
        let n_heads = self.n_heads;
        let of_src = head_scores(z.values(), &self.of_source.read(), n_heads);
        let destinations = &z.values()[..entries.n_dst() * z.width()];
        let of_dst = head_scores(destinations, &self.of_destination.read(), n_heads);
        let coefficients = entries.coefficients(&of_src, &of_dst, n_heads);
        let dropped = mask.map(|mask| {
            let mut dropped = coefficients.clone();
            mask.apply(&mut dropped);
            (mask, dropped)
        });
        let weights = dropped.as_ref().map_or(&coefficients, |(_, dropped)| dropped);
        let sums = entries.weighted_sums(weights, z.values(), [n_heads, z.width()]);
        let mut out = self.joined(Matrix::new(sums, z.width()));
        out.add_to_rows(&self.bias.read());
        let shares = [of_src, of_dst];
        (out, Attended { z, shares, coefficients, dropped, entries })
    }

    /// Returns the gradients of the parameters and of the projected rows, given that of the output
    /// for `rows`.
    pub(crate) fn gradients(
        &self,
        saved: &Attended,
        rows: &Rows,
        grad: &Matrix,
    ) -> (Vec<Vec<f32>>, Matrix) {
        let ([of_source, of_destination, of_bias], of_z) = self.attention_gradients(saved, grad);
        let of_weight = self.projection.weight_gradient(rows, &of_z);
        (vec![of_weight, of_source, of_destination, of_bias], of_z)
    }

    /// Returns the gradients of the parameters but for the weights, and that of the projected rows,
    /// given that of the output.
    pub fn attention_gradients(&self, saved: &Attended, grad: &Matrix) -> ([Vec<f32>; 3], Matrix) {
        let Attended { z, shares: [of_src, of_dst], coefficients, dropped, entries } = saved;
        let bias_grad = grad.sum_of_rows();
        let of_sums = self.separated(grad);
        let weights = dropped.as_ref().map_or(coefficients, |(_, dropped)| dropped);
        let sizes = [self.n_heads, z.width()];
        let (mut weight_grad, mut z_grad) =
            entries.weighted_sum_gradients(weights, z.values(), of_sums.values(), sizes);
        if let Some((mask, _)) = dropped {
            mask.apply(&mut weight_grad);
        }
        let shares = [&of_src[..], &of_dst[..]];
        let (src_grad, dst_grad) =
            entries.coefficient_gradients(shares, coefficients, &weight_grad, self.n_heads);
        // Each part of the rows' gradient is added to what the parts before have given.
        let mut share_gradient = |vector: &Parameter, grad: &[f32]| {
            let of_nodes = &z.values()[..grad.len() / self.n_heads * z.width()];
            let (of_rows, of_vector) =
                head_score_gradients(of_nodes, &vector.read(), grad, self.n_heads);
            add_scaled(&mut z_grad, 1.0, &of_rows);
            of_vector
        };
        let destination_grad = share_gradient(&self.of_destination, &dst_grad);
        let source_grad = share_gradient(&self.of_source, &src_grad);
        let z_grad = Matrix::new(z_grad, z.width());
        ([source_grad, destination_grad, bias_grad], z_grad)
    }

    /// Returns the heads' rows as the layer's.
    fn joined(&self, rows: Matrix) -> Matrix {
        let part = rows.width() / self.n_heads;
        if self.heads == Heads::Concatenated {
            return rows;
        }
        let scale = 1.0 / self.n_heads as f32;
        let mut out = vec![0.0; rows.n_rows() * part];
        let of_rows = rows.values().par_chunks_exact(rows.width());
        let pairs = out.par_chunks_exact_mut(part).zip(of_rows).with_min_len(ROWS_PER_TASK);
        pairs.for_each(|(out, heads)| {
            heads.chunks_exact(part).for_each(|head| add_scaled(out, 1.0, head));
            out.iter_mut().for_each(|value| *value *= scale);
        });
        Matrix::new(out, part)
    }

    /// Returns the gradient of the heads' rows, given that of the layer's.
    fn separated(&self, grad: &Matrix) -> Matrix {
        if self.heads == Heads::Concatenated {
            return grad.clone();
        }
        let scale = 1.0 / self.n_heads as f32;
        let scaled = |row: &[f32]| row.iter().map(|value| value * scale).collect::<Vec<_>>();
        let rows = grad.values().chunks_exact(grad.width());
        let values = rows.flat_map(|row| scaled(row).repeat(self.n_heads)).collect();
        Matrix::new(values, self.n_heads * grad.width())
    }
}
