//! The classes `Batches` and `Batch`: a run's batches with their rows, prepared ahead.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lodestore_client::{
    Met, RowBuffer, ScheduledBatch, ScheduledBatches, TensorInfo, Walk, WalkStats,
};
use lodestore_graph::schedule::ScheduleError;
use numpy::PyArray1;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::arrays::{RowArray, RowShape};
use crate::error::Error;
use crate::graph::Graph;
use crate::schedule::Schedule;
use crate::signals::PAUSE;

/// A run's batches with their rows, in order; prepared ahead by threads of lodestore.
///
/// `state_dict` says where it is; `load_state_dict` goes on from there, also in another process.
#[pyclass(frozen, module = "lodestore")]
pub(crate) struct Batches {
    graph: Py<Graph>,
    schedule: Py<Schedule>,
    tensors: Vec<TensorInfo>,
    walk: Walk,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of the next batch over all epochs.
    next: u32,
    /// Started with the first batch that is taken.
    running: Option<ScheduledBatches>,
    /// What the walk had done when it ended.
    ended: WalkStats,
    waits: Waits,
}

/// How batches were met.
#[derive(Clone, Copy, Default)]
struct Waits {
    ready: u64,
    waited: u64,
    seconds: f64,
}

impl Batches {
    /// Creates a walk, which starts with its first batch.
    #[expect(clippy::needless_pass_by_value, reason = "Python's lists come by value")]
    pub(crate) fn new(
        graph: Py<Graph>,
        schedule: Py<Schedule>,
        tensors: Vec<String>,
        walk: Walk,
    ) -> Result<Self, Error> {
        if tensors.is_empty() {
            return Err(PyValueError::new_err("name at least one tensor").into());
        }
        Python::attach(|py| {
            let opened = graph.get().opened(py)?;
            let file = schedule.get().file();
            file.expect_graph(opened.uuid(), opened.n_nodes())?;
            if file.n_batches(walk.worker) == 0 {
                let (epoch, worker, batch) = (0, walk.worker, 0);
                return Err(ScheduleError::NoSuchBatch { epoch, worker, batch }.into());
            }
            let infos = tensors.iter().map(|name| opened.tensor(name).cloned());
            let tensors = infos.collect::<Result<Vec<_>, Error>>()?;
            Ok(Self { graph, schedule, tensors, walk, state: Mutex::default() })
        })
    }

    /// Returns the batches of the worker in each epoch, and all of them.
    fn counts(&self) -> (u32, u32) {
        let file = self.schedule.get().file();
        let per_epoch = file.n_batches(self.walk.worker);
        (per_epoch, per_epoch.saturating_mul(file.spec().epochs))
    }

    fn start(&self, py: Python<'_>, first: u32) -> Result<ScheduledBatches, Error> {
        let opened = self.graph.get().opened(py)?;
        let (schedule, walk) = (self.schedule.get(), Walk { first, ..self.walk.clone() });
        let names: Vec<String> = self.tensors.iter().map(|info| info.name.clone()).collect();
        let (file, path) = (schedule.file().clone(), schedule.file_path());
        Ok(ScheduledBatches::start(opened.source(), file, path, &names, &walk)?)
    }
}

/// Waits for the next batch, and looks for signals meanwhile; returns whether it was there already.
fn next_of(
    py: Python<'_>,
    running: &ScheduledBatches,
) -> Result<(Option<ScheduledBatch>, bool), Error> {
    let mut time = Duration::from_micros(200);
    loop {
        if let Some(batch) = py.detach(|| running.next_within(time))? {
            return Ok((batch, time < PAUSE));
        }
        py.check_signals()?;
        time = PAUSE;
    }
}

