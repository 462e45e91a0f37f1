//! Layers: the files whose rows together are a tensor of a partition at one version.
//!
//! Pure: which layer has a row ([`LayerIndex`]), which layers are folded into one
//! ([`choose_folds`]), and which versions writers of a graph publish ([`next_cut`]).

mod cut;
mod fold;
mod index;

pub use cut::next_cut;
pub use fold::{Folding, Kept};
pub(crate) use fold::{LayerSpan, choose_deltas, choose_folds};
pub(crate) use index::{Finder, LayerIndex, Place};
