//! The classes `Volatile` and `Publisher`: rows in memory alone, with stamps.

use std::ops::Range;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytemuck::Pod;
use lodestore_client::ClientError;
use lodestore_client::error::FailureCode;
use lodestore_client::source::TensorInfo;
use lodestore_client::volatile::{
    EmbeddedVolatile, NO_STAMP, Stamp, StampWanted, VolatileInfo, VolatilePublisher,
    VolatilePulled, VolatileSource,
};
use lodestore_graph::NodeId;
use lodestore_graph::fork::Generation;
use lodestore_graph::lock::IgnorePoison;
use numpy::PyArray1;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arrays::{RowArray, RowLayout, named, read_rows, with_element};
use crate::error::Error;
use crate::gather::deliver;
use crate::ids::node_ids;
use crate::open_graph::{Backend, OpenGraph};
use crate::queue::default_memory_bytes;
use crate::signals::{self, PAUSE};

/// Longest wait of one request to servers.
const REMOTE_WAIT: Duration = Duration::from_secs(1);

/// Volatile tensors: rows in memory alone, each with a stamp, such as historical embeddings.
///
/// Rows of a publisher are seen by all threads of the process, or by all clients of the servers.
/// Not for a forked child, which makes its own.
#[pyclass(frozen, module = "lodestore")]
pub(crate) struct Volatile {
    source: Arc<dyn VolatileSource>,
    n_nodes: u32,
    is_remote: bool,
    process: Generation,
}

impl Volatile {
    /// Returns the volatile tensors of the servers, or new ones in the memory of this process.
    pub(crate) fn new(opened: &OpenGraph, memory: Option<u64>) -> PyResult<Self> {
        let (source, is_remote): (Arc<dyn VolatileSource>, bool) = match opened.backend() {
            Backend::Servers(_) if memory.is_some() => {
                let words = "memory: servers have their own, which `lode serve --memory` bounds";
                return Err(PyValueError::new_err(words));
            }
            Backend::Servers(servers) => (Arc::clone(&servers.client) as _, true),
            Backend::Files(_) => {
                let memory = memory.unwrap_or_else(default_memory_bytes);
                (Arc::new(EmbeddedVolatile::new(opened.source().book(), memory)) as _, false)
            }
        };
        let n_nodes = opened.n_nodes();
        Ok(Self { source, n_nodes, is_remote, process: Generation::now() })
    }

