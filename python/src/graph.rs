//! The class `Graph`.

use std::path::PathBuf;
use std::sync::Arc;

use lodestore_client::PullKind;
use lodestore_client::keep::Keep;
use lodestore_client::prefetch::Window;
use lodestore_client::scheduled::IterationConfig;
use lodestore_client::source::{TensorInfo, VersionTag};
use lodestore_graph::NodeId;
use lodestore_graph::sampler::Deal;
use lodestore_graph::schedule::ScheduleSpec;
use lodestore_store::import::EXTERNAL_ID_TENSOR;
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays::named;
use crate::batches::Batches;
use crate::error::Error;
use crate::future::Future;
use crate::gather::{GatherOptions, gather};
use crate::handle::Handle;
use crate::ids::{external_ids, node_ids};
use crate::open_graph::{Backend, OpenGraph, csc_arrays, nodes_of_split};
use crate::put::{nan_policy, put};
use crate::queue::{Queue, QueueSettings, default_memory_bytes, submit};
use crate::sampler::{Sampler, fanouts};
use crate::schedule::Schedule;
use crate::signals;
use crate::spec::{Folder, Spec, version_text, wanted_version};
use crate::tensor::Tensor;
use crate::volatile::Volatile;
use crate::writer::TensorWriter;

/// A graph: rows of its tensors by node id, from its files or from servers.
///
/// Threads may share it. A pickle holds the arguments with which it was opened and the version that
/// it reads, at which the graph is opened again after unpickling. Node ids are internal, from 0 to `nodes - 1`; `internal` maps
/// ids of the imported files to them.
#[pyclass(frozen, module = "lodestore", weakref)]
pub(crate) struct Graph {
    handle: Arc<Handle>,
}

impl Graph {
    /// Creates a graph that is opened by its first use.
    pub(crate) fn new(spec: Spec, uuid: Option<[u8; 16]>) -> Self {
        Self { handle: Handle::new(spec, uuid) }
    }

    /// Opens a graph.
    pub(crate) fn open(py: Python<'_>, spec: Spec) -> PyResult<Self> {
        let handle = Handle::new(spec, None);
        handle.opened(py)?;
        Ok(Self { handle })
    }

    /// Returns the open graph of this process.
    pub(crate) fn opened(&self, py: Python<'_>) -> Result<Arc<OpenGraph>, Error> {
        self.handle.opened(py)
    }

    /// Reloads the list of tensors.
    pub(crate) fn refresh(
        &self,
        py: Python<'_>,
        graph: &lodestore_store::Graph,
    ) -> Result<(), Error> {
        let opened = self.opened(py)?;
        if let Backend::Files(files) = opened.backend() {
            let live = Arc::clone(&files.live);
            self.handle.replace(OpenGraph::of_files(live, None, &graph.meta().tensors)?);
        }
        Ok(())
    }

    fn version_now(&self, py: Python<'_>) -> Result<VersionTag, Error> {
        let opened = self.opened(py)?;
        match opened.backend() {
            Backend::Files(_) => opened.version(),
            Backend::Servers(_) => signals::run(py, move || opened.version()),
        }
    }

    /// Returns the graph for processes that read its edges alone, which no commit changes.
    pub(crate) fn of_edges(&self) -> Self {
        Self { handle: Handle::new(self.handle.spec().at_any(), self.handle.uuid()) }
    }

    fn check_writable(&self, what: &str) -> Result<(), Error> {
        if self.handle.spec().is_writable() {
            return Ok(());
        }
        let name = self.handle.spec().name();
        let advice = "open it with writable=True";
        Err(Error::ReadOnly(format!(
            "{name}: opened for reading, so that it takes no {what}; {advice}"
        )))
    }
}

#[pymethods]
impl Graph {
    /// Returns the identity of the graph, 32 hexadecimal digits with hyphens (str).
    #[getter]
    fn uuid(&self, py: Python<'_>) -> PyResult<String> {
        let digits = self.opened(py)?.uuid().map(|byte| format!("{byte:02x}")).concat();
        let cuts = [0..8, 8..12, 12..16, 16..20, 20..32];
        Ok(cuts.map(|cut| digits[cut].to_owned()).join("-"))
    }

