//! Forked children of a test's process. The process under test is one of its own: see `child::own`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Longest time for a child: one that waits for what only its parent's threads could do never ends.
const DEADLINE: Duration = Duration::from_secs(20);

/// A forked child; killed on drop.
pub(crate) struct Forked(Option<Pid>);

/// Forks, and runs `child` in the child, which ends with it.
#[expect(unsafe_code, reason = "nothing safe forks without another program")]
pub(crate) fn fork(child: impl FnOnce()) -> Forked {
    // SAFETY: the child runs `child` on the thread that it has and ends by `_exit`: it returns to no
    // frame of its parent, and runs no destructor of one. glibc leaves it an allocator that works. That
    // it waits for no lock of the parent's other threads is what the tests are about.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        0 => {
            let is_well = catch_unwind(AssertUnwindSafe(child)).is_ok();
            // SAFETY: it ends this process and touches nothing of it.
            unsafe { libc::_exit(i32::from(!is_well)) }
        }
        pid => Forked(Pid::from_raw(pid)),
    }
}

impl Forked {
    /// Waits until the child has ended without a panic; it is killed, and the test fails, at the deadline.
    pub(crate) fn ends_well(mut self) {
        let (pid, end) = (self.0.unwrap(), Instant::now() + DEADLINE);
        loop {
            if let Some((_, status)) = waitpid(Some(pid), WaitOptions::NOHANG).unwrap() {
                self.0 = None;
                assert_eq!(status.exit_status(), Some(0), "a child ended with {status:?}");
                return;
            }
            assert!(Instant::now() < end, "a child still ran after {DEADLINE:?}");
            sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}