    /// Calls the source without the interpreter's lock; a call of servers can be interrupted.
    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&dyn VolatileSource) -> Result<T, ClientError> + Send + 'static,
    ) -> Result<T, Error> {
        check_process(self.process)?;
        let source = Arc::clone(&self.source);
        let call = move || work(&*source).map_err(failed);
        if self.is_remote { signals::run(py, call) } else { py.detach(call) }
    }

    /// Returns the name and shape of a volatile tensor.
    fn info(&self, py: Python<'_>, name: String) -> Result<TensorInfo, Error> {
        Ok(self.call(py, move |source| source.volatile(&name))?.tensor)
    }

    /// Pulls rows into a new vector.
    fn pull_rows<T: Pod + Send>(
        &self,
        py: Python<'_>,
        info: &TensorInfo,
        ids: &Arc<[NodeId]>,
        wanted: StampWanted,
    ) -> Result<(Vec<T>, VolatilePulled), Error> {
        let name = info.name.clone();
        let ids = Arc::clone(ids);
        let n_elements = ids.len().saturating_mul(info.width as usize);
        self.call(py, move |source| {
            let mut rows: Vec<T> = bytemuck::allocation::zeroed_vec(n_elements);
            let bytes = bytemuck::cast_slice_mut(&mut rows);
            let pulled = source.pull_volatile(&name, &ids, wanted, bytes)?;
            Ok((rows, pulled))
        })
    }

    /// Pulls until all rows have the stamp or `wait` is over, and checks for signals meanwhile.
    fn pull_awaited<T: Pod + Send>(
        &self,
        py: Python<'_>,
        info: &TensorInfo,
        ids: &Arc<[NodeId]>,
        wanted: StampWanted,
    ) -> Result<(Vec<T>, VolatilePulled), Error> {
        let start = Instant::now();
        let most = if self.is_remote { REMOTE_WAIT } else { PAUSE };
        loop {
            let left = wanted.wait.saturating_sub(start.elapsed());
            let wait = left.min(most);
            let found = self.pull_rows(py, info, ids, StampWanted { wait, ..wanted })?;
            if found.1.is_whole() || left <= most {
                return Ok(found);
            }
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl Volatile {
    /// Declares a volatile tensor over all nodes; an equal declaration changes nothing.
    ///
    /// range_rows: rows that are claimed together, from the start of each partition; 0: the whole
    /// partition. Raises VolatileError for another tensor of the name, DtypeError.
    #[pyo3(signature = (name, dtype, width=1, *, range_rows=0))]
    fn declare(
        &self,
        py: Python<'_>,
        name: String,
        dtype: &Bound<'_, PyAny>,
        width: u32,
        range_rows: u32,
    ) -> PyResult<()> {
        let tensor = TensorInfo { name, dtype: named(dtype)?, width };
        let info = VolatileInfo { tensor, range_rows };
        Ok(self.call(py, move |source| source.declare(&info))?)
    }

    /// Pulls the rows of `ids` with the stamp `min_stamp` or a later one: (rows, stamps).
    ///
    /// - rows: (n, width), or (n,) for width 1; zeros for a row without such a stamp.
    /// - stamps: int64 of shape (n,), -1 for these.
    /// - wait: seconds to wait for rows (float), 0 by default; None: until all have arrived.
    /// - out: an array of exactly the shape and dtype of the rows, which is filled and returned.
    ///
    /// Raises IdError, UnknownTensorError, ShapeError, DtypeError.
    #[pyo3(signature = (tensor, ids, min_stamp=0, *, wait=Some(0.0), out=None))]
    fn pull<'py>(
        &self,
        py: Python<'py>,
        tensor: String,
        ids: &Bound<'py, PyAny>,
        min_stamp: Stamp,
        wait: Option<f64>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let ids: Arc<[NodeId]> = node_ids(ids, self.n_nodes)?.into();
        let info = self.info(py, tensor)?;
        let layout = RowLayout::new(&info, ids.len());
        let out = out.map(|out| RowArray::from_out(out, layout)).transpose()?;
        let wait = wait.map_or(Ok(Duration::MAX), seconds)?;
        let wanted = StampWanted { min_stamp, wait };
        with_element!(layout.dtype, T => {
            let (rows, pulled) = self.pull_awaited::<T>(py, &info, &ids, wanted)?;
            let rows = deliver(py, rows, out, layout)?;
            (rows, stamp_array(py, &pulled.stamps)).into_pyobject(py)
        })
    }

    /// Returns a Publisher without claims, for `with`.
    fn publisher(slf: &Bound<'_, Self>) -> PyResult<Publisher> {
        Publisher::start(slf)
    }

    fn __repr__(&self) -> String {
        let place = if self.is_remote { "of servers" } else { "of this process" };
        format!("Volatile({place}, {} nodes)", self.n_nodes)
    }
}

/// Publishes volatile rows that it has claimed; its claims end with `close` or the `with` block.
#[pyclass(frozen, module = "lodestore")]
pub(crate) struct Publisher {
    volatile: Py<Volatile>,
    thread: Mutex<Option<PublisherThread>>,
    process: Generation,
}

type Command = Box<dyn FnOnce(&mut dyn VolatilePublisher) + Send>;

/// The thread that owns the publisher, which borrows from the source.
struct PublisherThread {
    commands: Sender<Command>,
    handle: JoinHandle<()>,
}

impl Publisher {
    fn start(volatile: &Bound<'_, Volatile>) -> PyResult<Self> {
        check_process(volatile.get().process)?;
        let (commands, receiver) = channel::<Command>();
        let source = Arc::clone(&volatile.get().source);
        let thread = thread::Builder::new().name("publisher".to_owned()).spawn(move || {
            let mut publisher = source.publisher();
            receiver.into_iter().for_each(|command| command(&mut *publisher));
        });
        let handle = thread
            .map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
        let thread = Mutex::new(Some(PublisherThread { commands, handle }));
        let volatile = volatile.clone().unbind();
        Ok(Self { volatile, thread, process: Generation::now() })
    }

    fn thread(&self) -> Result<MutexGuard<'_, Option<PublisherThread>>, Error> {
        check_process(self.process)?;
        Ok(self.thread.lock().ignore_poison())
    }

    /// Has the thread call its publisher, and waits for the result while checking for signals.
    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut dyn VolatilePublisher) -> Result<T, ClientError> + Send + 'static,
    ) -> Result<T, Error> {
        let (done, result) = sync_channel(1);
        let command: Command = Box::new(move |publisher| {
            // Fails when the caller was interrupted.
            let _ = done.send(work(publisher).map_err(failed));
        });
        let thread = self.thread()?;
        let commands = &thread.as_ref().ok_or(Error::PublisherClosed)?.commands;
        commands.send(command).map_err(|_| Error::Panicked)?;
        drop(thread);
        signals::wait(py, result)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // Dropping the channel in a forked child could wait for a lock that the thread holds.
        if !self.process.is_current() {
            let thread = self.thread.get_mut().ignore_poison();
            std::mem::forget(thread.take());
        }
    }
}

