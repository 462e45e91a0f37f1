//! Layers: the files whose rows together are a tensor of a partition at one version.
//!
//! Pure: which layer has a row ([`LayerIndex`]), and which layers are folded into one ([`Fold`]).

mod fold;
mod index;

pub use fold::{Folding, Kept};
pub(crate) use fold::{LayerSpan, choose_deltas, choose_folds};
pub(crate) use index::{Finder, LayerIndex, Place};
