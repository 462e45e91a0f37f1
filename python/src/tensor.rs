//! The class `Tensor`: one tensor of a graph, indexed by node ids.

use lodestore_client::PullKind;
use lodestore_client::source::TensorInfo;
use lodestore_graph::NodeId;
use lodestore_store::Dtype;
use numpy::PyUntypedArray;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PySlice, PyTuple};

use crate::arrays::{descr, numpy};
use crate::error::Error;
use crate::gather::{GatherOptions, gather};
use crate::graph::Graph;
use crate::ids::node_ids;

/// A tensor of a graph: one row for each node.
///
/// `tensor[ids]` gathers rows, `tensor[5]` one row, `tensor[10:20]` neighbouring ones. Negative ids
/// raise IdError; the ends of a slice count as everywhere in Python.
#[pyclass(frozen, module = "lodestore")]
pub(crate) struct Tensor {
    graph: Py<Graph>,
    info: TensorInfo,
}

/// Formats a tensor, such as `feat float32×128`.
pub(crate) fn described(info: &TensorInfo) -> String {
    let name = &info.name;
    let dtype = numpy_name(info.dtype);
    match info.width {
        1 => format!("{name} {dtype}"),
        width => format!("{name} {dtype}×{width}"),
    }
}

/// Returns numpy's name of a dtype.
fn numpy_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        Dtype::BF16 => "bfloat16",
        Dtype::F64 => "float64",
        Dtype::U8 => "uint8",
        Dtype::I8 => "int8",
        Dtype::I16 => "int16",
        Dtype::I32 => "int32",
        Dtype::I64 => "int64",
    }
}

impl Tensor {
    pub(crate) fn new(graph: Py<Graph>, info: TensorInfo) -> Self {
        Self { graph, info }
    }

    fn gather_nodes<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<NodeId>,
        options: GatherOptions<'_, 'py>,
    ) -> Result<Bound<'py, PyAny>, Error> {
        let opened = self.graph.get().opened(py)?;
        gather(py, &opened, &self.info, ids, options)
    }

    /// Returns the row of one node, or its element for width 1.
    fn row<'py>(&self, id: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = id.py();
        let n_nodes = self.graph.get().opened(py)?.n_nodes();
        let number: i128 = id.extract::<i64>().map_or(i128::from(i64::MAX), i128::from);
        let node = u32::try_from(number).ok().filter(|&id| id < n_nodes);
        let node = node.ok_or(Error::Id { id: number, position: 0, n_nodes })?;
        self.gather_nodes(py, vec![NodeId(node)], GatherOptions::DEFAULT)?.get_item(0)
    }

    fn slice<'py>(&self, slice: &Bound<'py, PySlice>) -> PyResult<Bound<'py, PyAny>> {
        let py = slice.py();
        let n_nodes = self.graph.get().opened(py)?.n_nodes();
        let of = slice.indices(n_nodes as isize)?;
        let ids = (0..of.slicelength as isize).map(|i| NodeId((of.start + i * of.step) as u32));
        Ok(self.gather_nodes(py, ids.collect(), GatherOptions::DEFAULT)?)
    }
}

/// Returns whether `index` is one integer, of Python or of numpy.
fn is_number(index: &Bound<'_, PyAny>) -> PyResult<bool> {
    if index.is_instance_of::<PyInt>() {
        return Ok(!index.is_instance_of::<PyBool>());
    }
    if index.is_instance_of::<PyUntypedArray>() {
        return Ok(false);
    }
    index.is_instance(&numpy(index.py())?.getattr("integer")?)
}

#[pymethods]
impl Tensor {
    /// Returns the name of the tensor (str).
    #[getter]
    fn name(&self) -> &str {
        &self.info.name
    }

    /// Returns the type of an element (numpy.dtype); bfloat16 without ml_dtypes is uint16, its
    /// bits.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        descr(py, self.info.dtype)
    }

    /// Returns the number of elements of a row (int).
    #[getter]
    fn width(&self) -> u32 {
        self.info.width
    }

    /// Returns the shape of all rows: (nodes, width), or (nodes,) for width 1.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let n_nodes = self.graph.get().opened(py)?.n_nodes();
        match self.info.width {
            1 => PyTuple::new(py, [n_nodes]),
            width => PyTuple::new(py, [n_nodes, width]),
        }
    }

    /// Returns the graph of the tensor.
    #[getter]
    fn graph(&self, py: Python<'_>) -> Py<Graph> {
        self.graph.clone_ref(py)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.graph.get().opened(py)?.n_nodes() as usize)
    }

    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.cast::<PySlice>() {
            return self.slice(slice);
        }
        if is_number(index)? {
            return self.row(index);
        }
        if index.is_instance_of::<PyTuple>() {
            let words = "a tensor is indexed by nodes alone; take columns of what it returns";
            return Err(Error::Dtype(words.to_owned()).into());
        }
        self.gather(index, None, None, false)
    }

    /// Gathers the rows of `ids`; see `Graph.gather`.
    #[pyo3(signature = (ids, *, out=None, dtype=None, bulk=false))]
    fn gather<'py>(
        &self,
        ids: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        dtype: Option<&Bound<'py, PyAny>>,
        bulk: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = ids.py();
        let opened = self.graph.get().opened(py)?;
        let ids = node_ids(ids, opened.n_nodes())?;
        let kind = if bulk { PullKind::Vector } else { PullKind::Sync };
        Ok(gather(py, &opened, &self.info, ids, GatherOptions { out, dtype, kind })?)
    }

    /// Puts rows; see `Graph.put`.
    #[pyo3(signature = (ids, rows, *, nan="refuse"))]
    fn put(&self, ids: &Bound<'_, PyAny>, rows: &Bound<'_, PyAny>, nan: &str) -> PyResult<()> {
        let graph = self.graph.get();
        graph.put(ids.py(), &self.info.name, ids, rows, nan)
    }

    /// Raises TypeError: an iteration would gather row by row.
    fn __iter__(&self) -> PyResult<Py<PyAny>> {
        let words = "a tensor is not iterated row by row; gather many: tensor[first:last]";
        Err(PyTypeError::new_err(words))
    }

    /// Returns all rows, for numpy.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(false) {
            let words = "rows are always copied; do not pass copy=False";
            return Err(Error::Shape(words.to_owned()).into());
        }
        let rows = self.slice(&PySlice::full(py))?;
        match dtype {
            Some(dtype) => rows.call_method1("astype", (dtype,)),
            None => Ok(rows),
        }
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let getitem = py.import("operator")?.getattr("getitem")?;
        (getitem, (self.graph.bind(py), &self.info.name)).into_pyobject(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let graph: String = self.graph.bind(py).repr()?.extract()?;
        Ok(format!("Tensor({} of {graph})", described(&self.info)))
    }
}
