//! Attention over a block, head by head: scores, softmax within each destination, weighted sum.
//! Forward and backward.
//!
//! A destination attends to its sampled in-neighbours and to itself (Velickovic et al. 2018,
//! section 2.1): see [`Entries`]. An edge from a destination to itself is not counted twice: it
//! weighs 0.
//!
//! Every sum is taken by one thread in the order of the entries, so results do not depend on
//! threads.

mod coefficients;
mod entries;
mod weighted_sum;

pub(crate) use coefficients::{head_score_gradients, head_scores};
pub(crate) use entries::Entries;

/// Slope of LeakyReLU below 0 (section 2.1).
const NEGATIVE_SLOPE: f32 = 0.2;

#[cfg(test)]
mod tests;
