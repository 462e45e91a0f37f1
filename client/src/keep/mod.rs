//! Which remote rows a worker keeps.

pub mod policy_inputs;
pub mod scored;

use std::fmt;

use lodestore_cache::policy::hottest;
use lodestore_graph::NodeId;
use lodestore_graph::schedule::AccessCounts;
use serde::{Serialize, Serializer};

/// Remote rows that a worker keeps by its schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// None.
    Nothing,
    /// Those that an epoch uses most, pulled before it, in two buffers (RapidGNN, sections 4.5 and
    /// 4.6).
    Hot,
    /// Those that are used soonest (Belady's MIN), in the memory of both buffers. No other choice
    /// moves fewer rows.
    Oracle,
}

impl Keep {
    /// Returns the name of the choice, that of its cache policy: `none`, `frequency` or `oracle`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Hot => "frequency",
            Self::Oracle => "oracle",
        }
    }

    /// Returns the rows that are kept for one batch where a hot set has `n_hot` rows.
    #[must_use]
    pub fn capacity_rows(self, n_hot: usize) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Hot => n_hot,
            Self::Oracle => n_hot.saturating_mul(2),
        }
    }

    /// Returns the rows of a hot set with which `n_rows` rows are kept for one batch.
    #[must_use]
    pub fn n_hot_of(self, n_rows: usize) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Hot => n_rows,
            Self::Oracle => n_rows.div_ceil(2),
        }
    }
}

/// Returns the hot set of an epoch: the `n_hot` nodes that most batches need, ascending (RapidGNN,
/// section 4.5). The cache policy `frequency` prefers the same nodes.
#[must_use]
pub fn hot_set(counts: &AccessCounts, n_hot: usize) -> Vec<NodeId> {
    let uses = counts.uses().map(|(node, count)| (node.0, count));
    let mut ids: Vec<NodeId> = hottest(uses, n_hot).into_iter().map(NodeId).collect();
    ids.sort_unstable();
    ids
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Keep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
