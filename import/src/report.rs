//! The result of an import.

use std::time::Instant;

use lodestore_graph::partition::PartitionReport;
use lodestore_graph::process::peak_anonymous_bytes;
use lodestore_graph::topology::{EdgePolicy, TopologySummary};
use lodestore_store::Graph;
use lodestore_store::inspect::{TensorSummary, inspect};
use serde::Serialize;

use crate::config::EdgeRules;
use crate::error::Error;
use crate::order::OrderReport;

/// The graph that an import made.
#[derive(Clone, Debug, Serialize)]
pub struct ImportReport {
    /// Its folder.
    pub graph: String,
    /// Its identity.
    pub uuid: String,
    /// Number of nodes.
    pub nodes: u32,
    /// Stored in-edges: both directions of an undirected edge count.
    pub edges: u64,
    /// Edges of the input from a node to itself.
    pub self_loops: u64,
    /// Whether these are left out.
    pub self_loops_dropped: bool,
    /// Directed edges that repeat one of the input.
    pub duplicate_edges: u64,
    /// Whether these are left out.
    pub duplicates_dropped: bool,
    /// Columns kept of each edge beside its ends.
    pub edge_columns: Vec<&'static str>,
    /// Name of the partitioner.
    pub partitioner: String,
    /// Share of the edges between partitions.
    pub edge_cut: f64,
    /// Owners and halo copies of a node in the mean.
    pub replication_factor: f64,
    /// Order of the rows.
    #[serde(flatten)]
    pub rows: OrderReport,
    /// Its tensors.
    pub tensors: Vec<TensorSummary>,
    /// Tensors whose rows are too long for a server.
    pub not_served: Vec<String>,
    /// Its partitions.
    pub parts: Vec<PartReport>,
    /// Time of the partitioner.
    pub partition_seconds: f64,
    /// Time of the whole import.
    pub seconds: f64,
    /// Most anonymous memory that the process had at once, without pages of mapped files.
    pub peak_anonymous_bytes: u64,
}

/// One partition of it.
#[derive(Clone, Debug, Serialize)]
pub struct PartReport {
    /// Its number.
    pub part: u16,
    /// Nodes that it owns.
    pub nodes: u32,
    /// Nodes of other partitions that its nodes have edges from.
    pub halo: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

/// Results of the stages of an import.
pub(crate) struct StageReports<'a> {
    pub(crate) partitioning: &'a PartitionReport,
    pub(crate) edges: &'a TopologySummary,
    pub(crate) rules: &'a EdgeRules,
    /// Nodes in the halo of each partition.
    pub(crate) halos: &'a [u64],
    pub(crate) rows: OrderReport,
    pub(crate) not_served: Vec<String>,
}

impl ImportReport {
    pub(crate) fn new(
        graph: &Graph,
        stages: StageReports<'_>,
        start: Instant,
    ) -> Result<Self, Error> {
        let StageReports { partitioning, edges, rules, halos, rows, not_served } = stages;
        let summary = inspect(graph)?;
        let drops = [rules.self_loops, rules.duplicates].map(|policy| policy == EdgePolicy::Drop);
        let [self_loops_dropped, duplicates_dropped] = drops;
        let parts = summary.parts.iter().zip(halos).map(|(part, &halo)| PartReport {
            part: part.part,
            nodes: part.nodes,
            halo,
            bytes: part.bytes,
        });
        Ok(Self {
            parts: parts.collect(),
            graph: summary.graph,
            uuid: summary.uuid,
            nodes: summary.nodes,
            edges: summary.edges,
            self_loops: edges.n_self_loops,
            self_loops_dropped,
            duplicate_edges: edges.n_duplicates,
            duplicates_dropped,
            edge_columns: rules.columns(),
            partitioner: partitioning.algorithm.clone(),
            edge_cut: partitioning.edge_cut,
            replication_factor: partitioning.replication_factor,
            rows,
            tensors: summary.tensors,
            not_served,
            partition_seconds: partitioning.seconds,
            seconds: start.elapsed().as_secs_f64(),
            peak_anonymous_bytes: peak_anonymous_bytes(),
        })
    }

    /// Returns the bytes of the graph on disk.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}
