//! The edges of a graph as two arrays.

use std::sync::Arc;

use lodestore_graph::NodeId;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::Error;
use crate::open_graph::OpenGraph;
use crate::signals;

/// A number that names a source in an array.
trait Source: numpy::Element + Copy {
    /// Returns the number, where it fits.
    fn of(id: u32) -> Option<Self>;
}

impl Source for i64 {
    fn of(id: u32) -> Option<Self> {
        Some(id.into())
    }
}

impl Source for i32 {
    fn of(id: u32) -> Option<Self> {
        Self::try_from(id).ok()
    }
}

/// Returns the edges as arrays of Python: (colptr, row), where row has the type `dtype`.
pub(crate) fn csc_arrays<'py>(
    py: Python<'py>,
    opened: Arc<OpenGraph>,
    dtype: &str,
) -> PyResult<Bound<'py, PyTuple>> {
    let (colptr, row) = match dtype {
        "int64" => {
            let (colptr, row) = signals::run(py, move || csc::<i64>(&opened))?;
            (colptr, PyArray1::from_vec(py, row).into_any())
        }
        "int32" => {
            let (colptr, row) = signals::run(py, move || csc::<i32>(&opened))?;
            (colptr, PyArray1::from_vec(py, row).into_any())
        }
        other => {
            let words = format!("dtype must be \"int64\" or \"int32\", found {other:?}");
            return Err(Error::Dtype(words).into());
        }
    };
    PyTuple::new(py, [PyArray1::from_vec(py, colptr).into_any(), row])
}

/// Returns where the edges into each node start, and the source of each edge.
fn csc<T: Source>(opened: &OpenGraph) -> Result<(Vec<i64>, Vec<T>), Error> {
    let topology = opened.topology()?;
    let mut colptr = vec![0];
    let mut row = Vec::with_capacity(topology.n_edges() as usize);
    for node in (0..topology.n_nodes()).map(NodeId) {
        for &source in topology.in_neighbours(node) {
            let of_type = T::of(source);
            row.push(of_type.ok_or_else(|| {
                Error::Dtype(format!("node {source} does not fit int32; take int64"))
            })?);
        }
        colptr.push(row.len() as i64);
    }
    Ok((colptr, row))
}
