//! Long calls that Ctrl-C ends: they release the interpreter's lock, and check for signals 20 times
//! a second.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use lodestore_graph::lock::IgnorePoison;
use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyResult, Python};

use crate::error::Error;

/// Time between two checks for signals.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// Runs `work` on a thread of its own, without the interpreter's lock.
///
/// An exception of a signal's handler is returned immediately; `work` then runs to its end, and
/// its result is dropped.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (done, result) = sync_channel(1);
    let named = thread::Builder::new().name("lodestore".to_owned());
    let thread = named.spawn(move || {
        // Fails when the caller was interrupted.
        let _ = done.send(work());
    });
    thread.map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
    wait(py, result)
}

/// Waits for the result of another thread while checking for signals.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    result: Receiver<Result<T, Error>>,
) -> Result<T, Error> {
    // `detach` requires `Sync`.
    let result = Mutex::new(result);
    loop {
        let wait = || result.lock().ignore_poison().recv_timeout(PAUSE);
        match py.detach(wait) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Panicked),
        }
    }
}

/// Checks for signals between the pieces of a long call that has released the interpreter's lock.
pub(crate) struct SignalWatch {
    last: Instant,
}

impl SignalWatch {
    /// Starts with a pause before the first check.
    pub(crate) fn new() -> Self {
        Self { last: Instant::now() }
    }

    /// Fails with the exception of a signal's handler; checks at most once in [`PAUSE`].
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        if self.last.elapsed() >= PAUSE {
            self.last = Instant::now();
            check_signals()?;
        }
        Ok(())
    }
}

/// Fails with the exception that a signal's handler has raised.
#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "a method is not general enough here"
)]
fn check_signals() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}
