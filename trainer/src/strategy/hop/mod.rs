//! HopGNN with migration: models by turns at the workers that own their roots.

mod iteration;
mod merging;
mod micrographs;

pub use iteration::{Iteration, Iterations, TimeStep};
pub(crate) use merging::n_merges;
pub(crate) use micrographs::{Micrograph, MicrographRows, Micrographs};
