//! Runs of all contestants on a graph, by batch size and link.

use anyhow::{Result, bail};
use serde::Serialize;

use super::papers::Published;
use super::runs::{Contestant, Run};
use crate::link_emulation::LinkSpec;

/// All runs on one graph.
#[derive(Serialize)]
pub(super) struct GraphRuns {
    pub(super) name: String,
    /// The paper's graph.
    pub(super) stands_for: Option<&'static str>,
    pub(super) nodes: u32,
    /// Undirected.
    pub(super) edges: u64,
    /// Mean degree at full size, both directions counted.
    pub(super) full_degree: Option<f32>,
    pub(super) row_bytes: u64,
    pub(super) edge_cut: f64,
    /// Nodes of a partition's halo over its own.
    pub(super) halo_ratio: f64,
    /// Rows that each worker may keep.
    pub(super) kept_rows: u32,
    pub(super) groups: Vec<Group>,
}

/// Runs of all contestants that differ in nothing else.
#[derive(Serialize)]
pub(super) struct Group {
    pub(super) link: &'static str,
    /// The link of its runs.
    #[serde(flatten)]
    pub(super) spec: LinkSpec,
    pub(super) batch: usize,
    /// The paper's figures.
    pub(super) published: Option<Published>,
    /// The baseline first.
    pub(super) runs: Vec<Run>,
}

impl Group {
    /// Returns the run of `contestant`.
    pub(super) fn run(&self, contestant: Contestant) -> Option<&Run> {
        self.runs.iter().find(|run| run.contestant == contestant)
    }

    /// Returns rate and delay as people read them.
    pub(super) fn link_name(&self) -> String {
        link_name(self.spec)
    }

    /// Returns whether no group of the same batch size has a slower link.
    pub(super) fn is_slowest(&self, groups: &[Self]) -> bool {
        let mut same = groups.iter().filter(|other| other.batch == self.batch);
        same.all(|other| other.spec.rate_bits >= self.spec.rate_bits)
    }
}

pub(super) fn link_name(spec: LinkSpec) -> String {
    let (mbit, ms) = (spec.rate_bits / 1e6, spec.delay.as_secs_f64() * 1e3);
    format!("{mbit:.0} Mbit/s, {ms} ms")
}

/// Links that were asked for.
pub(super) const FAST: &str = "fast";
/// A link that is solved from RapidGNN's speed-ups: on it the baseline pulls as long, beside its
/// computing, as the paper's Table 2 implies.
pub(super) const SLOW: &str = "slow";

/// A link with the name of its kind.
#[derive(Clone, Copy)]
pub(super) struct NamedLink {
    pub(super) name: &'static str,
    pub(super) spec: LinkSpec,
}

/// Counts the making of the schedule, which the first run did, in the set-up of all that used it.
pub(super) fn charge_schedule(groups: &mut [Group]) {
    let runs = || groups.iter().flat_map(|group| &group.runs);
    let seconds = runs().map(|run| run.schedule_seconds).fold(0.0, f64::max);
    let all = groups.iter_mut().flat_map(|group| &mut group.runs);
    for run in all.filter(|run| run.contestant.has_schedule()) {
        let lacking = seconds - run.schedule_seconds;
        run.schedule_seconds = seconds;
        run.setup_seconds += lacking;
        run.run_seconds += lacking;
    }
}

/// Fails unless both runs learnt the same: the way of rows must not change it.
pub(super) fn check_equal(expected: &Run, found: &Run, graph: &str) -> Result<()> {
    let same = expected.losses.len() == found.losses.len()
        && expected.losses.iter().zip(&found.losses).all(|(a, b)| a.to_bits() == b.to_bits());
    if !same || expected.parameters_digest != found.parameters_digest {
        bail!("{} learnt something else than ondemand on {graph}", found.contestant.label());
    }
    Ok(())
}
