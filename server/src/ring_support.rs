//! Checks that the system lets this process use io_uring, which every shard needs; otherwise finds
//! the cause.

use std::fs;
use std::io;

use io_uring::{IoUring, Probe};
use rustix::io::Errno;

use crate::error::ServerError;

/// Values of `kernel.io_uring_disabled` that deny io_uring to this process.
const REFUSING_SETTINGS: [&str; 2] = ["1", "2"];

/// Returns an error with a cause and a remedy if the system denies io_uring.
///
/// Without this check each executor would fail separately, after the graph was opened.
pub(crate) fn check() -> Result<(), ServerError> {
    try_calls().map_err(|(call, source)| {
        let setting = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let remedy = remedy(&source, setting.trim(), has_filter(&status));
        ServerError::NoRing { call, source, remedy }
    })
}

/// Makes each of the three system calls once. An error has the call's name.
fn try_calls() -> Result<(), (&'static str, io::Error)> {
    let ring = IoUring::new(1).map_err(|error| ("io_uring_setup", error))?;
    let submitter = ring.submitter();
    let probed = submitter.register_probe(&mut Probe::new());
    probed.map_err(|error| ("io_uring_register", error))?;
    submitter.submit().map_err(|error| ("io_uring_enter", error))?;
    Ok(())
}

/// Returns whether a thread with this `/proc` status is under a seccomp filter.
fn has_filter(status: &str) -> bool {
    status.lines().any(|line| {
        line.split_once(':').is_some_and(|(key, mode)| key == "Seccomp" && mode.trim() == "2")
    })
}

/// Returns the cause of `error` and a remedy. `setting` is `kernel.io_uring_disabled`.
fn remedy(error: &io::Error, setting: &str, is_filtered: bool) -> String {
    let errno = Errno::from_io_error(error);
    let is_refused = matches!(errno, Some(Errno::PERM | Errno::ACCESS));
    if is_refused && REFUSING_SETTINGS.contains(&setting) {
        return format!(
            "the kernel setting kernel.io_uring_disabled is {setting}; set it to 0 with \
             `sysctl -w kernel.io_uring_disabled=0`"
        );
    }
    if is_filtered && (is_refused || errno == Some(Errno::NOSYS)) {
        return "a seccomp filter of this container or unit denies it, as Docker's default does; \
                allow io_uring_setup, io_uring_enter and io_uring_register: `docker run \
                --security-opt seccomp=seccomp.json` with deploy/seccomp.json, or \
                SystemCallFilter in a unit"
            .to_owned();
    }
    let remedy = match errno {
        Some(Errno::NOSYS) => {
            "this kernel or sandbox lacks it; serve on Linux 5.6 or later, outside sandboxes such \
             as gVisor"
        }
        Some(Errno::PERM | Errno::ACCESS) => {
            "a security module of this machine denies it; allow io_uring to this user"
        }
        Some(Errno::NOMEM) => {
            "each shard needs at least 512 KiB of locked memory; raise `ulimit -l`, LimitMEMLOCK \
             in the unit, or `docker run --ulimit memlock`"
        }
        _ => "every shard of a server needs it; raise the limit that the error names",
    };
    remedy.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remedy_of(errno: Errno, setting: &str, is_filtered: bool) -> String {
        remedy(&errno.into(), setting, is_filtered)
    }

    #[test]
    fn each_cause_has_its_own_remedy() {
        let causes = [
            (Errno::PERM, "0", true, "deploy/seccomp.json"),
            (Errno::NOSYS, "", true, "deploy/seccomp.json"),
            (Errno::PERM, "2", true, "kernel.io_uring_disabled is 2; set it to 0"),
            (Errno::PERM, "1", false, "kernel.io_uring_disabled is 1; set it to 0"),
            (Errno::PERM, "0", false, "security module"),
            (Errno::ACCESS, "", false, "security module"),
            (Errno::NOSYS, "", false, "Linux 5.6"),
            (Errno::NOMEM, "0", true, "512 KiB of locked memory"),
            (Errno::MFILE, "0", true, "the limit that the error names"),
        ];
        for (errno, setting, is_filtered, expected) in causes {
            let found = remedy_of(errno, setting, is_filtered);
            assert!(found.contains(expected), "{errno:?}, `{setting}`, {is_filtered}: {found}");
        }
    }

    #[test]
    fn a_filter_is_read_from_the_status_of_a_thread() {
        assert!(has_filter("NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!has_filter("NoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t2\n"));
        assert!(!has_filter(""));
    }
}
