//! Forked children of a test's process. The process under test is one of its own: see `child::own`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Longest time for a child: one that waits for what only its parent's threads could do never ends.
const DEADLINE: Duration = Duration::from_secs(20);

/// A forked child; killed on drop.
pub struct ForkedChild(Option<Pid>);

/// Forks, and runs `child` in the child, which ends with it.
pub fn fork(child: impl FnOnce()) -> ForkedChild {
    fork_within(|fork| {
        if fork() {
            child();
        }
    })
}

/// Runs `run`, which forks once by calling its argument: that returns whether this is the child.
/// Both processes continue in `run`, and the child ends with it.
#[expect(unsafe_code, reason = "nothing safe forks without another program")]
pub fn fork_within(run: impl FnOnce(&mut dyn FnMut() -> bool)) -> ForkedChild {
    let mut forked = None;
    let ran = catch_unwind(AssertUnwindSafe(|| {
        run(&mut || {
            // SAFETY: the child continues with the frames of this thread, the one that it has, up
            // to `_exit` below. It returns to no other frame, and runs no destructor of one. glibc
            // leaves it an allocator that works. That it waits for no lock of the parent's other
            // threads is what the tests are about.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "{}", std::io::Error::last_os_error());
            forked = Some(pid);
            pid == 0
        });
    }));
    if forked == Some(0) {
        // SAFETY: it ends this process and touches nothing of it.
        unsafe { libc::_exit(i32::from(ran.is_err())) }
    }
    ran.unwrap_or_else(|panic| resume_unwind(panic));
    ForkedChild(Pid::from_raw(forked.expect("it forks")))
}

impl ForkedChild {
    /// Waits until the child has ended without a panic; at the deadline it is killed and the test
    /// fails.
    pub fn ends_well(mut self) {
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

impl Drop for ForkedChild {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}
