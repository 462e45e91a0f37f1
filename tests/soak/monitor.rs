//! Calls that never return: a waiter for one would wait for ever with it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use testing::process::children_of;
use testing::workload::{EndOnDrop, Workload};

/// Calls in progress: those of writers, of readers, of the test itself, and the calls that are part
/// of that.
const NAMES: [&str; 8] = [
    "writer 0",
    "writer 1",
    "writer 2",
    "reader 0",
    "reader 1",
    "reader 2",
    "a fault, or the checks after all of them",
    "a call within a fault",
];
pub(crate) const WRITERS: usize = 0;
pub(crate) const READERS: usize = 3;
pub(crate) const TEST: usize = 6;
pub(crate) const CALL_OF_TEST: usize = 7;

/// Time after which a call that should be over will never be.
const NEVER: Duration = Duration::from_secs(30);
/// Interval of checks.
const LOOK: Duration = Duration::from_millis(100);
/// Longest time for a call to a server to see that the server is gone.
const RETURN_MAX: Duration = Duration::from_secs(20);

pub(crate) struct Monitor {
    start: Instant,
    /// When each must be over, in ms since the start; `u64::MAX` while there is nothing to wait
    /// for.
    ends_ms: [AtomicU64; NAMES.len()],
    is_over: AtomicBool,
}

impl Monitor {
    pub(crate) fn new() -> Self {
        let ends_ms = [const { AtomicU64::new(u64::MAX) }; NAMES.len()];
        Self { start: Instant::now(), ends_ms, is_over: AtomicBool::new(false) }
    }

    /// Does what should be over after `at_most`.
    pub(crate) fn during<T>(&self, who: usize, at_most: Duration, act: impl FnOnce() -> T) -> T {
        let end = self.start.elapsed() + at_most + NEVER;
        self.ends_ms[who].store(end.as_millis() as u64, Ordering::Relaxed);
        let _returned = OnDrop(|| self.ends_ms[who].store(u64::MAX, Ordering::Relaxed));
        act()
    }

    /// Ends [`Self::look`] when it is dropped.
    pub(crate) fn end_on_drop(&self) -> OnDrop<impl Fn()> {
        OnDrop(|| self.is_over.store(true, Ordering::Relaxed))
    }

    /// Looks until the end; fails the test once something does not return.
    pub(crate) fn look(&self, load: &Workload) {
        while !self.is_over.load(Ordering::Relaxed) {
            if let Some(who) = self.late() {
                self.give_up(who, load);
            }
            sleep(LOOK);
        }
    }

    fn late(&self) -> Option<usize> {
        let now = self.start.elapsed().as_millis() as u64;
        self.ends_ms.iter().position(|end| end.load(Ordering::Relaxed) < now)
    }

    /// Returns what hangs on a server ends with that, and the test as it always does; else the
    /// process ends.
    fn give_up(&self, who: usize, load: &Workload) -> ! {
        let name = NAMES[who];
        eprintln!("{name} does not return; all servers are killed");
        drop(EndOnDrop(load));
        for pid in children_of(std::process::id()) {
            // One that has ended meanwhile.
            let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
        }
        let end = Instant::now() + RETURN_MAX;
        while self.late().is_some() {
            if Instant::now() > end {
                eprintln!("{name} does not return without servers either");
                std::process::exit(101);
            }
            sleep(LOOK);
        }
        panic!("{name} did not return in its time and {NEVER:?}");
    }
}

pub(crate) struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
