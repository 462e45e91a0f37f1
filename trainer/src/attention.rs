//! Attention over a block, head by head: scores, softmax within each destination, weighted sum.
//! Forward and backward.
//!
//! A destination attends to its sampled in-neighbours and to itself (Velickovic et al. 2018,
//! section 2.1): see [`Entries`]. An edge from a destination to itself is not counted twice: it weighs
//! 0.
//!
//! Every sum is taken by one thread in the order of the entries, so results do not depend on threads.

mod entries;
mod scores;
mod softmax;
mod weighted_sum;

use candle_core::{Result, Storage, Tensor};

use crate::spmm::contiguous;

pub(crate) use entries::Entries;
pub(crate) use scores::HeadScores;
pub(crate) use softmax::AttentionSoftmax;
pub(crate) use weighted_sum::WeightedSum;

/// Slope of LeakyReLU below 0 (section 2.1).
const NEGATIVE_SLOPE: f32 = 0.2;

/// Calls `f` with the f32 elements of a tensor.
fn with_values<T>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> Result<T>) -> Result<T> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        candle_core::bail!("attention runs on the CPU only")
    };
    f(contiguous(storage, layout)?)
}

/// Fails unless a side has as many rows as the block has nodes there.
fn check_rows(what: &str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    candle_core::bail!("attention: the block has {expected} {what}, found {found} rows")
}

#[cfg(test)]
mod tests;
