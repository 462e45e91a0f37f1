//! How long each step of a partitioner takes, and how much memory it adds.

use std::time::Instant;

use serde::Serialize;

use crate::process::{anonymous_bytes, peak_anonymous_bytes, watch_memory};

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
    at_start_bytes: u64,
    done: Vec<StepSeconds>,
}

impl Steps {
    /// Starts; each pass is over `n_edges` edges.
    pub(super) fn new(n_edges: u64) -> Self {
        watch_memory();
        let at_start_bytes = anonymous_bytes();
        Self { n_edges, since: Instant::now(), at_start_bytes, done: Vec::new() }
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

    /// Returns the steps done, and the most anonymous memory so far above that at the start.
    pub(super) fn finish(self) -> (Vec<StepSeconds>, u64) {
        (self.done, peak_anonymous_bytes().saturating_sub(self.at_start_bytes))
    }
}
