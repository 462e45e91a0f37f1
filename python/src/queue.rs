//! The class `Queue`: gathers in the background with bounds and memory of their own.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lodestore_client::gather_queue::QueueBounds;
use lodestore_client::source::VersionTag;
use lodestore_client::source::tiered::TieredTensors;
use lodestore_client::{GatherQueue, RowSource};
use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use lodestore_store::reader::available_memory_bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays::{RowArray, RowLayout};
use crate::error::Error;
use crate::future::Future;
use crate::graph::Graph;
use crate::ids::node_ids;
use crate::open_graph::{Backend, OpenGraph};
use crate::signals::PAUSE;

/// Free memory that is assumed where the system does not report it.
const ASSUMED_FREE_BYTES: u64 = 4 << 30;
/// Processes of one machine that share its memory by the default bounds.
const PROCESSES_MAX: u64 = 8;
/// Most bytes that a queue has by default.
const QUEUE_BYTES_MAX: u64 = 1 << 30;

/// A queue of gathers with bounds of its own, and memory for rows that come again.
///
/// Pickled as the graph and the arguments; its threads start with the first request. Any number of
/// threads may submit.
#[pyclass(frozen, module = "lodestore")]
pub(crate) struct Queue {
    graph: Py<Graph>,
    settings: QueueSettings,
    /// The queue over the graph as it was last open, which owns it.
    running: PerProcess<Mutex<Weak<RunningQueue>>>,
}

/// The arguments of a queue.
#[derive(Clone)]
pub(crate) struct QueueSettings {
    pub(crate) window: usize,
    pub(crate) together: usize,
    /// Most bytes over the window, the rows that are pulled together, and the memory.
    pub(crate) max_bytes: u64,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) tensors: Vec<String>,
}

/// The threads and the memory of a queue. The open graph owns it, so that a graph that is closed
/// keeps neither.
pub(crate) struct RunningQueue {
    opened: Weak<OpenGraph>,
    /// The version whose rows are in memory.
    version: Option<VersionTag>,
    tiered: Option<TieredTensors>,
    queue: GatherQueue,
}

impl QueueSettings {
    /// Checks the arguments of a queue.
    pub(crate) fn new(
        opened: &OpenGraph,
        window: usize,
        together: usize,
        max_bytes: Option<u64>,
        memory_bytes: Option<u64>,
        tensors: Option<Vec<String>>,
    ) -> PyResult<Self> {
        for (name, number) in [("window", window), ("together", together)] {
            if number == 0 {
                return Err(PyValueError::new_err(format!("{name} must be at least 1, found 0")));
            }
        }
        let tensors = tensors.unwrap_or_default();
        if memory_bytes.is_some() && tensors.is_empty() {
            return Err(PyValueError::new_err("memory= needs tensors=, whose rows it is for"));
        }
        let n_bytes = memory_bytes.unwrap_or(0);
        let max_bytes = max_bytes.unwrap_or_else(|| n_bytes.saturating_add(default_queue_bytes()));
        if max_bytes <= n_bytes {
            return Err(PyValueError::new_err(format!(
                "max_bytes={max_bytes} leaves nothing beside memory={n_bytes}; it bounds both"
            )));
        }
        tensors.iter().try_for_each(|name| opened.tensor(name).map(drop))?;
        Ok(Self { window, together, max_bytes, memory_bytes, tensors })
    }

    /// Returns the bounds of the queue itself.
    fn bounds(&self) -> QueueBounds {
        let beside_memory = self.max_bytes - self.memory_bytes.unwrap_or(0);
        QueueBounds {
            window: self.window,
            together: self.together,
            bytes: usize::try_from(beside_memory).unwrap_or(usize::MAX),
            ..QueueBounds::default()
        }
    }
}

impl Queue {
    pub(crate) fn new(graph: Py<Graph>, settings: QueueSettings) -> Self {
        Self { graph, settings, running: PerProcess::new() }
    }

