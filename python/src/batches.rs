//! The classes `Batches` and `Batch`: the batches of a schedule with their rows, prepared ahead.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lodestore_client::buffer::RowBuffer;
use lodestore_client::prefetch::BatchReadiness;
use lodestore_client::scheduled::{
    IterationConfig, IterationStats, ScheduledBatch, ScheduledBatches,
};
use lodestore_client::source::{TensorInfo, VersionTag};
use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::schedule::ScheduleError;
use numpy::PyArray1;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::arrays::{RowArray, RowLayout};
use crate::error::Error;
use crate::graph::Graph;
use crate::open_graph::PinnedRows;
use crate::schedule::Schedule;
use crate::signals::{self, PAUSE};
use crate::spec::{version_text, wanted_version};

/// The batches of a schedule with their rows, in order, prepared ahead by threads of lodestore.
///
/// All rows are of one version: the one that was committed when the iteration was made, whatever is
/// committed meanwhile. `state_dict` returns the position and the version, from which
/// `load_state_dict` resumes, in another process too.
#[pyclass(frozen, module = "lodestore")]
pub(crate) struct Batches {
    graph: Py<Graph>,
    schedule: Py<Schedule>,
    tensors: Vec<TensorInfo>,
    config: IterationConfig,
    pinned: PinnedRows,
    /// Number of the next batch over all epochs.
    next: AtomicU32,
    waits: WaitStats,
    /// Locked for moments only, and never while Python code may run: a signal handler that asks for
    /// the position runs on the thread that waits for a batch.
    state: PerProcess<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The background iteration, started by the first call for a batch.
    running: Option<Arc<ScheduledBatches>>,
    /// Final counters of an iteration that has ended.
    ended: IterationStats,
}

/// Counters of batches that were ready in time and of those that were not.
#[derive(Default)]
struct WaitStats {
    ready: AtomicU64,
    waited: AtomicU64,
    micros: AtomicU64,
}

