//! The memory that a partitioner needs, compared with what is free.

use lodestore_graph::partition::PartitionConfig;
use lodestore_store::reader::available_memory_bytes;
use thiserror::Error;

/// A partitioner that needs more memory than is free.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{algorithm} needs {needed_bytes} bytes for {n_nodes} nodes in {n_parts} partitions, most of \
     them for {phase}, and {free_bytes} are free{advice}"
)]
pub struct MemoryError {
    /// The partitioner.
    pub algorithm: String,
    /// The step that needs most.
    pub phase: String,
    /// Bytes that it needs.
    pub needed_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Nodes of the graph.
    pub n_nodes: u32,
    /// Partitions asked for.
    pub n_parts: u16,
    /// Change of settings that would fit, or nothing.
    pub advice: &'static str,
}

/// Returns `config` bounded by the memory that is free.
///
/// Fails when a partitioner would need more memory whatever the edges are. A step whose size
/// depends on them fails itself, when the size is known.
pub fn bound_memory(
    config: &PartitionConfig,
    n_nodes: u32,
    n_edges: u64,
) -> Result<PartitionConfig, MemoryError> {
    bound_by(config, n_nodes, n_edges, available_memory_bytes())
}

fn bound_by(
    config: &PartitionConfig,
    n_nodes: u32,
    n_edges: u64,
    free_bytes: Option<u64>,
) -> Result<PartitionConfig, MemoryError> {
    let bounded = PartitionConfig { max_memory_bytes: free_bytes, ..config.clone() };
    let plan = config.plan(n_nodes, n_edges);
    let Some(free_bytes) = free_bytes.filter(|&free| plan.least_bytes > free) else {
        return Ok(bounded);
    };
    let unrefined = PartitionConfig { refine_rounds: 0, ..bounded }.plan(n_nodes, n_edges);
    let advice = match unrefined.least_bytes <= free_bytes {
        true => "; without refinement (0 rounds) it fits",
        false => "",
    };
    let largest = plan.phases.iter().max_by_key(|phase| phase.least_bytes);
    Err(MemoryError {
        algorithm: config.algorithm.to_string(),
        phase: largest.map_or_else(String::new, |phase| phase.phase.clone()),
        needed_bytes: plan.least_bytes,
        free_bytes,
        n_nodes,
        n_parts: config.n_parts,
        advice,
    })
}

#[cfg(test)]
mod tests {
    use lodestore_graph::partition::Algorithm;

    use super::*;

    /// Nodes and edges of papers100M's shape.
    const PAPERS: (u32, u64) = (111_059_956, 1_615_685_872);
    const GIB: u64 = 1 << 30;

    fn spring(refine_rounds: u32) -> PartitionConfig {
        let algorithm = Algorithm::Spring(Default::default());
        PartitionConfig { refine_rounds, ..PartitionConfig::new(algorithm, 8) }
    }

    #[test]
    fn spring_may_start_where_only_few_clusters_fit() {
        let (n_nodes, n_edges) = PAPERS;
        let plan = spring(0).plan(n_nodes, n_edges);
        assert!(plan.least_bytes < 3 * GIB && plan.peak_bytes > 4 * GIB, "{plan:?}");
        let bounded = bound_by(&spring(0), n_nodes, n_edges, Some(4 * GIB)).unwrap();
        assert_eq!(bounded.max_memory_bytes, Some(4 * GIB));
        let exact = plan.least_bytes;
        assert!(bound_by(&spring(0), n_nodes, n_edges, Some(exact)).is_ok());
        let found = bound_by(&spring(0), n_nodes, n_edges, Some(exact - 1)).unwrap_err();
        assert_eq!((found.phase.as_str(), found.needed_bytes), ("clustering", exact));
        assert!(!found.to_string().contains("refinement"), "{found}");
    }

    #[test]
    fn an_error_advises_against_refinement_where_that_helps() {
        let (n_nodes, n_edges) = PAPERS;
        let found = bound_by(&spring(1), n_nodes, n_edges, Some(4 * GIB)).unwrap_err();
        assert_eq!(found.phase, "refining");
        assert!(found.to_string().contains("without refinement"), "{found}");
        assert!(bound_by(&spring(1), n_nodes, n_edges, None).unwrap().max_memory_bytes.is_none());
    }
}