    /// Returns the running queue over the graph as it is open now. With memory it reads one version,
    /// and a commit makes another queue.
    fn running(&self, opened: &Arc<OpenGraph>) -> Result<Arc<RunningQueue>, Error> {
        let version = self.version_in_memory(opened)?;
        let mut current = self.running.get_or(|_| Mutex::default()).lock().ignore_poison();
        let last = current.upgrade();
        if let Some(last) = &last
            && last.opened.as_ptr() == Arc::as_ptr(opened)
            && last.version == version
        {
            return Ok(Arc::clone(last));
        }
        let next = Arc::new(self.start(opened)?);
        opened.keep_queue(&next, last.as_ref());
        *current = Arc::downgrade(&next);
        Ok(next)
    }

    /// Returns the version whose rows memory may hold. Without memory there is none.
    fn version_in_memory(&self, opened: &OpenGraph) -> Result<Option<VersionTag>, Error> {
        if self.settings.memory_bytes.is_none() {
            return Ok(None);
        }
        match opened.backend() {
            Backend::Files(_) => opened.version().map(Some),
            Backend::Servers(servers) => {
                servers.client.pinned_version().map(Some).ok_or_else(|| {
                    let words =
                        "memory= holds rows of one version; connect to servers with pin=True";
                    Error::Version(words.to_owned())
                })
            }
        }
    }

    fn start(&self, opened: &Arc<OpenGraph>) -> Result<RunningQueue, Error> {
        let mut version = None;
        let mut tiered = None;
        if let Some(n_bytes) = self.settings.memory_bytes {
            // Of one version from here on: else rows of the next one would meet those in memory.
            let pinned = opened.pinned()?;
            version = Some(pinned.version);
            tiered = Some(TieredTensors::new(pinned.source, &self.settings.tensors, n_bytes)?);
        }
        let source = tiered.as_ref().map_or(opened.source(), TieredTensors::source);
        let queue = GatherQueue::start(Arc::clone(source), self.settings.bounds())?;
        Ok(RunningQueue { opened: Arc::downgrade(opened), version, tiered, queue })
    }
}

#[pymethods]
impl Queue {
    /// Submits a gather: a Future, as `Graph.submit` does.
    ///
    /// With `window` requests in flight the call waits; in the thread of an event loop the request
    /// waits in its place.
    ///
    /// Raises IdError, UnknownTensorError, ShapeError, DtypeError; VersionError for memory over
    /// servers that are not pinned.
    #[pyo3(signature = (tensor, ids, *, out=None))]
    fn submit<'py>(
        &self,
        py: Python<'py>,
        tensor: &str,
        ids: &Bound<'py, PyAny>,
        out: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Future> {
        let opened = self.graph.get().opened(py)?;
        let running = self.running(&opened)?;
        submit(&opened, &running.queue, tensor, ids, out)
    }

