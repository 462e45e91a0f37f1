//! `lode partition`: what partitioners make of a graph, without importing it.

mod text;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use lodestore_graph::PartId;
use lodestore_graph::edges::{EdgeStream, ReadAhead, spool};
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_graph::partition::{
    Algorithm, MemoryPlan, PartitionConfig, PartitionReport, Workers, Workload, partition,
};
use lodestore_graph::topology::Direction;
use lodestore_import::memory::bound_memory;
use serde::Serialize;

use crate::console::Console;
use crate::flags::{EdgeArgs, PartitionerArgs, parse_size};
use crate::outputs::NamedFiles;
use crate::usage::{UsageError, refuse_given};

/// Report how a partitioner would split a graph: cut, replication, halos, balance.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode partition --edges edges.npy --undirected --parts 4 --algorithm spring --refine 1
  lode partition --edges edges.npy --undirected --parts 4 --all
  lode partition --edges edges.npy --data 40GB --memory 16GiB --workers 4 --plan

With --memory and --workers the number of partitions follows from them (SDT-GNN, Section III-C): as
many as workers if the data fits into what training leaves of their memory, else as many as needed.")]
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
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..),
          required_unless_present = "memory", conflicts_with = "memory")]
    parts: Option<u16>,
    /// Partitioner: hash, range, dbh, greedy, hdrf, 2ps-l or spring.
    #[arg(long, value_name = "A", default_value = "spring")]
    algorithm: Algorithm,
    /// Run all partitioners, one after the other, and compare them.
    #[arg(long, conflicts_with_all = ["algorithm", "out"])]
    all: bool,
    #[command(flatten)]
    partitioner: PartitionerArgs,
    /// Only report the memory that is needed, with its arithmetic.
    #[arg(long, conflicts_with = "out")]
    plan: bool,
    /// Memory of each worker, such as 16GiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "workers")]
    memory: Option<u64>,
    /// With --memory: number of workers.
    #[arg(long, value_name = "Q", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// With --memory: what training takes of it; two thirds unless given.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    reserve: Option<u64>,
    /// With --memory: size of the graph with its features; that of the files of edges unless given.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    data: Option<u64>,
    /// Write the partition of each node: .npy of shape (N,), u16.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Output of `--json` for one run.
#[derive(Serialize)]
struct OneReport {
    #[serde(flatten)]
    report: PartitionReport,
    workload: Option<Workload>,
}

/// Output of `--all --json`.
#[derive(Serialize)]
struct AllReport {
    results: Vec<PartitionReport>,
    workload: Option<Workload>,
}

/// Output of `--plan --json`.
#[derive(Serialize)]
struct PlanReport {
    plans: Vec<PlanOf>,
    workload: Option<Workload>,
}

/// The plan of one partitioner.
#[derive(Serialize)]
struct PlanOf {
    algorithm: String,
    #[serde(flatten)]
    plan: MemoryPlan,
}

impl PartitionArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        if self.memory.is_none() {
            let sizes = [
                ("--workers", self.workers.is_some()),
                ("--reserve", self.reserve.is_some()),
                ("--data", self.data.is_some()),
            ];
            refuse_given(&sizes, "is for --memory, from which the number of partitions follows")?;
        }
        let files = NamedFiles::default().outputs("--out", &self.out);
        files.inputs("--edges", self.edges.paths()).check()?;
        let workload = self.workload()?;
        let n_parts = workload.map(|found| found.parts).or(self.parts);
        let n_parts = n_parts.ok_or_else(|| UsageError::new("--parts is missing"))?;
        let configs = self.configs(n_parts)?;
        console.stage("edges");
        let files = self.edges.files()?;
        let (has_text, edges) = (files.has_text()?, files.open(self.nodes)?);
        if u32::from(n_parts) > edges.n_nodes() {
            let n_nodes = edges.n_nodes();
            eprintln!("lode: warning: {n_parts} partitions of {n_nodes} nodes: some will be empty");
        }
        if self.plan {
            let plan = |config: &PartitionConfig| PlanOf {
                algorithm: config.algorithm.to_string(),
                plan: config.plan(edges.n_nodes(), edges.n_edges()),
            };
            let plans = configs.iter().map(plan).collect();
            return console.report(&PlanReport { plans, workload }, text::plan);
        }
        let bound = |config| bound_memory(config, edges.n_nodes(), edges.n_edges());
        let configs = configs.iter().map(bound).collect::<Result<Vec<_>, _>>()?;
        let scratch = tempfile::tempdir().context("cannot make a folder for parsed edges")?;
        let edges = match has_text {
            // Each pass would parse it again.
            true => Box::new(ReadAhead::new(spool(&*edges, &scratch.path().join("edges"))?)),
            false => edges,
        };
        let mut results = Vec::new();
        for config in &configs {
            console.stage(&config.algorithm.to_string());
            results.push(run_one(&*edges, config, self.out.as_deref())?);
        }
        match results.pop() {
            Some(report) if !self.all => console.report(&OneReport { report, workload }, text::one),
            last => {
                results.extend(last);
                console.report(&AllReport { results, workload }, text::all)
            }
        }
    }

    /// Returns the number of partitions from the workers' memory, if that is asked for.
    fn workload(&self) -> Result<Option<Workload>> {
        let (Some(memory_bytes), Some(n_workers)) = (self.memory, self.workers) else {
            return Ok(None);
        };
        let data_bytes = match self.data {
            Some(bytes) => bytes,
            None => self.edges.size_bytes()?,
        };
        let workers = Workers { n_workers, memory_bytes, reserved_bytes: self.reserve };
        Ok(Some(workers.workload(data_bytes).map_err(UsageError::of)?))
    }

    fn configs(&self, n_parts: u16) -> Result<Vec<PartitionConfig>, UsageError> {
        let (partitioner, direction) = (&self.partitioner, Direction::from(self.undirected));
        if !self.all {
            let algorithm = self.algorithm.clone();
            return Ok(vec![partitioner.config(algorithm, n_parts, direction)?]);
        }
        let all = Algorithm::all().into_iter();
        all.map(|algorithm| partitioner.config_for_any(algorithm, n_parts, direction)).collect()
    }
}

fn run_one(
    edges: &dyn EdgeStream,
    config: &PartitionConfig,
    out: Option<&Path>,
) -> Result<PartitionReport> {
    lodestore_graph::process::forget_peak_memory();
    let found = partition(edges, edges.n_nodes(), config)?;
    if let Some(out) = out {
        write_assignment(out, &found.assignment)
            .with_context(|| format!("cannot write the partitions to {}", out.display()))?;
    }
    Ok(found.report)
}

fn write_assignment(path: &Path, assignment: &[PartId]) -> Result<()> {
    let shape = [assignment.len() as u64];
    Ok(NpyWriter::write(path, NpyType::U16, &shape, bytemuck::cast_slice(assignment))?)
}
