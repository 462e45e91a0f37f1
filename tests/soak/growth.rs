//! Growth of memory and descriptors of the server that is never started again, from start to end.

use std::fs;
use std::time::Duration;

use testing::process::Serving;

/// Memory that it may take at any time. It has its tier (64 MiB), requests of a shard (64 MiB) and
/// buffers kept for the next (32 MiB). It also has rows outside tables (128 MiB, and as much again
/// while they are written), and its program (docs/operations.md, Size).
const RESIDENT_MAX: u64 = 480 << 20;
/// Growth that the last quarter of a run may show above the one before. In a short run the bounds
/// above may still fill up, and for a long one no such run has confirmed it yet.
const GROWTH_MAX: u64 = 64 << 20;
const GROWTH_MAX_IN_LONG: u64 = 16 << 20;
const LONG: Duration = Duration::from_secs(20 * 60);
/// Descriptors more than at the start once all clients have left: of partitions that have come
/// since.
const MORE_DESCRIPTORS_MAX: u64 = 64;

#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) resident_bytes: u64,
    pub(crate) descriptors: u64,
}

#[derive(Default)]
pub(crate) struct Growth(Vec<Sample>);

impl Growth {
    /// Notes what a server takes now.
    pub(crate) fn sample(&mut self, server: &Serving) {
        let pid = server.child.id();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
        self.0.push(Sample { resident_bytes: kib << 10, descriptors });
    }

    pub(crate) fn first(&self) -> Sample {
        self.0[0]
    }

    pub(crate) fn last(&self) -> Sample {
        self.0[self.0.len() - 1]
    }

    /// Returns the most of both within a quarter of the run.
    pub(crate) fn most(&self, quarter: usize) -> Sample {
        let of_quarter = &self.0[self.0.len() * quarter / 4..self.0.len() * (quarter + 1) / 4];
        let most = |of: fn(&Sample) -> u64| of_quarter.iter().map(of).max().unwrap_or(0);
        Sample {
            resident_bytes: most(|sample| sample.resident_bytes),
            descriptors: most(|sample| sample.descriptors),
        }
    }

    /// Checks the growth. The first sample is from before the load, the last from after it.
    pub(crate) fn check(&self, run: Duration) {
        let quarters = [0, 1, 2, 3].map(|quarter| self.most(quarter).resident_bytes);
        assert!(quarters.iter().all(|most| *most <= RESIDENT_MAX), "{quarters:?} bytes resident");
        let growth_max = if run < LONG { GROWTH_MAX } else { GROWTH_MAX_IN_LONG };
        assert!(quarters[3] <= quarters[2] + growth_max, "{quarters:?} bytes resident");
        let (before, after) = (self.first().descriptors, self.last().descriptors);
        assert!(after <= before + MORE_DESCRIPTORS_MAX, "{before} descriptors, then {after}");
    }
}
