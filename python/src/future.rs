//! The class `Future`: rows that were asked for and come in the background.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lodestore_client::{GatheredRows, TensorInfo, Ticket};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::arrays::{RowArray, RowShape, with_element};
use crate::error::Error;
use crate::signals::PAUSE;

/// Rows that come in the background: `result()`, or `await future`.
///
/// Not for a forked child, whose parent has asked for them.
#[pyclass(frozen, module = "lodestore", weakref)]
pub(crate) struct Future {
    ticket: Ticket,
    info: TensorInfo,
    n_rows: usize,
    state: Mutex<State>,
}

enum State {
    /// They have not been taken; the caller's array, if there is one.
    Coming(Option<Py<PyAny>>),
    /// What `result` returns.
    There(Py<PyAny>),
    /// What `result` raises.
    Failed(PyErr),
}

impl Future {
    /// Creates one for rows of `info`, which go to `out` where there is one.
    pub(crate) fn new(
        ticket: Ticket,
        info: TensorInfo,
        n_rows: usize,
        out: Option<Py<PyAny>>,
    ) -> Self {
        Self { ticket, info, n_rows, state: Mutex::new(State::Coming(out)) }
    }

    /// Waits, and looks for signals meanwhile; returns whether the rows have come.
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

    /// Returns the rows that have come as an array of their own, or in the caller's.
    fn deliver<'py>(
        &self,
        py: Python<'py>,
        rows: GatheredRows,
        out: Option<&Py<PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Error> {
        let (dtype, shape) = (self.info.dtype, RowShape::of(&self.info, self.n_rows));
        if let Some(out) = out {
            let out = RowArray::of_out(out.bind(py), dtype, shape)?;
            out.write(|bytes| {
                bytes.copy_from_slice(rows.bytes());
                Ok(())
            })?;
            return Ok(out.finish());
        }
        let (words, n_bytes) = rows.into_words();
        with_element!(dtype, T => RowArray::of_words::<T>(py, words, n_bytes, (dtype, shape)))
            .map(RowArray::finish)
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
            return Err(PyTimeoutError::new_err("the rows have not come yet"));
        }
        let state = self.state.lock_py_attached(py);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if let State::Coming(out) = &*state {
            let rows = self.ticket.take().unwrap_or(Ok(GatheredRows::default()));
            let delivered = rows.map_err(Error::from);
            let delivered = delivered.and_then(|rows| self.deliver(py, rows, out.as_ref()));
            *state = match delivered {
                Ok(rows) => State::There(rows.unbind()),
                Err(error) => State::Failed(error.into()),
            };
        }
        match &*state {
            State::There(rows) => Ok(rows.clone_ref(py)),
            State::Failed(error) => Err(error.clone_ref(py)),
            State::Coming(_) => Err(Error::Panicked.into()),
        }
    }

    /// Waits for the rows; returns whether they have come, or why not (bool).
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.wait_for(py, timeout)
    }

    /// Returns whether the rows have come, or why not (bool).
    fn done(&self) -> bool {
        self.ticket.is_done()
    }

    /// Calls `call` without arguments once the rows have come, on a thread of lodestore, or now.
    fn add_done_callback(&self, py: Python<'_>, call: Py<PyAny>) {
        let call = Box::new(move || {
            // The interpreter may be gone by then.
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
        let state = if self.ticket.is_done() { "done" } else { "under way" };
        format!("Future({} rows of {}, {state})", self.n_rows, self.info.name)
    }
}
