//! Forked children: which process a value belongs to.
//!
//! A forked child has a copy of its parent's memory and one of its threads. A lock that another
//! thread held stays held, sockets and io_urings are the parent's, and threads are missing. So a
//! value of that kind records the [`Generation`] that made it, and a child neither uses nor drops
//! one of its parent. [`PerProcess`] makes another value in the child and leaks the first.
//!
//! Only forks by the C library's `fork` are noticed, which is what Python and Rust call.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Forks between the first process and this one; a fork may count more than once.
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// Whether every further fork is counted.
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

/// A process among those that were forked from each other: a child has another than its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u64);

impl Generation {
    /// Returns the generation of this process.
    #[inline]
    #[must_use]
    pub fn now() -> Self {
        // The handler is there before any value carries the number.
        if !IS_REGISTERED.load(Ordering::Acquire) {
            register();
        }
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns whether this is the generation of this process.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::now()
    }
}

/// Registers the handler. Two threads may do so together: then a fork counts twice.
#[cold]
#[expect(unsafe_code, reason = "the C library registers handlers of forks, and nothing else does")]
fn register() {
    // SAFETY: the handler lives as long as the program. It runs in a child before `fork` returns,
    // on the only thread, and does one atomic addition: no lock, no memory taken, no call.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    // It fails for want of memory only; the next call tries again.
    IS_REGISTERED.store(failed == 0, Ordering::Release);
}

extern "C" fn count_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// A value of one process: a forked child makes its own, and leaks that of its parent.
///
/// No thread ever waits here. Two that need the value first may both make one, and one is dropped.
pub struct PerProcess<T> {
    /// Null before the first; a value that was replaced is never freed.
    current: AtomicPtr<Slot<T>>,
    owns: PhantomData<Slot<T>>,
}

struct Slot<T> {
    generation: Generation,
    value: T,
}

impl<T> PerProcess<T> {
    /// Creates one without a value.
    #[must_use]
    pub const fn new() -> Self {
        Self { current: AtomicPtr::new(std::ptr::null_mut()), owns: PhantomData }
    }

    /// Returns this process's value, if it has one.
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        let known = self.known(self.current.load(Ordering::Acquire))?;
        known.generation.is_current().then_some(&known.value)
    }

    /// Returns what `at`, which was loaded from `current`, points to.
    #[expect(unsafe_code, reason = "an atomic pointer is no reference")]
    fn known(&self, at: *mut Slot<T>) -> Option<&Slot<T>> {
        // SAFETY: a pointer in `current` is null or comes from `Box::into_raw`. Nothing frees it
        // but the drop of `self`, which is borrowed. No exclusive reference to the value exists.
        unsafe { at.as_ref() }
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// Creates one with a value of this process.
    #[must_use]
    pub fn with(value: T) -> Self {
        let this = Self::new();
        this.get_or(|_| value);
        this
    }

    /// Returns this process's value. If there is none, `make` makes it from that of the parent,
    /// where that had one; locks in it may be held for ever.
    pub fn get_or(&self, make: impl FnOnce(Option<&T>) -> T) -> &T {
        let made = self.get_or_try(|parents| Ok::<T, Infallible>(make(parents)));
        made.unwrap_or_else(|never| match never {})
    }

    /// Returns this process's value as [`PerProcess::get_or`] does.
    ///
    /// # Errors
    /// Those of `make`; the next call makes it again.
    #[inline]
    pub fn get_or_try<E>(&self, make: impl FnOnce(Option<&T>) -> Result<T, E>) -> Result<&T, E> {
        let (generation, seen) = (Generation::now(), self.current.load(Ordering::Acquire));
        match self.known(seen) {
            Some(known) if known.generation == generation => Ok(&known.value),
            known => {
                let value = make(known.map(|known| &known.value))?;
                Ok(&self.replace(seen, Slot { generation, value }).value)
            }
        }
    }

    /// Puts `made` in the place of what was `seen`, or drops it if another thread was first.
    #[expect(unsafe_code, reason = "an atomic pointer is no box")]
    fn replace(&self, seen: *mut Slot<T>, made: Slot<T>) -> &Slot<T> {
        let made = Box::into_raw(Box::new(made));
        let (done, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let current = match self.current.compare_exchange(seen, made, done, failed) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: it came from a box above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        };
        self.known(current).unwrap_or_else(|| unreachable!("a value is never taken out again"))
    }
}

impl<T> Drop for PerProcess<T> {
    #[expect(unsafe_code, reason = "an atomic pointer is no box")]
    fn drop(&mut self) {
        if self.get().is_some() {
            // SAFETY: it came from a box, is in no other place, and `self` ends here.
            drop(unsafe { Box::from_raw(*self.current.get_mut()) });
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerProcess").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts its drops.
    struct DropCounter<'a>(u32, &'a AtomicUsize);

    impl Drop for DropCounter<'_> {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One test, since all of them would count the same forks; a fork is played by its handler.
    #[test]
    fn a_child_has_values_of_its_own_and_drops_none_of_its_parent() {
        let before = Generation::now();
        assert!(before.is_current());
        let n_drops = AtomicUsize::new(0);
        let values: [PerProcess<DropCounter<'_>>; 3] =
            [1, 2, 3].map(|number| PerProcess::with(DropCounter(number, &n_drops)));
        let mut empty = PerProcess::<DropCounter<'_>>::new();
        assert!(empty.get().is_none());
        assert_eq!(values[0].get_or(|_| unreachable!("it is there")).0, 1);
        count_fork();
        assert!(!before.is_current() && Generation::now().is_current());
        let [first, second, third] = values;
        assert!(first.get().is_none());
        drop(first);
        let refused =
            second.get_or_try(|parents| Err::<DropCounter<'_>, _>(parents.map(|it| it.0)));
        assert_eq!(refused.err(), Some(Some(2)));
        let own = second.get_or(|parents| DropCounter(10 + parents.unwrap().0, &n_drops));
        assert_eq!((own.0, second.get().unwrap().0), (12, 12));
        assert_eq!(n_drops.load(Ordering::Relaxed), 0, "the parent's are leaked");
        drop(second);
        assert_eq!(n_drops.load(Ordering::Relaxed), 1);
        // Threads that need it first agree on one.
        let (barrier, n_made) = (Barrier::new(4), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (third, barrier, n_made, n_drops) = (&third, &barrier, &n_made, &n_drops);
                scope.spawn(move || {
                    barrier.wait();
                    let own = third.get_or(|parents| {
                        assert_eq!(parents.unwrap().0, 3);
                        n_made.fetch_add(1, Ordering::Relaxed);
                        DropCounter(20 + number, n_drops)
                    });
                    barrier.wait();
                    assert!(std::ptr::eq(own, third.get().unwrap()));
                });
            }
        });
        drop(third);
        let (n_made, n_drops_now) = (n_made.into_inner(), n_drops.load(Ordering::Relaxed));
        assert_eq!(n_drops_now, 1 + n_made, "all that this process made, and no other");
        empty = PerProcess::with(DropCounter(5, &n_drops));
        drop(empty);
        assert_eq!(n_drops.load(Ordering::Relaxed), n_drops_now + 1);
    }
}