#[pymethods]
impl Publisher {
    /// Claims the rows of `ranges`, and forgets what they hold; returns their number (int).
    ///
    /// ranges: `range`s of node ids, such as `graph.parts`. Raises VolatileError where another
    /// publisher has one of them, and for a part of rows that are claimed together.
    #[expect(clippy::needless_pass_by_value, reason = "Python's lists come by value")]
    fn claim(
        &self,
        py: Python<'_>,
        tensor: String,
        ranges: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let ranges = ranges.iter().map(range_of).collect::<PyResult<Vec<_>>>()?;
        Ok(self.call(py, move |publisher| publisher.claim(&tensor, &ranges))?)
    }

    /// Publishes `rows` as those of `ids` under `stamp`; every pull sees them when it returns.
    ///
    /// rows: (n, width), or (n,) for width 1, of the tensor's dtype. The last row of a repeated id
    /// is kept. After an error or an interrupt some rows may have been published.
    ///
    /// Raises IdError, ShapeError, DtypeError; VolatileError for rows that are not claimed, or have
    /// a later stamp.
    fn publish(
        &self,
        py: Python<'_>,
        tensor: String,
        ids: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
        stamp: Stamp,
    ) -> PyResult<()> {
        let volatile = self.volatile.get();
        let ids = node_ids(ids, volatile.n_nodes)?;
        let info = volatile.info(py, tensor.clone())?;
        let layout = RowLayout::new(&info, ids.len());
        let rows = read_rows(rows, layout, |rows| Ok(rows.to_vec()))?;
        Ok(self.call(py, move |publisher| publisher.publish(&tensor, &ids, &rows, stamp))?)
    }

    /// Ends the claims; the rows stay until the next claim.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let thread = self.thread()?.take();
        if let Some(PublisherThread { commands, handle }) = thread {
            drop(commands);
            py.detach(|| handle.join()).map_err(|_| Error::Panicked)?;
        }
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}

/// Converts an error. Ids are checked before, so that only a tensor can be unknown to servers.
fn failed(error: ClientError) -> Error {
    let ClientError::Refused { failure, .. } = &error else { return error.into() };
    match failure.code {
        FailureCode::Invalid => Error::BadVolatile(error.to_string()),
        FailureCode::NotFound => Error::NoVolatile(error.to_string()),
        _ => error.into(),
    }
}

fn check_process(process: Generation) -> Result<(), Error> {
    if process.is_current() {
        return Ok(());
    }
    Err(ClientError::Forked { what: "set of volatile tensors" }.into())
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    let bad = |_| PyValueError::new_err(format!("wait must be seconds from 0 on, found {seconds}"));
    Duration::try_from_secs_f64(seconds).map_err(bad)
}

/// Reads a `range` of Python.
fn range_of(range: &Bound<'_, PyAny>) -> PyResult<Range<u32>> {
    let get = |name: &str| range.getattr(name)?.extract::<u32>();
    match (get("start")?, get("stop")?, get("step")?) {
        (start, stop, 1) => Ok(start..stop),
        _ => Err(PyValueError::new_err("a range of nodes must have the step 1")),
    }
}

fn stamp_array<'py>(py: Python<'py>, stamps: &[Stamp]) -> Bound<'py, PyArray1<i64>> {
    let number = |&stamp: &Stamp| if stamp == NO_STAMP { -1 } else { i64::from(stamp) };
    PyArray1::from_vec(py, stamps.iter().map(number).collect())
}
