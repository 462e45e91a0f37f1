//! The class `Future`: the result of a gather in the background.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use lodestore_client::gather_queue::{GatheredRows, Ticket};
use lodestore_graph::lock::IgnorePoison;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::arrays::{RowArray, RowLayout, with_element};
use crate::error::Error;
use crate::signals::PAUSE;

/// The result of a gather in the background: `result()`, or `await future`.
///
/// In a forked child the futures of its parent raise LockedError.
#[pyclass(frozen, module = "lodestore", weakref)]
pub(crate) struct Future {
    ticket: Ticket,
    tensor: String,
    layout: RowLayout,
    state: Mutex<State>,
}

enum State {
    /// The rows were not taken yet; the caller's array, if there is one.
    Pending(Option<Py<PyAny>>),
    /// The array that `result` returns.
    Ready(Py<PyAny>),
    /// The exception that `result` raises.
    Failed(PyErr),
}

impl Future {
    /// Creates a future of a submitted gather; `out` is the caller's array.
    pub(crate) fn new(
        ticket: Ticket,
        tensor: String,
        layout: RowLayout,
        out: Option<Py<PyAny>>,
    ) -> Self {
        Self { ticket, tensor, layout, state: Mutex::new(State::Pending(out)) }
    }

    /// Waits while checking for signals; returns whether the gather is complete.
    fn wait_for(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let end = match timeout {
            None => None,
            Some(seconds) => {
                let time = Duration::try_from_secs_f64(seconds.max(0.0));
                let bad = |_| PyValueError::new_err(format!("timeout: {seconds} is no time"));
                Instant::now().checked_add(time.map_err(bad)?)
            }
        };
        loop {
            let left = end.map_or(PAUSE, |end| end.saturating_duration_since(Instant::now()));
            if py.detach(|| self.ticket.wait(left.min(PAUSE))).map_err(Error::from)? {
                return Ok(true);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }

    /// Returns the rows as a new array, or in the caller's.
    fn deliver<'py>(
        &self,
        py: Python<'py>,
        rows: GatheredRows,
        out: Option<&Py<PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Error> {
        if let Some(out) = out {
            return RowArray::from_out(out.bind(py), self.layout)?.filled(rows.bytes());
        }
        let array = with_element!(self.layout.dtype, T => {
            RowArray::from_gathered::<T>(py, rows, self.layout)
        });
        array.map(RowArray::finish)
    }
}

#[pymethods]
impl Future {
    /// Returns the rows: (n, width), or (n,) for width 1; the same array each time.
    ///
    /// timeout: seconds to wait (float); None: as long as it takes. Raises TimeoutError after it.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        if !self.wait_for(py, timeout)? {
            return Err(not_arrived());
        }
        let state = self.state.lock_py_attached(py);
        let mut state = state.ignore_poison();
        if let State::Pending(out) = &*state {
            let rows = self.ticket.take().unwrap_or(Ok(GatheredRows::default()));
            let delivered = rows.map_err(Error::from);
            let delivered = delivered.and_then(|rows| self.deliver(py, rows, out.as_ref()));
            *state = match delivered {
                Ok(rows) => State::Ready(rows.unbind()),
                Err(error) => State::Failed(error.into()),
            };
        }
        match &*state {
            State::Ready(rows) => Ok(rows.clone_ref(py)),
            State::Failed(error) => Err(error.clone_ref(py)),
            State::Pending(_) => Err(Error::Panicked.into()),
        }
    }

    /// Returns the exception that `result` raises, or None.
    ///
    /// timeout: as for `result`.
    #[pyo3(signature = (timeout=None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<PyErr>> {
        if !self.wait_for(py, timeout)? {
            return Err(not_arrived());
        }
        Ok(self.result(py, None).err())
    }

    /// Returns a concurrent.futures.Future of the same rows.
    ///
    /// Functions of that module take it, and `asyncio.wrap_future`. A cancelled one leaves this
    /// future as it is.
    fn concurrent<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("lodestore._futures")?.call_method1("concurrent_future", (slf,))
    }

    /// Waits for the gather; returns whether it is complete, successfully or not (bool).
    ///
    /// timeout: as for `result`.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.wait_for(py, timeout)
    }

    /// Returns whether the gather is complete, successfully or not (bool).
    fn done(&self) -> bool {
        self.ticket.is_done()
    }

    /// Calls `call` without arguments when the gather completes, on a thread of lodestore, or now.
    fn add_done_callback(&self, py: Python<'_>, call: Py<PyAny>) {
        let call = Box::new(move || {
            // The interpreter may have ended by then.
            Python::try_attach(|py| {
                if let Err(error) = call.call0(py) {
                    error.write_unraisable(py, None);
                }
            });
        });
        py.detach(|| self.ticket.when_done(call));
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let module = slf.py().import("lodestore._futures")?;
        module.call_method1("wait_for", (slf,))?.call_method0("__await__")
    }

    fn __repr__(&self) -> String {
        let state = if self.ticket.is_done() { "done" } else { "in flight" };
        format!("Future({} rows of {}, {state})", self.layout.n_rows, self.tensor)
    }
}

fn not_arrived() -> PyErr {
    PyTimeoutError::new_err("the rows have not arrived yet")
}
