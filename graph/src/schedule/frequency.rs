//! How often an epoch needs each remote node.

use serde::Serialize;

use super::{Schedule, ScheduleError};
use crate::ids::NodeId;

/// How many batches of one worker and epoch need each remote node.
pub struct AccessCounts {
    /// By node id; 0 for local nodes.
    counts: Vec<u32>,
}

/// Statistics of a worker's remote accesses of one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccessStats {
    /// Remote input nodes over all batches: the rows that training without a cache pulls.
    pub accesses: u64,
    /// Distinct nodes among them.
    pub nodes: u64,
    /// Those of them that one batch only needs (RapidGNN, Fig. 3: the long tail).
    pub nodes_once: u64,
}

impl AccessCounts {
    /// Reads every batch of the worker's epoch. Memory: 4 bytes per node of the graph.
    pub fn of(
        schedule: &Schedule,
        worker: u32,
        epoch: u32,
        is_remote: &dyn Fn(NodeId) -> bool,
    ) -> Result<Self, ScheduleError> {
        let mut counts = vec![0u32; schedule.n_nodes() as usize];
        for batch in schedule.batches(worker, epoch) {
            for node in batch?.nodes {
                counts[node.index()] += 1;
            }
        }
        for (id, count) in (0..).zip(&mut counts) {
            if *count > 0 && !is_remote(NodeId(id)) {
                *count = 0;
            }
        }
        Ok(Self { counts })
    }

    /// Returns the remote nodes that batches need, ascending, with the number of these batches.
    pub fn uses(&self) -> impl Iterator<Item = (NodeId, u32)> {
        let counts = (0..).map(NodeId).zip(self.counts.iter().copied());
        counts.filter(|(_, count)| *count > 0)
    }

    /// Returns how many batches need `node`; 0 for a local one.
    #[must_use]
    pub fn of_node(&self, node: NodeId) -> u32 {
        self.counts.get(node.index()).copied().unwrap_or(0)
    }

    /// Sums over all nodes.
    #[must_use]
    pub fn stats(&self) -> AccessStats {
        let mut stats = AccessStats::default();
        for &count in &self.counts {
            stats.accesses += u64::from(count);
            stats.nodes += u64::from(count > 0);
            stats.nodes_once += u64::from(count == 1);
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_count_the_long_tail() {
        let counts = AccessCounts { counts: vec![0, 1, 3, 1] };
        let expected = AccessStats { accesses: 5, nodes: 3, nodes_once: 2 };
        assert_eq!(counts.stats(), expected);
        assert_eq!([0, 2, 9].map(|id| counts.of_node(NodeId(id))), [0, 3, 0]);
        let uses = [(NodeId(1), 1), (NodeId(2), 3), (NodeId(3), 1)];
        assert_eq!(counts.uses().collect::<Vec<_>>(), uses);
    }
}