    /// Returns counters since memory was last empty (dict of str to int). A commit empties it.
    ///
    /// - hit_rows, read_rows: rows that were found in memory, and those that were read, each once for
    ///   the requests that were read together.
    /// - peak_bytes: most bytes of rows at once: pulled together, pulled and not taken yet, and the
    ///   bound of the memory.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let running =
            self.running.get().and_then(|running| running.lock().ignore_poison().upgrade());
        let tiered = running.as_ref().and_then(|running| running.tiered.as_ref());
        let pulled = running.as_ref().map_or(0, |running| running.queue.n_pulled_rows());
        let (hits, misses) = tiered.map_or((0, pulled), TieredTensors::hits_and_misses);
        let stats = PyDict::new(py);
        stats.set_item("hit_rows", hits)?;
        stats.set_item("read_rows", misses)?;
        let peak_bytes = running.as_ref().map_or(0, |running| running.queue.peak_bytes() as u64);
        let memory_bytes = self.settings.memory_bytes.filter(|_| tiered.is_some()).unwrap_or(0);
        stats.set_item("peak_bytes", peak_bytes + memory_bytes)?;
        Ok(stats)
    }

    /// Returns the most bytes of rows that wait or are being pulled (int): half of `max_bytes` without
    /// the memory.
    #[getter]
    fn window_bytes(&self) -> usize {
        self.settings.bounds().row_bytes()
    }

    /// Returns the graph.
    #[getter]
    fn graph(&self, py: Python<'_>) -> Py<Graph> {
        self.graph.clone_ref(py)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let QueueSettings { window, together, max_bytes, memory_bytes, tensors } = &self.settings;
        let restore = py.import("lodestore._lodestore")?.getattr("_restore_queue")?;
        let settings = (self.graph.bind(py), window, together, max_bytes, memory_bytes, tensors);
        (restore, settings).into_pyobject(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let graph: String = self.graph.bind(py).repr()?.extract()?;
        let QueueSettings { window, together, .. } = self.settings;
        Ok(format!("Queue(window {window}, together {together}, of {graph})"))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let running =
            self.running.get().and_then(|running| running.lock().ignore_poison().upgrade());
        if let Some(running) = running
            && let Some(opened) = running.opened.upgrade()
        {
            opened.forget_queue(&running);
        }
    }
}

/// Makes a queue of the result of `Queue.__reduce__`.
#[pyfunction]
#[pyo3(name = "_restore_queue")]
pub(crate) fn restore_queue(
    graph: Py<Graph>,
    window: usize,
    together: usize,
    max_bytes: u64,
    memory_bytes: Option<u64>,
    tensors: Vec<String>,
) -> Queue {
    Queue::new(graph, QueueSettings { window, together, max_bytes, memory_bytes, tensors })
}

/// Submits a gather to `queue`, and checks for signals while it has no room.
pub(crate) fn submit<'py>(
    opened: &OpenGraph,
    queue: &GatherQueue,
    tensor: &str,
    ids: &Bound<'py, PyAny>,
    out: Option<Bound<'py, PyAny>>,
) -> PyResult<Future> {
    let py = ids.py();
    let info = opened.tensor(tensor)?;
    let mut ids = node_ids(ids, opened.n_nodes())?;
    let layout = RowLayout::new(info, ids.len());
    if let Some(out) = &out {
        // Checked again when it is filled, since the caller may reshape it meanwhile.
        RowArray::from_out(out, layout)?;
    }
    let out = out.map(Bound::unbind);
    let mut time = Duration::ZERO;
    loop {
        let submit = || queue.submit_within(tensor, &mut ids, time).map_err(Error::from);
        if let Some(ticket) = py.detach(submit)? {
            return Ok(Future::new(ticket, tensor.to_owned(), layout, out));
        }
        py.check_signals()?;
        if time.is_zero() && is_in_event_loop(py)? {
            let ticket = queue.submit_beyond_window(tensor, ids).map_err(Error::from)?;
            return Ok(Future::new(ticket, tensor.to_owned(), layout, out));
        }
        time = PAUSE;
    }
}

/// Returns whether this thread runs an event loop, which a wait for room would hold up.
fn is_in_event_loop(py: Python<'_>) -> PyResult<bool> {
    py.import("lodestore._futures")?.call_method0("is_in_event_loop")?.extract()
}

/// Returns the bytes of memory that are free: on this machine, and within the limits of its
/// container.
#[pyfunction]
#[pyo3(name = "_available_memory")]
pub(crate) fn available_memory() -> u64 {
    available_memory_bytes().unwrap_or(ASSUMED_FREE_BYTES)
}

/// Returns the bytes of memory that an iteration has by default.
///
/// Trainers of one machine start together, most often at most eight: they have half of it.
pub(crate) fn default_memory_bytes() -> u64 {
    available_memory() / PROCESSES_MAX / 2
}

/// Returns the bytes that a queue has by default, beside its memory for rows that come again.
fn default_queue_bytes() -> u64 {
    default_memory_bytes().clamp(1, QUEUE_BYTES_MAX)
}
