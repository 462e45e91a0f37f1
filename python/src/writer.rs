//! The class `TensorWriter`: adds a tensor to a graph, atomically.

use std::sync::{Arc, Mutex, MutexGuard};

use lodestore_client::source::TensorInfo;
use lodestore_graph::lock::IgnorePoison;
use lodestore_store::codec::SegmentCodec;
use lodestore_store::nan::NanPolicy;
use lodestore_store::update::NewTensor;
use pyo3::prelude::*;

use crate::arrays::{RowLayout, read_rows};
use crate::error::Error;
use crate::graph::Graph;
use crate::open_graph::{Backend, OpenGraph};
use crate::put::refuse_nan;
use crate::signals;

/// Writes a new tensor in the order of nodes; used with `with`.
///
/// The graph has the tensor with all of its rows when the block ends, and nothing of it after an
/// exception in the block. Gathers of other tensors continue meanwhile.
#[pyclass(frozen, module = "lodestore")]
pub(crate) struct TensorWriter {
    graph: Py<Graph>,
    info: TensorInfo,
    nan: NanPolicy,
    n_nodes: u32,
    state: Mutex<State>,
}

struct State {
    tensor: Option<NewTensor>,
    /// The next node.
    next: u32,
}

impl TensorWriter {
    /// Begins a tensor.
    pub(crate) fn begin(
        graph: Py<Graph>,
        opened: &Arc<OpenGraph>,
        info: TensorInfo,
        nan: NanPolicy,
    ) -> Result<Self, Error> {
        let Backend::Files(files) = opened.backend() else {
            let words = "servers take no new tensors; write it to the graph's folder";
            return Err(Error::ReadOnly(words.to_owned()));
        };
        let spec = lodestore_store::TensorSpec::new(&info.name, info.dtype, info.width);
        let spec = spec.map_err(|error| Error::Shape(error.to_string()))?;
        // No rows are known yet by which another codec could be chosen.
        let tensor = files.live.new_tensor(spec, SegmentCodec::Raw)?;
        let n_nodes = opened.n_nodes();
        let state = State { tensor: Some(tensor), next: 0 };
        Ok(Self { graph, info, nan, n_nodes, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }
}

#[pymethods]
impl TensorWriter {
    /// Writes the rows of the nodes from `first` on: (n, width), or (n,) for width 1.
    ///
    /// first: the next node, as a check of the order (int). Raises ShapeError, DtypeError;
    /// StoreError for NaN.
    fn write(&self, py: Python<'_>, first: u32, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        let n_rows = rows.len()?;
        let layout = RowLayout::new(&self.info, n_rows);
        Ok(read_rows(rows, layout, |bytes| {
            py.detach(|| {
                let mut state = self.state();
                let State { tensor, next } = &mut *state;
                let tensor = tensor.as_mut().ok_or(Error::Closed)?;
                if first != *next {
                    let words =
                        format!("rows must come in order: expected first={next}, found {first}");
                    return Err(Error::Shape(words));
                }
                let left = self.n_nodes - *next;
                let n_rows = u32::try_from(n_rows).ok().filter(|n| *n <= left);
                let n_rows = n_rows.ok_or_else(|| {
                    Error::Shape(format!(
                        "expected {left} more rows at most, found {}",
                        layout.n_rows
                    ))
                })?;
                if self.nan == NanPolicy::Refuse {
                    refuse_nan(&self.info, bytes)?;
                }
                tensor.write_rows(bytes)?;
                *next += n_rows;
                Ok(())
            })
        })?)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind, _value, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let Some(tensor) = self.state().tensor.take() else { return Ok(()) };
        if !kind.is_none() {
            py.detach(|| drop(tensor));
            return Ok(());
        }
        let graph = signals::run(py, move || Ok(tensor.finish()?))?;
        self.graph.get().refresh(py, &graph)?;
        Ok(())
    }

    fn __repr__(&self) -> String {
        let next = self.state().next;
        let n_nodes = self.n_nodes;
        format!("TensorWriter({}, {next} of {n_nodes} rows)", crate::tensor::described(&self.info))
    }
}
