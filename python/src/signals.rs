//! Long calls that Ctrl-C ends: without the interpreter's lock, looking for signals ten times a
//! second.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyResult, Python};

use crate::error::Error;

/// Time between two looks for signals.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// Runs `work` on a thread of its own, without the interpreter's lock.
///
/// After a signal whose handler raises, the exception is returned at once; `work` goes on to its
/// end, and what it returns is dropped.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (done, result) = sync_channel(1);
    // Waiting without the interpreter's lock takes what threads can share.
    let result = Mutex::new(result);
    let named = thread::Builder::new().name("lodestore".to_owned());
    let thread = named.spawn(move || {
        // The caller may be gone.
        let _ = done.send(work());
    });
    thread.map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
    loop {
        let wait = || result.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(PAUSE);
        match py.detach(wait) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Panicked),
        }
    }
}

/// Looks for signals between the pieces of a long call that runs without the interpreter's lock.
pub(crate) struct Watch {
    last: Instant,
}

impl Watch {
    /// Creates one that has just looked.
    pub(crate) fn new() -> Self {
        Self { last: Instant::now() }
    }

    /// Returns the exception of a handler, if the last look is long ago and a signal came since.
    pub(crate) fn look(&mut self) -> Result<(), Error> {
        if self.last.elapsed() >= PAUSE {
            self.last = Instant::now();
            check_signals()?;
        }
        Ok(())
    }
}

/// Fails where a signal's handler has raised an exception.
#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "a method is not general enough here"
)]
fn check_signals() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}