#[pymethods]
impl Batches {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let state = self.state.lock_py_attached(py);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let (per_epoch, all) = self.counts();
        if state.next >= all {
            if let Some(running) = state.running.take() {
                state.ended = running.stats();
            }
            return Ok(None);
        }
        if state.running.is_none() {
            state.running = Some(self.start(py, state.next)?);
        }
        let start = Instant::now();
        let taken = state.running.as_ref().map(|running| next_of(py, running)).transpose();
        let (batch, is_ready) = match taken {
            Ok(Some((Some(batch), is_ready))) => (batch, is_ready),
            Ok(_) => return Err(Error::Panicked.into()),
            // An interrupted wait goes on with the next call; after other errors the walk starts
            // again.
            Err(Error::Python(error)) => return Err(error),
            Err(error) => {
                state.running = None;
                return Err(error.into());
            }
        };
        let wait_seconds = start.elapsed().as_secs_f64();
        state.next = batch.index + 1;
        let met = match batch.prepared.met {
            Met::DefaultPath => "default_path",
            _ if is_ready => "ready",
            _ => "waited",
        };
        state.waits.ready += u64::from(is_ready);
        state.waits.waited += u64::from(!is_ready);
        state.waits.seconds += wait_seconds;
        let (epoch, index) = (batch.index / per_epoch, batch.index % per_epoch);
        let tensors = self.tensors.clone();
        Ok(Some(Batch { batch, tensors, epoch, index, met, wait_seconds }))
    }

    /// Batches that are left (int).
    fn __len__(&self, py: Python<'_>) -> usize {
        let state = self.state.lock_py_attached(py);
        let next = state.unwrap_or_else(PoisonError::into_inner).next;
        self.counts().1.saturating_sub(next) as usize
    }

    /// Returns where the walk is, for `load_state_dict`: a dict of numbers and strings.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.state.lock_py_attached(py);
        let next = state.unwrap_or_else(PoisonError::into_inner).next;
        let per_epoch = self.counts().0;
        let dict = PyDict::new(py);
        dict.set_item("epoch", next / per_epoch)?;
        dict.set_item("batch", next % per_epoch)?;
        dict.set_item("worker", self.walk.worker)?;
        dict.set_item("schedule", self.schedule.get().file().digest_hex())?;
        Ok(dict)
    }

    /// Goes on where `state` was taken. Raises ValueError for that of another schedule or worker.
    fn load_state_dict(&self, py: Python<'_>, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let get = |key: &str| -> PyResult<Bound<'_, PyAny>> {
            state.get_item(key)?.ok_or_else(|| PyValueError::new_err(format!("state: no `{key}`")))
        };
        let (digest, found) =
            (self.schedule.get().file().digest_hex(), get("schedule")?.extract::<String>()?);
        if digest != found {
            let words = format!("state of the schedule {found}, expected that of {digest}");
            return Err(PyValueError::new_err(words));
        }
        let (worker, found) = (self.walk.worker, get("worker")?.extract::<u32>()?);
        if worker != found {
            let words = format!("state of worker {found}, expected that of worker {worker}");
            return Err(PyValueError::new_err(words));
        }
        let (epoch, batch): (u32, u32) = (get("epoch")?.extract()?, get("batch")?.extract()?);
        let (per_epoch, all) = self.counts();
        let next = epoch.checked_mul(per_epoch).and_then(|first| first.checked_add(batch));
        let next = next.filter(|&next| batch < per_epoch && next <= all).ok_or_else(|| {
            PyValueError::new_err(format!("state: no batch {batch} in epoch {epoch}"))
        })?;
        let state = self.state.lock_py_attached(py);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        (state.next, state.running) = (next, None);
        Ok(())
    }

    /// Returns what was done so far: a dict of numbers.
    ///
    /// ready, waited: batches that were there when they were wanted, and those that were not.
    /// wait_seconds: time in which there was no batch. read_rows, read_bytes: rows of the first
    /// tensor that were read. hit_rows: rows that were in memory. filled_rows: rows read before the
    /// first batch. memory_rows: rows that there is memory for. window_bytes: most that batches
    /// had.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.state.lock_py_attached(py);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        let walk = state.running.as_ref().map_or(state.ended, ScheduledBatches::stats);
        let dict = PyDict::new(py);
        dict.set_item("ready", state.waits.ready)?;
        dict.set_item("waited", state.waits.waited)?;
        dict.set_item("wait_seconds", state.waits.seconds)?;
        dict.set_item("read_rows", walk.load.remote_rows)?;
        dict.set_item("read_bytes", walk.load.remote_bytes)?;
        dict.set_item("hit_rows", walk.load.hit_rows)?;
        dict.set_item("filled_rows", walk.filled_rows)?;
        dict.set_item("memory_rows", walk.kept_rows_most)?;
        dict.set_item("window_bytes", walk.window.peak_bytes)?;
        Ok(dict)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = self.state.lock_py_attached(py);
        let next = state.unwrap_or_else(PoisonError::into_inner).next;
        let ((per_epoch, all), worker) = (self.counts(), self.walk.worker);
        let (epoch, batch) = (next / per_epoch, next % per_epoch);
        format!("Batches(worker {worker}, at epoch {epoch}, batch {batch}, {} left)", all - next)
    }
}

