//! Threads that live as long as their server. A stop wakes a thread that waits in `poll`. A thread
//! that ends while the server runs is reported, because its work is no longer done.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lodestore_graph::lock::IgnorePoison;
use rustix::event::{EventfdFlags, eventfd};
use tracing::warn;

use crate::error::ServerError;
use crate::log_limit::LogLimiter;

/// Pause of [`back_off`].
const BACKOFF: Duration = Duration::from_millis(50);

/// Reports the first thread that ends before its server.
#[derive(Clone, Default)]
pub struct ThreadSupervisor(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    /// The first thread that ended early.
    dead: Option<String>,
    /// The server is stopping, so threads may end.
    is_stopping: bool,
}

/// Held by a thread for its whole life.
pub(crate) struct ThreadGuard {
    name: String,
    supervisor: ThreadSupervisor,
}

thread_local! {
    /// Dropped when the thread ends, for any reason.
    static THREAD_GUARD: RefCell<Option<ThreadGuard>> = const { RefCell::new(None) };
}

impl ThreadSupervisor {
    /// Waits until a thread has ended early, and returns its name; `None` if the server is stopped
    /// first.
    #[must_use]
    pub fn wait(&self) -> Option<String> {
        let lives = |state: &mut State| state.dead.is_none() && !state.is_stopping;
        let waited = self.0.1.wait_while(self.lock(), lives);
        waited.ignore_poison().dead.clone()
    }

    /// Returns the first thread that ended early.
    pub(crate) fn first(&self) -> Option<String> {
        self.lock().dead.clone()
    }

    /// Marks the server as stopping: threads may end from now on.
    pub(crate) fn expect(&self) {
        self.lock().is_stopping = true;
        self.0.1.notify_all();
    }

    /// Returns a guard for a thread of this name.
    pub(crate) fn thread_guard(&self, name: impl Into<String>) -> ThreadGuard {
        ThreadGuard { name: name.into(), supervisor: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().ignore_poison()
    }
}

impl ThreadGuard {
    /// Keeps the guard in this thread until it ends.
    pub(crate) fn hold(self) {
        THREAD_GUARD.set(Some(self));
    }
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        let mut state = self.supervisor.lock();
        if state.is_stopping || state.dead.is_some() {
            return;
        }
        // Does not log: this runs while the thread's locals are destroyed, and the log's buffer is
        // one of them.
        state.dead = Some(std::mem::take(&mut self.name));
        self.supervisor.0.1.notify_all();
    }
}

/// A thread that waits in `poll`, and that ends when this is dropped.
pub(crate) struct PollThread {
    name: &'static str,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl PollThread {
    /// Starts a thread. `run` must return when its descriptor becomes readable.
    pub(crate) fn start(
        name: &'static str,
        run: impl FnOnce(&OwnedFd) + Send + 'static,
    ) -> Result<Self, ServerError> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|error| ServerError::Thread(error.into()))?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(&stopped));
        Ok(Self { name, stop, thread: Some(thread.map_err(ServerError::Thread)?) })
    }
}

impl Drop for PollThread {
    /// Ends the thread and joins it.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).is_err() || thread.join().is_err() {
            warn!(thread = self.name, "thread did not stop, or panicked");
        }
    }
}

/// Pauses after a `poll` or an accept that failed for lack of descriptors or memory. Returns
/// whether the thread shall end.
pub(crate) fn back_off(
    stop: &OwnedFd,
    log_limit: &LogLimiter,
    fault: &str,
    error: &io::Error,
) -> bool {
    if let Some(untold) = log_limit.allow(Instant::now()) {
        warn!(%error, untold, "{fault}");
    }
    std::thread::sleep(BACKOFF);
    rustix::io::read(stop, &mut [0; 8]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_is_reported_and_one_that_is_stopped_is_not() {
        let supervisor = ThreadSupervisor::default();
        let run = |name: &str, panics: bool| {
            let guard = supervisor.thread_guard(name);
            let thread = std::thread::spawn(move || {
                guard.hold();
                assert!(!panics, "on purpose");
            });
            thread.join().is_err()
        };
        assert!(run("first", true));
        assert_eq!(supervisor.wait().as_deref(), Some("first"));
        assert!(!run("second", false));
        assert_eq!(
            supervisor.first().as_deref(),
            Some("first"),
            "later ends follow from the first"
        );
        let supervisor = ThreadSupervisor::default();
        let guard = supervisor.thread_guard("third");
        supervisor.expect();
        drop(guard);
        assert_eq!(supervisor.wait(), None);
    }
}
