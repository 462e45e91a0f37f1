//! Layers: the files whose rows together are a tensor of a partition at one version.
//!
//! Pure: which layer has a row ([`LayerIndex`]), which layers are folded into one ([`Fold`]), and
//! which versions writers of a graph publish ([`next_cut`]).

mod cut;
mod fold;
mod index;

pub use cut::next_cut;
pub(crate) use fold::{Fold, choose_deltas, choose_fold};
pub(crate) use index::{Finder, LayerIndex, Place};
