//! What an import made.

use std::time::Instant;

use anyhow::Result;
use lodestore_graph::partition::PartitionReport;
use lodestore_graph::peak_rss_bytes;
use lodestore_graph::topology::TopologySummary;
use lodestore_store::{Graph, TensorSummary, inspect};
use serde::Serialize;

use super::kept::KeptEdges;
use super::order::OrderReport;
use crate::human;
use crate::table::Table;

/// What `--json` prints.
#[derive(Serialize)]
pub(crate) struct ImportReport {
    pub(crate) graph: String,
    pub(crate) uuid: String,
    pub(crate) nodes: u32,
    /// Stored in-edges: both directions of an undirected edge count.
    pub(crate) edges: u64,
    /// Edges of the input from a node to itself.
    pub(crate) self_loops: u64,
    pub(crate) self_loops_dropped: bool,
    /// Directed edges that repeat one of the input.
    pub(crate) duplicate_edges: u64,
    pub(crate) duplicates_dropped: bool,
    /// What is kept of each edge beside its ends.
    pub(crate) edge_columns: Vec<&'static str>,
    pub(crate) partitioner: String,
    pub(crate) edge_cut: f64,
    pub(crate) replication_factor: f64,
    #[serde(flatten)]
    pub(crate) rows: OrderReport,
    pub(crate) tensors: Vec<TensorSummary>,
    /// Tensors whose rows are too long for a server.
    pub(crate) not_served: Vec<String>,
    pub(crate) parts: Vec<PartReport>,
    pub(crate) partition_seconds: f64,
    pub(crate) seconds: f64,
    pub(crate) peak_rss_bytes: u64,
}

/// One partition of it.
#[derive(Serialize)]
pub(crate) struct PartReport {
    pub(crate) part: u16,
    pub(crate) nodes: u32,
    /// Nodes of other partitions that its nodes have edges from.
    pub(crate) halo: u64,
    pub(crate) bytes: u64,
}

impl ImportReport {
    pub(super) fn new(
        graph: &Graph,
        partitioning: &PartitionReport,
        edges: &TopologySummary,
        kept: &KeptEdges,
        halos: &[u64],
        rows: OrderReport,
        start: Instant,
    ) -> Result<Self> {
        let summary = inspect(graph)?;
        let [self_loops_dropped, duplicates_dropped] = kept.drops();
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
            edge_columns: kept.columns(),
            partitioner: partitioning.algorithm.clone(),
            edge_cut: partitioning.edge_cut,
            replication_factor: partitioning.replication_factor,
            rows,
            tensors: summary.tensors,
            not_served: Vec::new(),
            partition_seconds: partitioning.seconds,
            seconds: start.elapsed().as_secs_f64(),
            peak_rss_bytes: peak_rss_bytes(),
        })
    }

    /// Bytes of the graph on disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    pub(super) fn text(&self) -> String {
        let mut parts = Table::new(["partition", "nodes", "halo", "size"]);
        for part in &self.parts {
            let (nodes, halo) = (human::count(part.nodes.into()), human::count(part.halo));
            parts.row([part.part.to_string(), nodes, halo, human::bytes(part.bytes)]);
        }
        let mut tensors = Table::new(["tensor", "dtype", "width", "size"]);
        for t in &self.tensors {
            let width = human::count(t.width.into());
            tensors.row([t.name.clone(), t.dtype.clone(), width, human::bytes(t.bytes)]);
        }
        format!(
            "{}: {} nodes, {} in-edges; {} cuts {} of the edges\n\n{tensors}\n\n{parts}\n\n{}\n  \
             self loops   {}\n  duplicates   {}\n  time         {}\n  peak memory  {}",
            self.graph,
            human::count(self.nodes.into()),
            human::count(self.edges),
            self.partitioner,
            human::percent(self.edge_cut),
            self.rows.text(),
            with_fate(self.self_loops, self.self_loops_dropped),
            with_fate(self.duplicate_edges, self.duplicates_dropped),
            human::seconds(self.seconds),
            human::bytes(self.peak_rss_bytes),
        )
    }
}

/// A number of edges, and what became of them.
fn with_fate(n_edges: u64, dropped: bool) -> String {
    match (n_edges, dropped) {
        (0, _) => "none".to_owned(),
        (_, true) => format!("{}, dropped", human::count(n_edges)),
        (_, false) => format!("{}, kept", human::count(n_edges)),
    }
}
