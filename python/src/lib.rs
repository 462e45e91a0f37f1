//! The extension module `lodestore._lodestore`: graphs, tensors and batches for Python.
//!
//! This crate knows numpy's arrays, Python's exceptions and signals, and the rules for forked
//! processes. It does not know torch or any other framework; `store` and `client` read rows.

mod arrays;
mod batches;
mod error;
mod future;
mod gather;
mod graph;
mod handle;
mod ids;
mod importing;
mod open_graph;
mod opening;
mod put;
mod queue;
mod sampler;
mod schedule;
mod signals;
mod spec;
mod tensor;
mod volatile;
mod writer;

use pyo3::prelude::*;

/// Rows of graphs from files and servers.
#[pymodule]
mod _lodestore {
    #[pymodule_export]
    use crate::batches::{Batch, Batches};
    #[pymodule_export]
    use crate::future::Future;
    #[pymodule_export]
    use crate::graph::Graph;
    #[pymodule_export]
    use crate::importing::import_files;
    #[pymodule_export]
    use crate::opening::{connect, open, restore};
    #[pymodule_export]
    use crate::queue::{Queue, available_memory, restore_queue};
    #[pymodule_export]
    use crate::sampler::Sampler;
    #[pymodule_export]
    use crate::schedule::{Schedule, open_schedule};
    #[pymodule_export]
    use crate::tensor::Tensor;
    #[pymodule_export]
    use crate::volatile::{Publisher, Volatile};
    #[pymodule_export]
    use crate::writer::TensorWriter;

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