impl Batches {
    /// Creates an iteration; its threads start with the first batch.
    #[expect(clippy::needless_pass_by_value, reason = "Python's lists come by value")]
    pub(crate) fn new(
        graph: Py<Graph>,
        schedule: Py<Schedule>,
        tensors: Vec<String>,
        config: IterationConfig,
    ) -> Result<Self, Error> {
        if tensors.is_empty() {
            return Err(PyValueError::new_err("name at least one tensor").into());
        }
        Python::attach(|py| {
            let opened = graph.get().opened(py)?;
            let file = schedule.get().file();
            file.expect_graph(opened.uuid(), opened.n_nodes())?;
            if file.n_batches(config.worker) == 0 {
                let worker = config.worker;
                return Err(ScheduleError::NoSuchBatch { epoch: 0, worker, batch: 0 }.into());
            }
            let infos = tensors.iter().map(|name| opened.tensor(name).cloned());
            let tensors = infos.collect::<Result<Vec<_>, Error>>()?;
            let pinned = signals::run(py, move || opened.pinned())?;
            Ok(Self {
                graph,
                schedule,
                tensors,
                config,
                pinned,
                next: AtomicU32::new(0),
                waits: WaitStats::default(),
                state: PerProcess::new(),
            })
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.get_or(|_| Mutex::default()).lock().ignore_poison()
    }

    /// Returns the number of the next batch over all epochs.
    fn position(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns the iteration that runs, started at the position where there is none.
    fn running(&self, py: Python<'_>) -> Result<Arc<ScheduledBatches>, Error> {
        loop {
            if let Some(running) = &self.state().running {
                return Ok(Arc::clone(running));
            }
            let first = self.position();
            // It checks for signals, whose handlers may ask for the position or change it.
            let started = Arc::new(self.start(py, first)?);
            let mut state = self.state();
            if state.running.is_none() && self.position() == first {
                state.running = Some(Arc::clone(&started));
                return Ok(started);
            }
        }
    }

    /// Takes an iteration out, unless another one runs by now; returns whether it was the one that
    /// ran.
    fn end(&self, running: &Arc<ScheduledBatches>) -> bool {
        let mut state = self.state();
        let ended = state.running.take_if(|current| Arc::ptr_eq(current, running));
        drop(state);
        ended.is_some()
    }

    /// Moves the position behind a batch of `running`; returns whether that is the iteration that
    /// runs.
    fn advance(&self, running: &Arc<ScheduledBatches>, index: u32) -> bool {
        let state = self.state();
        let is_current = state.running.as_ref().is_some_and(|it| Arc::ptr_eq(it, running));
        if is_current {
            self.next.fetch_max(index + 1, Ordering::Relaxed);
        }
        is_current
    }

    /// Returns the number of batches of the worker in an epoch and in all epochs.
    fn counts(&self) -> (u32, u32) {
        let file = self.schedule.get().file();
        let per_epoch = file.n_batches(self.config.worker);
        (per_epoch, per_epoch.saturating_mul(file.spec().epochs))
    }

    /// Fails for the state of an iteration over rows of another version.
    fn check_version(&self, found: VersionTag) -> Result<(), Error> {
        if self.pinned.version.may_be(found) {
            return Ok(());
        }
        let (expected, found) = (self.version_id(), version_text(found));
        Err(Error::Version(format!(
            "state: it is of version {found} of the rows, this iteration of {expected}; iterate over \
             graph.at(\"{found}\"), or pass other_version=True"
        )))
    }

    fn start(&self, py: Python<'_>, first: u32) -> Result<ScheduledBatches, Error> {
        // Fails where the graph was closed.
        self.graph.get().opened(py)?;
        let schedule = self.schedule.get();
        let config = IterationConfig { first, ..self.config.clone() };
        let names: Vec<String> = self.tensors.iter().map(|info| info.name.clone()).collect();
        let file = schedule.file().clone();
        let path = schedule.file_path();
        Ok(ScheduledBatches::start(&self.pinned.source, file, path, &names, &config)?)
    }
}

/// Waits for the next batch while checking for signals; returns it and whether it was ready.
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
        let (per_epoch, all) = self.counts();
        let start = Instant::now();
        let (batch, is_ready) = loop {
            if self.position() >= all {
                let mut state = self.state();
                let ended = state.running.take();
                if let Some(running) = &ended {
                    state.ended = running.stats();
                }
                return Ok(None);
            }
            let running = self.running(py)?;
            match next_of(py, &running) {
                // Else `load_state_dict` was called meanwhile.
                Ok((Some(batch), is_ready)) if self.advance(&running, batch.index) => {
                    break (batch, is_ready);
                }
                Ok((Some(_), _)) => {}
                Ok((None, _)) if self.end(&running) => return Err(Error::Panicked.into()),
                Ok((None, _)) => {}
                // After an interrupt the next call waits for the same batch; after other errors the
                // iteration is started again.
                Err(Error::Python(error)) => return Err(error),
                Err(error) if self.end(&running) => return Err(error.into()),
                Err(_) => {}
            }
        };
        let waited = start.elapsed();
        let wait_seconds = waited.as_secs_f64();
        let met = match batch.prepared.met {
            BatchReadiness::DefaultPath => "default_path",
            _ if is_ready => "ready",
            _ => "waited",
        };
        let count = if is_ready { &self.waits.ready } else { &self.waits.waited };
        count.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.waits.micros.fetch_add(micros, Ordering::Relaxed);
        let epoch = batch.index / per_epoch;
        let index = batch.index % per_epoch;
        let tensors = self.tensors.clone();
        Ok(Some(Batch { batch, tensors, epoch, index, met, wait_seconds }))
    }

    /// Returns the number of remaining batches (int).
    fn __len__(&self) -> usize {
        self.counts().1.saturating_sub(self.position()) as usize
    }

    /// Returns the number of the version of all rows (int).
    #[getter]
    fn version(&self) -> u32 {
        self.pinned.version.number
    }

    /// Returns the version with its commit (str), as `Graph.version_id` does.
    #[getter]
    fn version_id(&self) -> String {
        version_text(self.pinned.version)
    }

    /// Returns the position and the version for `load_state_dict`: a dict of numbers and strings.
    fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let next = self.position();
        let per_epoch = self.counts().0;
        let dict = PyDict::new(py);
        dict.set_item("epoch", next / per_epoch)?;
        dict.set_item("batch", next % per_epoch)?;
        dict.set_item("worker", self.config.worker)?;
        dict.set_item("schedule", self.schedule.get().file().digest_hex())?;
        dict.set_item("version", self.version_id())?;
        Ok(dict)
    }

