//! Threads of a server that end with it: one that waits in `poll` is woken for that. One that ends
//! although the server continues is noticed, since its work is no longer done.

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

/// See [`back_off`].
const BACKOFF: Duration = Duration::from_millis(50);

/// Threads that must live as long as their server, seen from outside.
#[derive(Clone, Default)]
pub struct ThreadSupervisor(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    /// The first that has ended.
    dead: Option<String>,
    /// The server stops, so that all of them end.
    is_stopping: bool,
}

/// Held by a thread for as long as it lives.
pub(crate) struct ThreadGuard {
    name: String,
    supervisor: ThreadSupervisor,
}

thread_local! {
    /// Dropped when the thread ends, in whatever way.
    static THREAD_GUARD: RefCell<Option<ThreadGuard>> = const { RefCell::new(None) };
}

impl ThreadSupervisor {
    /// Waits until a thread has ended that must not, and returns its name; `None` if the server is
    /// stopped first.
    #[must_use]
    pub fn wait(&self) -> Option<String> {
        let lives = |state: &mut State| state.dead.is_none() && !state.is_stopping;
        let waited = self.0.1.wait_while(self.lock(), lives);
        waited.ignore_poison().dead.clone()
    }

    /// Returns the thread that has ended although it must not.
    pub(crate) fn first(&self) -> Option<String> {
        self.lock().dead.clone()
    }

    /// Expects threads to end from now on.
    pub(crate) fn expect(&self) {
        self.lock().is_stopping = true;
        self.0.1.notify_all();
    }

    /// Ties a thread of this name to the server.
    pub(crate) fn thread_guard(&self, name: impl Into<String>) -> ThreadGuard {
        ThreadGuard { name: name.into(), supervisor: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().ignore_poison()
    }
}

impl ThreadGuard {
    /// Holds the guard in this thread until it ends.
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
        // No log: this runs as the thread's locals are destroyed, and the log's buffer is one of
        // them.
        state.dead = Some(std::mem::take(&mut self.name));
        self.supervisor.0.1.notify_all();
    }
}

/// A thread that waits in `poll`; it ends when this is dropped.
pub(crate) struct PollThread {
    name: &'static str,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl PollThread {
    /// Starts a thread. `run` returns when it can read from the descriptor that it gets.
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
    /// Ends the thread, and waits for that.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).is_err() || thread.join().is_err() {
            warn!(thread = self.name, "a thread could not be stopped, or had panicked");
        }
    }
}

/// Pauses after a `poll` or an accept that failed for want of descriptors or memory. Returns
/// whether the thread is to end.
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
                assert!(!panics, "it was to panic");
            });
            thread.join().is_err()
        };
        assert!(run("first", true));
        assert_eq!(supervisor.wait().as_deref(), Some("first"));
        assert!(!run("second", false));
        assert_eq!(supervisor.first().as_deref(), Some("first"), "the others follow from it");
        let supervisor = ThreadSupervisor::default();
        let guard = supervisor.thread_guard("third");
        supervisor.expect();
        drop(guard);
        assert_eq!(supervisor.wait(), None);
    }
}
