//! Locks that are taken whether or not a thread has panicked while it held them.
//!
//! State under a lock of this workspace is whole after each statement. A panic loses the work of
//! its thread, not the state, and a second panic at every later lock would only hide the first.

use std::sync::{LockResult, PoisonError};

/// Result of a lock or of a wait, without its mark of an earlier panic.
pub trait IgnorePoison {
    /// Access to the state.
    type Guard;

    /// Returns the guard, after a panic too.
    fn ignore_poison(self) -> Self::Guard;
}

impl<G> IgnorePoison for LockResult<G> {
    type Guard = G;

    fn ignore_poison(self) -> G {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};
    use std::{panic, sync::Arc, thread};

    use super::IgnorePoison;

    #[test]
    fn a_lock_is_taken_after_a_panic_of_its_holder() {
        let lock = Arc::new(Mutex::new(1));
        let held = Arc::clone(&lock);
        let holder = thread::spawn(move || {
            *held.lock().unwrap_or_else(PoisonError::into_inner) = 2;
            let _guard = held.lock();
            panic::resume_unwind(Box::new("of a test"));
        });
        assert!(holder.join().is_err() && lock.is_poisoned());
        assert_eq!(*lock.lock().ignore_poison(), 2);
    }
}
