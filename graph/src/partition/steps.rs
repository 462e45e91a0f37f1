//! How long each step of a partitioner takes, and how much memory it adds. Linux' `/proc` reports
//! the memory of this process.

use std::time::Instant;

use serde::Serialize;

/// One step of a partitioner.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepSeconds {
    /// The step, such as `degrees` or `clustering 1`.
    pub step: String,
    /// Seconds of it.
    pub seconds: f64,
    /// Passes over the edges in it.
    pub passes: u32,
    /// Edges per second, all passes counted; nothing for a step without one.
    pub edges_per_s: Option<f64>,
}

/// A stopwatch that notes how long each step took.
pub(super) struct Steps {
    n_edges: u64,
    since: Instant,
    rss_at_start_bytes: u64,
    done: Vec<StepSeconds>,
}

impl Steps {
    /// Starts; each pass is over `n_edges` edges.
    pub(super) fn new(n_edges: u64) -> Self {
        let rss_at_start_bytes = rss_bytes();
        Self { n_edges, since: Instant::now(), rss_at_start_bytes, done: Vec::new() }
    }

    /// Records that the time since the last step was spent on `step`, which read all edges `passes`
    /// times.
    pub(super) fn done(&mut self, step: impl Into<String>, passes: u32) {
        let now = Instant::now();
        let seconds = (now - self.since).as_secs_f64();
        let rate = f64::from(passes) * self.n_edges as f64 / seconds.max(1e-9);
        let edges_per_s = (passes > 0).then_some(rate);
        self.done.push(StepSeconds { step: step.into(), seconds, passes, edges_per_s });
        self.since = now;
    }

    /// Returns the steps done, and the most resident memory so far above that at the start.
    pub(super) fn finish(self) -> (Vec<StepSeconds>, u64) {
        (self.done, peak_rss_bytes().saturating_sub(self.rss_at_start_bytes))
    }
}

/// Returns the most bytes that this process ever had resident; 0 where the system does not tell.
#[must_use]
pub fn peak_rss_bytes() -> u64 {
    figure_bytes("VmHWM:")
}

/// Returns the bytes that this process has resident; 0 where the system does not report it.
fn rss_bytes() -> u64 {
    figure_bytes("VmRSS:")
}

/// Resets the high-water mark of resident memory to what is resident, where the system can. Each of
/// several runs in one process then reports its own peak.
pub fn forget_peak_rss() {
    // Without it peaks are those of the process; there is nothing else to do about it.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn figure_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib * 1024)
}