    /// Returns the number of nodes (int).
    #[getter]
    fn nodes(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.opened(py)?.n_nodes())
    }

    /// Returns the ids of each partition (list of range).
    #[getter]
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let opened = self.opened(py)?;
        let book = opened.source().book();
        let range = py.import("builtins")?.getattr("range")?;
        let ranges = book.parts().map(|part| book.range(part));
        ranges.map(|ids| range.call1((ids.start, ids.end))).collect()
    }

    /// Returns the number of stored in-edges (int); both directions of an undirected edge count.
    #[getter]
    fn edges(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.opened(py)?.n_edges())
    }

    /// Returns the number of the version that gathers read now (int).
    ///
    /// - A graph that was opened for reading, at a version, or with `pin=True` keeps to it.
    /// - A graph that was opened for writing reads what it has committed.
    /// - Other servers are asked: it is the newest version of which every partition has a server that
    ///   answers, or that this graph has committed or seen. Gathers read it at least.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.version_now(py)?.number)
    }

    /// Returns the same version with the commit that made it (str): "3:9f1c0a33b2d4e5f6", or "1"
    /// for an import. Two writers may make the same number, never the same commit.
    #[getter]
    fn version_id(&self, py: Python<'_>) -> PyResult<String> {
        Ok(version_text(self.version_now(py)?))
    }

    /// Returns the tensors by name, in the order of the import (dict of str to Tensor).
    #[getter]
    fn tensors<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let py = slf.py();
        let opened = slf.get().opened(slf.py())?;
        let tensors = PyDict::new(py);
        for info in opened.tensors().iter().filter(|info| info.name != EXTERNAL_ID_TENSOR) {
            tensors.set_item(&info.name, Tensor::new(slf.clone().unbind(), info.clone()))?;
        }
        Ok(tensors)
    }

    /// Returns the tensor called `name`. Raises UnknownTensorError.
    fn __getitem__(slf: &Bound<'_, Self>, name: &str) -> PyResult<Tensor> {
        let opened = slf.get().opened(slf.py())?;
        Ok(Tensor::new(slf.clone().unbind(), opened.tensor(name)?.clone()))
    }

    fn __contains__(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        Ok(self.opened(py)?.tensor(name).is_ok())
    }

    /// Gathers the rows of `ids`, in their order: (n, width), or (n,) for width 1.
    ///
    /// - ids: n integers in one dimension, as int64, int32, uint32, uint64 or a list, with repeats.
    /// - out: an array of exactly that shape and dtype, which is filled and returned.
    /// - dtype: "float32" for rows converted to it; None: as stored.
    /// - bulk: servers favour throughput over latency, and serve other requests first.
    ///
    /// Raises IdError, UnknownTensorError, ShapeError, DtypeError, DamagedError.
    #[pyo3(signature = (tensor, ids, *, out=None, dtype=None, bulk=false))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        tensor: &str,
        ids: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        dtype: Option<&Bound<'py, PyAny>>,
        bulk: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let opened = self.opened(py)?;
        let info = opened.tensor(tensor)?;
        let ids = node_ids(ids, opened.n_nodes())?;
        let kind = if bulk { PullKind::Vector } else { PullKind::Sync };
        Ok(gather(py, &opened, info, ids, GatherOptions { out, dtype, kind })?)
    }

    /// Gathers the rows of `ids` from several tensors (dict of str to array).
    ///
    /// out: a dict of arrays by the name of the tensor, for some or all of them.
    #[pyo3(signature = (tensors, ids, *, out=None))]
    #[expect(clippy::needless_pass_by_value, reason = "Python's lists come by value")]
    fn gather_many<'py>(
        &self,
        py: Python<'py>,
        tensors: Vec<String>,
        ids: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let opened = self.opened(py)?;
        let ids = node_ids(ids, opened.n_nodes())?;
        // All names are checked before the first gather.
        let infos =
            tensors.iter().map(|name| opened.tensor(name)).collect::<Result<Vec<_>, _>>()?;
        let gathered = PyDict::new(py);
        for info in infos {
            let out = out.map(|out| out.get_item(&info.name)).transpose()?.flatten();
            let options = GatherOptions { out: out.as_ref(), ..GatherOptions::DEFAULT };
            gathered.set_item(&info.name, gather(py, &opened, info, ids.clone(), options)?)?;
        }
        Ok(gathered)
    }

    /// Submits a gather that runs in the background: a Future.
    ///
    /// Waiting requests are read under one plan. With 64 requests in flight the call waits; in the
    /// thread of an event loop the request waits in its place.
    /// out: as for `gather`; it is filled by `Future.result`.
    #[pyo3(signature = (tensor, ids, *, out=None))]
    fn submit<'py>(
        &self,
        py: Python<'py>,
        tensor: &str,
        ids: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Future> {
        let opened = self.opened(py)?;
        submit(&opened, opened.queue()?, tensor, ids, out)
    }

    /// Returns a Queue of gathers in the background, with bounds and memory of its own.
    ///
    /// - window: most requests in flight.
    /// - together: most of them under one read plan.
    /// - memory: bytes for rows of `tensors` that come again, of one version: a request after a commit
    ///   empties it, and servers must be pinned.
    /// - max_bytes: most bytes in all. What `memory` leaves is halved: for rows in flight, and for rows
    ///   read under one plan. None: `memory` and a sixteenth of the free memory, at most 1 GiB.
    ///
    /// One request is taken whatever its size. Rows that were read and not taken from their futures
    /// are the caller's.
    ///
    /// Raises UnknownTensorError, ValueError.
    #[pyo3(signature = (*, window=64, together=8, memory=None, tensors=None, max_bytes=None))]
    fn queue(
        slf: &Bound<'_, Self>,
        window: usize,
        together: usize,
        memory: Option<u64>,
        tensors: Option<Vec<String>>,
        max_bytes: Option<u64>,
    ) -> PyResult<Queue> {
        let opened = slf.get().opened(slf.py())?;
        let settings = QueueSettings::new(&opened, window, together, max_bytes, memory, tensors)?;
        Ok(Queue::new(slf.clone().unbind(), settings))
    }

    /// Replaces the rows of `ids`; durable when it returns, visible after `commit`.
    ///
    /// rows: (n, width), or (n,) for width 1, of the tensor's dtype. The last row of a repeated id
    /// is kept. nan: "refuse" or "keep".
    ///
    /// Raises IdError, ShapeError, DtypeError, ReadOnlyError; StoreError for NaN.
    #[pyo3(signature = (tensor, ids, rows, *, nan="refuse"))]
    pub(crate) fn put(
        &self,
        py: Python<'_>,
        tensor: &str,
        ids: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
        nan: &str,
    ) -> PyResult<()> {
        let opened = self.opened(py)?;
        let info = opened.tensor(tensor)?;
        self.check_writable("put")?;
        let ids = node_ids(ids, opened.n_nodes())?;
        Ok(put(py, &opened, info, ids, rows, nan_policy(nan)?)?)
    }

    /// Commits all puts as a new version; returns its number (int).
    ///
    /// Gathers of this graph then read it, unless servers are followers that do not have it yet.
    /// Iterations, pinned graphs and other processes keep to their version. After an interrupt
    /// `version` shows whether the commit was completed.
    fn commit(&self, py: Python<'_>) -> PyResult<u32> {
        let opened = self.opened(py)?;
        self.check_writable("commit")?;
        Ok(signals::run(py, move || opened.commit())?)
    }

    /// Begins a tensor of `width` elements per node: a TensorWriter, for `with`.
    ///
    /// nan: "refuse" or "keep".
    ///
    /// Raises ReadOnlyError, DtypeError; StoreError for a name that exists.
    #[pyo3(signature = (name, dtype, width=1, *, nan="refuse"))]
    fn new_tensor(
        slf: &Bound<'_, Self>,
        name: String,
        dtype: &Bound<'_, PyAny>,
        width: u32,
        nan: &str,
    ) -> PyResult<TensorWriter> {
        let py = slf.py();
        let graph = slf.get();
        let opened = graph.opened(py)?;
        graph.check_writable("new tensor")?;
        let info = TensorInfo { name, dtype: named(dtype)?, width };
        let nan = nan_policy(nan)?;
        Ok(TensorWriter::begin(slf.clone().unbind(), &opened, info, nan)?)
    }

    /// Samples all batches of a run, and writes them to `path`: a Schedule.
    ///
    /// roots: "train", "val", "test", "all", or node ids. fanout: neighbours for each hop from the
    /// roots outwards, -1 for all. batch: roots of a batch. Equal arguments yield equal batches; a
    /// file with these batches is reused.
    ///
    /// Raises ScheduleError, IdError, UnknownTensorError.
    #[pyo3(signature = (path, *, roots, fanout, batch, epochs, seed=0, workers=1))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a function in Python")]
    #[expect(clippy::needless_pass_by_value, reason = "a list of Python has no slice")]
    fn schedule(
        slf: &Bound<'_, Self>,
        path: PathBuf,
        roots: &Bound<'_, PyAny>,
        fanout: Vec<i64>,
        batch: usize,
        epochs: u32,
        seed: u64,
        workers: u32,
    ) -> PyResult<Schedule> {
        let py = slf.py();
        let opened = slf.get().opened(slf.py())?;
        let roots = match roots.extract::<String>() {
            Ok(name) if name == "all" => (0..opened.n_nodes()).map(NodeId).collect(),
            Ok(name) => nodes_of_split(py, &opened, &name)?,
            Err(_) => node_ids(roots, opened.n_nodes())?,
        };
        let spec = ScheduleSpec {
            graph_uuid: opened.uuid(),
            seed,
            fanouts: fanouts(&fanout)?,
            batch_size: batch,
            epochs,
            workers,
            deal: Deal::Owned,
        };
        Ok(Schedule::write(py, opened, path, spec, roots)?)
    }

    /// Returns a Sampler of this graph.
    ///
    /// fanout: neighbours for each hop from the ids outwards, -1 for all. Raises ValueError.
    fn sampler(slf: &Bound<'_, Self>, fanout: Vec<i64>) -> PyResult<Sampler> {
        Sampler::new(slf.clone().unbind(), fanout)
    }

    /// Iterates over the batches of a schedule with the rows of `tensors`, prepared ahead: Batches.
    ///
    /// All rows are of the version that is committed now, `Batches.version`, whatever is committed
    /// meanwhile. Servers keep it for 10 minutes after the last pull.
    ///
    /// - worker: the worker whose batches they are.
    /// - window, together: most batches that are loading or ready, and under one read plan.
    /// - policy: "oracle" keeps the rows with the nearest next use, "hot" those that an epoch uses
    ///   most (RapidGNN's hot sets), "none" keeps none.
    /// - memory: most bytes of rows, retained and prepared ahead; None: a sixteenth of the free memory.
    ///
    /// Raises UnknownTensorError, ScheduleError.
    #[pyo3(signature = (schedule, tensors, *, worker=0, window=16, together=8, policy="oracle",
                        memory=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of a function in Python")]
    fn iterate(
        slf: &Bound<'_, Self>,
        schedule: Bound<'_, Schedule>,
        tensors: Vec<String>,
        worker: u32,
        window: usize,
        together: usize,
        policy: &str,
        memory: Option<u64>,
    ) -> PyResult<Batches> {
        let keep = match policy {
            "oracle" => Keep::Oracle,
            "hot" => Keep::Hot,
            "none" => Keep::Nothing,
            _ => {
                let words =
                    format!("policy must be \"oracle\", \"hot\" or \"none\", found {policy:?}");
                return Err(PyValueError::new_err(words));
            }
        };
        let memory_bytes = memory.unwrap_or_else(default_memory_bytes);
        let window = Window { n_batches: window, together };
        let config = IterationConfig { worker, first: 0, window, keep, memory_bytes };
        Ok(Batches::new(slf.clone().unbind(), schedule.unbind(), tensors, config)?)
    }

    /// Returns a read-only graph of a committed version.
    ///
    /// version: its number (int), or with its commit (str), as `version_id` returns it; None: the
    /// version of now. Raises VersionError.
    #[pyo3(signature = (version=None))]
    fn at(&self, py: Python<'_>, version: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let opened = self.opened(py)?;
        let version = match version {
            Some(version) => wanted_version(version)?,
            None => self.version_now(py)?,
        };
        let spec = self.handle.spec().at(version);
        let at = match opened.backend() {
            Backend::Files(files) => {
                let live = Arc::clone(&files.live);
                let number = Some(version.number);
                spec.checked(OpenGraph::of_files(live, number, opened.tensors())?)?
            }
            Backend::Servers(_) => {
                let spec = spec.clone();
                signals::run(py, move || spec.open())?
            }
        };
        Ok(Self { handle: Handle::with(spec, at) })
    }

    /// Maps ids of the imported files to node ids: int64 of shape (n,). Raises IdError.
    fn internal<'py>(
        &self,
        py: Python<'py>,
        external: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let opened = self.opened(py)?;
        let external = external_ids(external, opened.n_nodes())?;
        let internal = signals::run(py, move || opened.to_internal(&external))?;
        Ok(PyArray1::from_vec(py, internal))
    }

    /// Maps node ids to ids of the imported files: int64 of shape (n,). Raises IdError.
    fn external<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.gather(py, EXTERNAL_ID_TENSOR, ids, None, None, false)
    }

    /// Returns the nodes of a split, ascending: int64 of shape (n,).
    ///
    /// name: "train", "val" or "test": 0, 1 and 2 in the tensor `split`, u8 of width 1.
    #[pyo3(signature = (name="train"))]
    fn split<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let nodes = nodes_of_split(py, &self.opened(py)?, name)?;
        Ok(PyArray1::from_vec(py, nodes.into_iter().map(|node| node.0.into()).collect()))
    }

    /// Returns the edges by destination: (colptr, row), where the sources of the edges into node
    /// `i` are `row[colptr[i]:colptr[i + 1]]`, ascending.
    ///
    /// colptr: int64 of shape (nodes + 1,). row: `dtype`, "int64" or "int32", of shape (edges,).
    #[pyo3(signature = (dtype="int64"))]
    fn csc<'py>(&self, py: Python<'py>, dtype: &str) -> PyResult<Bound<'py, PyTuple>> {
        csc_arrays(py, self.opened(py)?, dtype)
    }

    /// Returns the volatile tensors of the servers, or new ones in the memory of this process.
    ///
    /// memory: most bytes for those of this process (int); None: a sixteenth of the free memory. That
    /// of servers is their own.
    #[pyo3(signature = (*, memory=None))]
    fn volatile(&self, py: Python<'_>, memory: Option<u64>) -> PyResult<Volatile> {
        let opened = self.opened(py)?;
        Volatile::new(&opened, memory)
    }

    /// Returns the mean nanoseconds of `repeats` gathers in Rust alone, for benches.
    fn _rust_gather_ns(
        &self,
        py: Python<'_>,
        tensor: &str,
        ids: &Bound<'_, PyAny>,
        repeats: u32,
    ) -> PyResult<f64> {
        let opened = self.opened(py)?;
        let ids = node_ids(ids, opened.n_nodes())?;
        Ok(opened.mean_gather_ns(tensor, &ids, repeats)?)
    }

    /// Closes the graph; its lock and memory are released after the calls in progress.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.handle.close());
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let restore = py.import("lodestore._lodestore")?.getattr("_restore")?;
        let spec = self.handle.pickled().dict(py)?;
        spec.set_item("uuid", self.handle.uuid())?;
        (restore, (spec,)).into_pyobject(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let spec = self.handle.spec();
        let name = match spec {
            Spec::Folder(folder) => {
                folder.path.file_name().unwrap_or_default().display().to_string()
            }
            Spec::Servers(_) => spec.name(),
        };
        if self.handle.is_closed() {
            return format!("Graph('{name}', closed)");
        }
        let is_writer = matches!(spec, Spec::Folder(Folder { writable: true, .. }));
        match self.opened(py) {
            Ok(opened) => opened.described(&name, is_writer),
            Err(error) => format!("Graph('{name}', {error})"),
        }
    }
}
