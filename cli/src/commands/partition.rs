//! `lode partition`: what a partitioner makes of a graph, without importing it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use lodestore_graph::PartId;
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_graph::partition::{Algorithm, PartitionReport, partition};

use crate::console::Console;
use crate::edges::EdgeArgs;
use crate::human;
use crate::table::Table;

/// Report how a partitioner would split a graph: cut, replication, halos, balance.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode partition --edges edges.npy --undirected --parts 4 --algorithm spring")]
pub(crate) struct PartitionArgs {
    #[command(flatten)]
    edges: EdgeArgs,
    /// Each edge stands for both directions.
    #[arg(long)]
    undirected: bool,
    /// Number of nodes, if larger than the largest id in the edges + 1.
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Number of partitions.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    parts: u16,
    /// Partitioner: hash, range or spring.
    #[arg(long, value_name = "A", default_value = "spring")]
    algorithm: Algorithm,
    /// Write the partition of each node: .npy of shape (N,), u16.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl PartitionArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        console.stage("edges");
        let edges = self.edges.file().open(self.nodes)?;
        console.stage("partition");
        let n_nodes = edges.n_nodes();
        let found = partition(&*edges, n_nodes, self.parts, self.undirected, &self.algorithm)?;
        if let Some(out) = &self.out {
            write_assignment(out, &found.assignment)?;
        }
        console.report(&found.report, text)
    }
}

fn write_assignment(path: &Path, assignment: &[PartId]) -> Result<()> {
    let mut out = NpyWriter::create(path, NpyType::U16, &[assignment.len() as u64])?;
    out.write_all(bytemuck::cast_slice(assignment))?;
    Ok(out.finish()?)
}

fn text(report: &PartitionReport) -> String {
    let mut parts = Table::new(["partition", "nodes", "in-edges", "halo"]);
    let figures = report.part_nodes.iter().zip(&report.part_edges).zip(&report.part_halo);
    for (part, ((&nodes, &edges), &halo)) in figures.enumerate() {
        let cells = [nodes, edges, halo].map(human::count);
        parts.row(std::iter::once(part.to_string()).chain(cells));
    }
    format!(
        "{}: {} nodes, {} edges in {}\n\n{parts}\n\n  \
         edge cut            {}\n  replication factor  {:.3}\n  node balance        {:.3}\n  \
         edge balance        {:.3}\n  time                {}\n  peak memory         {}",
        report.algorithm,
        human::count(report.nodes.into()),
        human::count(report.edges),
        human::counted(report.parts.into(), "partition"),
        human::percent(report.edge_cut),
        report.replication_factor,
        report.node_balance,
        report.edge_balance,
        human::seconds(report.seconds),
        human::bytes(report.peak_rss_bytes),
    )
}