    /// Resumes at the position `state`.
    ///
    /// other_version: also where `state` is of another version of the rows than this iteration.
    ///
    /// Raises ValueError for another schedule or worker, VersionError for another version.
    #[pyo3(signature = (state, *, other_version=false))]
    fn load_state_dict(&self, state: &Bound<'_, PyDict>, other_version: bool) -> PyResult<()> {
        let get = |key: &str| -> PyResult<Bound<'_, PyAny>> {
            state.get_item(key)?.ok_or_else(|| PyValueError::new_err(format!("state: no `{key}`")))
        };
        let digest = self.schedule.get().file().digest_hex();
        let found = get("schedule")?.extract::<String>()?;
        if digest != found {
            let words = format!("state: expected that of the schedule {digest}, found {found}");
            return Err(PyValueError::new_err(words));
        }
        let worker = self.config.worker;
        let found = get("worker")?.extract::<u32>()?;
        if worker != found {
            let words = format!("state: expected that of worker {worker}, found worker {found}");
            return Err(PyValueError::new_err(words));
        }
        // States of older releases have none.
        if let Some(version) = state.get_item("version")?.filter(|_| !other_version) {
            self.check_version(wanted_version(&version)?)?;
        }
        let epoch: u32 = get("epoch")?.extract()?;
        let batch: u32 = get("batch")?.extract()?;
        let (per_epoch, all) = self.counts();
        let next = epoch.checked_mul(per_epoch).and_then(|first| first.checked_add(batch));
        let next = next.filter(|&next| batch < per_epoch && next <= all).ok_or_else(|| {
            PyValueError::new_err(format!("state: no batch {batch} in epoch {epoch}"))
        })?;
        let mut state = self.state();
        self.next.store(next, Ordering::Relaxed);
        let before = state.running.take();
        drop((state, before));
        Ok(())
    }

    /// Returns counters (dict of str to number).
    ///
    /// - ready, waited: batches that were ready when they were requested, and those that were not.
    /// - wait_seconds: time spent waiting for batches.
    /// - read_rows, read_bytes: rows of the first tensor that were read.
    /// - hit_rows: rows found in memory.
    /// - filled_rows: rows that were read to be kept, apart from batches.
    /// - memory_rows: most rows that are kept.
    /// - window_bytes: peak size of the prepared batches.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.state();
        let counters = state.running.as_ref().map_or(state.ended, |running| running.stats());
        drop(state);
        let dict = PyDict::new(py);
        let waits = &self.waits;
        dict.set_item("ready", waits.ready.load(Ordering::Relaxed))?;
        dict.set_item("waited", waits.waited.load(Ordering::Relaxed))?;
        dict.set_item("wait_seconds", waits.micros.load(Ordering::Relaxed) as f64 / 1e6)?;
        dict.set_item("read_rows", counters.load.remote_rows)?;
        dict.set_item("read_bytes", counters.load.remote_bytes)?;
        dict.set_item("hit_rows", counters.load.hit_rows)?;
        dict.set_item("filled_rows", counters.filled_rows)?;
        dict.set_item("memory_rows", counters.capacity_rows)?;
        dict.set_item("window_bytes", counters.window.peak_bytes)?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let next = self.position();
        let (per_epoch, all) = self.counts();
        let worker = self.config.worker;
        let epoch = next / per_epoch;
        let batch = next % per_epoch;
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
    /// Returns the rows of a tensor by its position.
    fn bytes(&self, position: usize) -> &[u8] {
        match position.checked_sub(1) {
            None => self.batch.prepared.rows.bytes(),
            Some(other) => self.batch.others.get(other).map_or(&[], RowBuffer::bytes),
        }
    }
}

#[pymethods]
impl Batch {
    /// Returns the number of the epoch, from 0 (int).
    #[getter]
    fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the number of the batch in its epoch, from 0 (int).
    #[getter]
    fn index(&self) -> u32 {
        self.index
    }

    /// Returns the input nodes, roots first: int64 of shape (n,).
    #[getter]
    fn nodes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        let nodes = &self.batch.prepared.batch.nodes;
        PyArray1::from_vec(py, nodes.iter().map(|node| node.0.into()).collect())
    }

    /// Returns the number of roots, the first of `nodes` (int).
    #[getter]
    fn n_roots(&self) -> usize {
        self.batch.prepared.batch.n_roots
    }

    /// Returns one block for each layer, the input layer first: a list of (indptr, indices).
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

    /// Returns "ready", "waited", or "default_path" for a batch that was not prepared ahead (str).
    #[getter]
    fn met(&self) -> &'static str {
        self.met
    }

    /// Returns the seconds spent waiting for the batch (float).
    #[getter]
    fn wait_seconds(&self) -> f64 {
        self.wait_seconds
    }

    /// Returns the rows of `tensor` for `nodes`: (n, width), or (n,) for width 1. Raises KeyError.
    fn __getitem__<'py>(&self, py: Python<'py>, tensor: &str) -> PyResult<Bound<'py, PyAny>> {
        self.rows(py, tensor, None)
    }

    /// Returns the rows of `tensor`, in `out` if given: an array of exactly their shape and dtype.
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
        let layout = RowLayout::new(info, self.batch.prepared.batch.nodes.len());
        let rows = match out {
            Some(out) => RowArray::from_out(out, layout)?,
            None => RowArray::new(py, layout)?,
        };
        rows.write(|out| {
            py.detach(|| out.copy_from_slice(self.bytes(at)));
            Ok(())
        })?;
        Ok(rows.finish())
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> = self.tensors.iter().map(|info| &*info.name).collect();
        let epoch = self.epoch;
        let index = self.index;
        let nodes = self.batch.prepared.batch.nodes.len();
        format!("Batch(epoch {epoch}, index {index}, {nodes} nodes: {})", names.join(", "))
    }
}
