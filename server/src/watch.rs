//! Notices threads that end although the server continues, since their work is no longer done.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Threads that must live as long as their server, seen from outside.
#[derive(Clone, Default)]
pub struct Deaths(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    /// The first that has ended.
    dead: Option<String>,
    /// The server stops, so that all of them end.
    is_stopping: bool,
}

/// Held by a thread for as long as it lives.
pub(crate) struct Lifeline {
    name: String,
    deaths: Deaths,
}

thread_local! {
    /// Dropped when the thread ends, in whatever way.
    static LIFELINE: RefCell<Option<Lifeline>> = const { RefCell::new(None) };
}

impl Deaths {
    /// Waits until a thread has ended that must not, and returns its name; `None` if the server is
    /// stopped first.
    #[must_use]
    pub fn wait(&self) -> Option<String> {
        let mut state = self.lock();
        while state.dead.is_none() && !state.is_stopping {
            state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.dead.clone()
    }

    /// The thread that has ended although it must not.
    pub(crate) fn first(&self) -> Option<String> {
        self.lock().dead.clone()
    }

    /// From now on threads end on request.
    pub(crate) fn expect(&self) {
        self.lock().is_stopping = true;
        self.0.1.notify_all();
    }

    /// Ties a thread of this name to the server.
    pub(crate) fn lifeline(&self, name: impl Into<String>) -> Lifeline {
        Lifeline { name: name.into(), deaths: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lifeline {
    /// Is held by this thread until it ends.
    pub(crate) fn hold(self) {
        LIFELINE.set(Some(self));
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        let mut state = self.deaths.lock();
        if state.is_stopping || state.dead.is_some() {
            return;
        }
        // No log: this runs as the thread's locals are destroyed, and the log's buffer is one of
        // them.
        state.dead = Some(std::mem::take(&mut self.name));
        self.deaths.0.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_is_reported_and_one_that_is_stopped_is_not() {
        let deaths = Deaths::default();
        let run = |name: &str, panics: bool| {
            let lifeline = deaths.lifeline(name);
            let thread = std::thread::spawn(move || {
                lifeline.hold();
                assert!(!panics, "it was to panic");
            });
            thread.join().is_err()
        };
        assert!(run("first", true));
        assert_eq!(deaths.wait().as_deref(), Some("first"));
        assert!(!run("second", false));
        assert_eq!(deaths.first().as_deref(), Some("first"), "the others follow from it");
        let deaths = Deaths::default();
        let lifeline = deaths.lifeline("third");
        deaths.expect();
        drop(lifeline);
        assert_eq!(deaths.wait(), None);
    }
}