/// A batch: nodes, edges and rows. `batch["feat"]` are the rows of its nodes.
#[pyclass(frozen, module = "lodestore")]
pub(crate) struct Batch {
    batch: ScheduledBatch,
    tensors: Vec<TensorInfo>,
    epoch: u32,
    index: u32,
    met: &'static str,
    wait_seconds: f64,
}

impl Batch {
    /// Returns the rows of the tensor at `at`.
    fn bytes(&self, at: usize) -> &[u8] {
        match at.checked_sub(1) {
            None => self.batch.prepared.rows.bytes(),
            Some(other) => self.batch.others.get(other).map_or(&[], RowBuffer::bytes),
        }
    }
}

#[pymethods]
impl Batch {
    /// Number of the epoch, from 0 (int).
    #[getter]
    fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Number of the batch in its epoch, from 0 (int).
    #[getter]
    fn index(&self) -> u32 {
        self.index
    }

    /// The input nodes, roots first: int64 of shape (n,).
    #[getter]
    fn nodes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        let nodes = &self.batch.prepared.batch.nodes;
        PyArray1::from_vec(py, nodes.iter().map(|node| node.0.into()).collect())
    }

    /// Number of nodes, from the front, that the batch predicts (int).
    #[getter]
    fn n_roots(&self) -> usize {
        self.batch.prepared.batch.n_roots
    }

    /// One block for each layer, the input layer first: a list of (indptr, indices).
    ///
    /// Destination d of a block has the sources `indices[indptr[d]:indptr[d + 1]]`; both are
    /// positions in `nodes`, int64. The destinations of a block are the sources of the next one.
    #[getter]
    fn blocks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let blocks = &self.batch.prepared.batch.blocks;
        let arrays = blocks.iter().map(|block| {
            let wide = |of: &[u32]| of.iter().map(|&number| number.into()).collect();
            let indptr: Bound<'py, PyArray1<i64>> = PyArray1::from_vec(py, wide(&block.offsets));
            let indices: Bound<'py, PyArray1<i64>> = PyArray1::from_vec(py, wide(&block.sources));
            PyTuple::new(py, [indptr, indices])
        });
        PyList::new(py, arrays.collect::<PyResult<Vec<_>>>()?)
    }

    /// How it was met (str): "ready", "waited", or "default_path" where it was not prepared ahead.
    #[getter]
    fn met(&self) -> &'static str {
        self.met
    }

    /// Time in which there was no batch before it came, in seconds (float).
    #[getter]
    fn wait_seconds(&self) -> f64 {
        self.wait_seconds
    }

    /// Returns the rows of `tensor` for `nodes`: (n, width), or (n,) for width 1. Raises KeyError.
    fn __getitem__<'py>(&self, py: Python<'py>, tensor: &str) -> PyResult<Bound<'py, PyAny>> {
        self.rows(py, tensor, None)
    }

    /// The same, in `out` if it is given: an array of exactly that shape and dtype.
    #[pyo3(signature = (tensor, *, out=None))]
    fn rows<'py>(
        &self,
        py: Python<'py>,
        tensor: &str,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let at = self.tensors.iter().position(|info| info.name == tensor);
        let at = at.ok_or_else(|| {
            let names: Vec<&str> = self.tensors.iter().map(|info| &*info.name).collect();
            PyKeyError::new_err(format!("the batch has {}, not {tensor:?}", names.join(", ")))
        })?;
        let info = &self.tensors[at];
        let shape = RowShape::of(info, self.batch.prepared.batch.nodes.len());
        let rows = match out {
            Some(out) => RowArray::of_out(out, info.dtype, shape)?,
            None => RowArray::new(py, info.dtype, shape)?,
        };
        rows.write(|out| {
            py.detach(|| out.copy_from_slice(self.bytes(at)));
            Ok(())
        })?;
        Ok(rows.finish())
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> = self.tensors.iter().map(|info| &*info.name).collect();
        let (epoch, index, nodes) = (self.epoch, self.index, self.batch.prepared.batch.nodes.len());
        format!("Batch(epoch {epoch}, index {index}, {nodes} nodes: {})", names.join(", "))
    }
}
