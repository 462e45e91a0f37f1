//! Memory of a partitioner, computed before it starts.

use serde::Serialize;

use super::spring::merging_bytes;
use super::{Algorithm, PartitionConfig, refine};

/// Bytes of an owner.
const OWNER_BYTES: u64 = 2;

/// Bytes of one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedPhase {
    /// The work, such as `clustering`.
    pub phase: String,
    /// How its bytes come about.
    pub arithmetic: String,
    /// Bytes at most.
    pub bytes: u64,
    /// Bytes that it takes whatever the edges are.
    pub least_bytes: u64,
}

impl PlannedPhase {
    /// Returns a phase that takes `bytes` whatever the edges are.
    pub(super) fn new(phase: &str, arithmetic: String, bytes: u64) -> Self {
        Self { phase: phase.to_owned(), arithmetic, bytes, least_bytes: bytes }
    }
}

/// Memory of all phases; they follow one another, so that the largest counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// Nodes planned for.
    pub nodes: u32,
    /// Edges planned for.
    pub edges: u64,
    /// Phases in order.
    pub phases: Vec<PlannedPhase>,
    /// Bytes of the largest phase, above what the process has before it starts.
    pub peak_bytes: u64,
    /// Bytes of the largest phase whatever the edges are. Where only these fit, a phase that turns
    /// out larger than `PartitionConfig::max_memory_bytes` fails when its size is known.
    pub least_bytes: u64,
}

impl PartitionConfig {
    /// Returns the memory for a graph of `n_nodes` nodes and `n_edges` edges. No phase but METIS's
    /// holds the edges: where else they count, a bounded number per node does.
    #[must_use]
    pub fn plan(&self, n_nodes: u32, n_edges: u64) -> MemoryPlan {
        let mut phases = Vec::new();
        let n = u64::from(n_nodes);
        let mut add = |phase: &str, per_node: u64, why: &str| {
            let arithmetic = format!("{n} nodes x {per_node} B ({why})");
            phases.push(PlannedPhase::new(phase, arithmetic, n * per_node));
        };
        let count_bytes = u64::from(self.n_parts);
        let placing = format!("{count_bytes} edges in each partition");
        match &self.algorithm {
            Algorithm::Hash | Algorithm::Range => {}
            Algorithm::Metis => phases.push(PlannedPhase::new(
                "metis",
                format!("{n_edges} edges x 166 B (16 lists, 150 METIS, as measured)"),
                166 * n_edges,
            )),
            Algorithm::Spring(_) => {
                add("clustering", 24, "16 node, 8 volume of a cluster");
                phases.push(PlannedPhase {
                    least_bytes: merging_bytes(n, 0),
                    ..PlannedPhase::new(
                        "merging",
                        format!(
                            "{n} nodes x 41 B (16 node, 25 cluster, one of each node at worst)"
                        ),
                        merging_bytes(n, n),
                    )
                });
                phases.push(PlannedPhase {
                    least_bytes: 16 * n,
                    ..PlannedPhase::new(
                        "packing",
                        format!("{n} nodes x 34 B (16 node, 18 cluster and owners at worst)"),
                        34 * n,
                    )
                });
            }
            Algorithm::Dbh | Algorithm::Greedy => {
                add("placing edges", 16 + count_bytes, &format!("16 node, {placing}"));
            }
            Algorithm::Hdrf => {
                add("placing edges", 4 + count_bytes, &format!("4 degree, {placing}"));
            }
            Algorithm::TwoPsL => {
                let why = format!("16 node, 14 cluster, {placing}");
                add("clustering and placing edges", 30 + count_bytes, &why);
            }
        }
        if self.refine_rounds > 0 {
            phases.push(refine::plan(n, n_edges));
        }
        let overlap = if self.n_parts > 64 { "two passes for each 64 partitions" } else { "halos" };
        phases.push(PlannedPhase::new(
            "measuring",
            format!("{n} nodes x 12 B (8 {overlap}, 2 overlap, 2 owner)"),
            12 * n,
        ));
        phases.push(PlannedPhase::new(
            "owners",
            format!("{n} nodes x {OWNER_BYTES} B, beside each of the phases"),
            n * OWNER_BYTES,
        ));
        let largest = |bytes: fn(&PlannedPhase) -> u64| {
            phases.iter().map(bytes).max().unwrap_or(0) + n * OWNER_BYTES
        };
        let (peak_bytes, least_bytes) = (largest(|of| of.bytes), largest(|of| of.least_bytes));
        MemoryPlan { nodes: n_nodes, edges: n_edges, phases, peak_bytes, least_bytes }
    }
}
