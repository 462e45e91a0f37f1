//! Graph attention (Velickovic et al. 2018).

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, Var};
use crate::{
    attention::{AttentionSoftmax, Entries, HeadScores, WeightedSum},
    dropout::{Activation, ActivationDropout, Dropout},
    layer::Hop,
    linear::{Projection, glorot},
};

/// Streams of first parameters; those below are of [`Projection`].
const SOURCE_STREAM: u64 = 1 << 32;
const DESTINATION_STREAM: u64 = 2 << 32;

/// What becomes of the heads' rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heads {
    /// They stand beside each other: hidden layers (equation 5).
    Concatenated,
    /// Their mean: the last layer (equation 6).
    Averaged,
}

/// One layer with several attention heads.
#[derive(Clone, Debug)]
pub(crate) struct Gat {
    /// The weights of all heads side by side.
    projection: Projection,
    /// The attention vector, cut into the part for sources and the part for destinations.
    of_source: Var,
    of_destination: Var,
    bias: Var,
    n_heads: usize,
    heads: Heads,
}

impl Gat {
    /// A layer from rows of `in_width` to rows of `out_width`, a multiple of `n_heads` if the heads
    /// are concatenated. Its first parameters are a function of `seed` and `layer`.
    pub(crate) fn new(
        [in_width, out_width]: [usize; 2],
        n_heads: usize,
        heads: Heads,
        seed: u64,
        layer: u64,
    ) -> Result<Self> {
        let part = match heads {
            Heads::Concatenated => out_width / n_heads,
            Heads::Averaged => out_width,
        };
        let all = n_heads * part;
        // A head's vector makes one score of 2 · part elements.
        let vector = |stream| {
            Var::from_vec(glorot([2 * part, 1], all, seed, stream | layer), all, &Device::Cpu)
        };
        Ok(Self {
            projection: Projection::new(in_width, all, seed, layer)?,
            of_source: vector(SOURCE_STREAM)?,
            of_destination: vector(DESTINATION_STREAM)?,
            bias: Var::zeros(out_width, DType::F32, &Device::Cpu)?,
            n_heads,
            heads,
        })
    }

    /// All parameters, in a fixed order.
    pub(crate) fn parameters(&self) -> [&Var; 4] {
        [self.projection.weight(), &self.of_source, &self.of_destination, &self.bias]
    }

    /// `W · x` for all heads.
    pub(crate) fn projection(&self) -> &Projection {
        &self.projection
    }

    /// The layer's output of shape (n_dst, out_width) for projected rows `z` of the block's
    /// sources, with `dropout` of the coefficients (section 3.3).
    pub(crate) fn attend(
        &self,
        hop: Hop<'_>,
        z: &Tensor,
        dropout: Option<Dropout>,
    ) -> Result<Tensor> {
        let (n_dst, scores) = (hop.block.n_dst as usize, HeadScores { heads: self.n_heads });
        let of_src = scores.apply(z, &self.of_source)?;
        let of_dst = scores.apply(&z.narrow(0, 0, n_dst)?, &self.of_destination)?;
        let entries = Entries::of(hop.block);
        let coefficients = AttentionSoftmax(Arc::clone(&entries)).apply(&of_src, &of_dst)?;
        let mask = dropout.map(|dropout| dropout.mask(hop.entry_keys()));
        let coefficients =
            ActivationDropout::new(Activation::Identity, mask).apply(&coefficients)?;
        let rows = WeightedSum(entries).apply(&coefficients, z)?;
        let rows = match self.heads {
            Heads::Concatenated => rows,
            Heads::Averaged => rows.reshape((n_dst, self.n_heads, ()))?.mean(1)?,
        };
        rows.broadcast_add(&self.bias)
    }
}
