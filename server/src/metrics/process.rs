//! Figures of this process from the kernel.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::figures::ProcessFigures;

/// Ticks per second in /proc/self/stat: the same on every architecture that we run on.
const USER_HZ: f64 = 100.0;

impl ProcessFigures {
    /// Reads the figures of this process. One that cannot be read is 0.
    pub(super) fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // Less the one that lists them.
        let open_fds = fs::read_dir("/proc/self/fd").map_or(0, |dir| dir.count() as u64 - 1);
        Self {
            resident_bytes: kib(&status, "VmRSS:") << 10,
            peak_resident_bytes: kib(&status, "VmHWM:") << 10,
            cpu_seconds: cpu_ticks(&stat) / USER_HZ,
            threads: kib(&status, "Threads:"),
            open_fds,
            max_fds: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        }
    }
}

/// Returns the number after a key, whatever its unit.
fn kib(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Returns the user and system time: fields 14 and 15. Field 2 is a name that may hold anything.
fn cpu_ticks(stat: &str) -> f64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_threads_and_files() {
        let found = ProcessFigures::read();
        assert!(found.resident_bytes > 1 << 20 && found.peak_resident_bytes > 1 << 20);
        assert!(found.threads >= 1 && found.open_fds >= 3 && found.max_fds >= found.open_fds);
    }

    #[test]
    fn times_are_read_past_any_name() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        assert_eq!(cpu_ticks(stat), 300.0);
        assert_eq!(cpu_ticks("nonsense"), 0.0);
    }
}
