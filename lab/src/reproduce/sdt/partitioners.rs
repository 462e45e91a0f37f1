//! Figs. 6 and 7, Table II: SPRING beside other streaming partitioners.

use anyhow::Result;
use lodestore_graph::partition::{Algorithm, PartitionConfig, PartitionReport, partition};
use serde::Serialize;

use crate::reproduce::cut::Source;

/// Result of a partitioner on a graph.
#[derive(Serialize)]
pub(super) struct Partitioned {
    pub(super) name: String,
    pub(super) parts: u16,
    pub(super) replication_factor: f64,
    pub(super) edge_cut: f64,
    pub(super) node_balance: f64,
    pub(super) seconds: f64,
    /// SPRING: clusters of the clustering pass, and those left after merging.
    pub(super) clusters: Option<[u32; 2]>,
}

/// Returns SPRING as the paper has it, then refined, then its baselines.
fn partitioners(n_parts: u16) -> Vec<(String, PartitionConfig)> {
    let algorithms = Algorithm::all();
    let is_spring = |algorithm: &&Algorithm| matches!(algorithm, Algorithm::Spring(_));
    let spring = algorithms.iter().filter(is_spring).flat_map(|algorithm| {
        [("spring", 0), ("spring, refined", 1)].map(|(name, refine_rounds)| {
            let config = PartitionConfig::new(algorithm.clone(), n_parts);
            (name.to_owned(), PartitionConfig { refine_rounds, ..config })
        })
    });
    let others = algorithms.iter().filter(|algorithm| !is_spring(algorithm));
    let others = others
        .map(|algorithm| (algorithm.to_string(), PartitionConfig::new(algorithm.clone(), n_parts)));
    spring.chain(others).collect()
}

/// Partitions `source` by all partitioners.
pub(super) fn compare(source: &Source, n_parts: u16) -> Result<Vec<Partitioned>> {
    let one = |(name, config): (String, PartitionConfig)| {
        let config = PartitionConfig { direction: source.undirected.into(), ..config };
        let report = partition(&source.edges, source.n_nodes, &config)?.report;
        let PartitionReport { replication_factor, edge_cut, node_balance, seconds, .. } = report;
        let clusters = report.clusters.map(|counts| [counts.found, counts.merged]);
        Ok(Partitioned {
            name,
            parts: n_parts,
            replication_factor,
            edge_cut,
            node_balance,
            seconds,
            clusters,
        })
    };
    partitioners(n_parts).into_iter().map(one).collect()
}
