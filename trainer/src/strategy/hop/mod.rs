//! HopGNN with migration: models by turns at the workers that own their roots.

mod iteration;
mod micrographs;

pub(crate) use iteration::n_merges;
pub use iteration::{Iteration, Iterations, TimeStep};
pub(crate) use micrographs::{Micrograph, MicrographRows, Micrographs};
