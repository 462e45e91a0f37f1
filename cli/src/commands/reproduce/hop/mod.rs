//! `lode reproduce hopgnn`: what moves between servers, counted by sampling.

mod balance;
mod cells;
mod charts;
mod predictions;
mod report;
mod rows;
mod source;

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::Args;
use lodestore_graph::partition::Algorithm;
use lodestore_graph::sampler::{Fanout, FanoutError};
use lodestore_store::Graph;
use lodestore_trainer::ModelKind;
use serde::Serialize;

use crate::console::Console;
use crate::usage::UsageError;

use super::parse_batch;
use cells::{Cell, GraphCells, Model};
use rows::Setting;
use source::{Cut, Source};

/// Count the rows and bytes that HopGNN's ways of training move between servers, beside others'.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode import --edges cora/edges.npy --undirected --tensor feat=cora/features_csr.npz \\
      --tensor split=cora/split.npy --out cora
  lode reproduce hopgnn --graph cora --out hopgnn
  lode reproduce hopgnn --graph cora --graph mine --servers 4 --fanout 10,10 --out hopgnn

Graphs are partitioned again in memory for each number of servers, whatever their own partitions. Nothing
is trained: batches are sampled as `lode train --strategy hop` samples them, and rows counted that a server
needs and does not own. Training nodes are those whose tensor `split` is 0, or all without one.

  model-centric  each model trains on its roots where it is     (ondemand --roots global)
  +MG            models move to their roots, and pull rows in each time step (--no-pregather)
  +PG            the rows of all time steps are pulled together (hop --migration paper)
  merged         +PG, with time steps merged into others        (--merge min|random)
  LO             batches of each server's own roots             (ondemand --roots owned)
  none           roots of the global batch at home, one step    (hop --migration none)

Writes report.md, charts and runs.json, after each graph, to --out.")]
pub(crate) struct HopFiguresArgs {
    /// Folder of an imported graph; repeat for several.
    #[arg(long, value_name = "DIR", required = true)]
    graph: Vec<PathBuf>,
    /// Folder of the report, which must not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Servers, each with a partition and a model.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,4,8,16",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    servers: Vec<u16>,
    /// Partitioners: spring (refined), hash and others of `lode partition`.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = DEFAULT_PARTITIONERS)]
    partitioner: Vec<Algorithm>,
    /// Neighbours per node and layer of a model, the hop next to the roots first; -1 takes all. Repeat for
    /// several models.
    #[arg(long, value_name = "N,N,...", allow_hyphen_values = true,
          default_values = ["10,10", "10,10,10", "2,2,2,2,2,2,2,2,2,2"])]
    fanout: Vec<Fanouts>,
    /// Roots of each model in an iteration.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = parse_batch)]
    batch: usize,
    /// Iterations to take means of.
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    iterations: u32,
    /// The model whose parameters move: sage, gcn or gat.
    #[arg(long, value_name = "MODEL", default_value = "sage")]
    model: ModelKind,
    /// Width of its hidden rows.
    #[arg(long, value_name = "N", default_value_t = 128,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    hidden: usize,
    /// Bytes of a row where a graph has no tensor `feat`.
    #[arg(long, value_name = "SIZE", default_value = "512B", value_parser = crate::size::parse_size)]
    row_bytes: u64,
    /// Fixes the batches and the neighbours that are drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

const DEFAULT_PARTITIONERS: &str =
    if cfg!(feature = "metis") { "spring,metis,hash" } else { "spring,hash" };

/// Neighbours by layer.
#[derive(Clone, Debug)]
struct Fanouts(Vec<Fanout>);

/// What `--json` prints, and what `runs.json` holds.
#[derive(Serialize)]
struct HopFigures {
    seed: u64,
    batch: usize,
    model: Model,
    graphs: Vec<GraphCells>,
}

impl HopFiguresArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        self.graph.iter().try_for_each(|dir| self.check(dir))?;
        fs::create_dir(&self.out)
            .with_context(|| format!("cannot make the folder {}", self.out.display()))?;
        let model = Model { kind: self.model, hidden: self.hidden };
        let mut found =
            HopFigures { seed: self.seed, batch: self.batch, model, graphs: Vec::new() };
        for dir in &self.graph {
            console.stage("open");
            let source = Source::open(dir, self.row_bytes)?;
            found.graphs.push(self.measure(&source, model, console)?);
            self.write(&found)?;
        }
        console.report(&found, |found| {
            format!("{}\nWritten to {}", report::markdown(found), self.out.display())
        })
    }

    /// Fails where a server would have no node to own.
    fn check(&self, dir: &Path) -> Result<()> {
        let n_nodes = Graph::open(dir)?.book().n_nodes();
        match self.servers.iter().find(|&&n| u32::from(n) > n_nodes) {
            Some(n) => Err(UsageError::new(format!(
                "--servers {n}: {} has {n_nodes} nodes, expected one for each server at least; give \
                 fewer servers",
                dir.display()
            ))
            .into()),
            None => Ok(()),
        }
    }

    /// Counts all cells of a graph.
    fn measure(&self, source: &Source, model: Model, console: &Console) -> Result<GraphCells> {
        let mut graph = GraphCells {
            name: source.name.clone(),
            nodes: source.n_nodes,
            undirected: source.undirected,
            edges: source.n_edges,
            training_nodes: source.train.len(),
            row_bytes: source.row_bytes,
            cells: Vec::new(),
            batches: Vec::new(),
        };
        let n_cuts = self.partitioner.len() * self.servers.len();
        let total = (n_cuts * self.fanout.len()) as u64;
        let setting = |fanouts, batch| {
            let (seed, iterations) = (self.seed, self.iterations);
            Setting { fanouts, batch, seed, iterations }
        };
        for (at, algorithm) in self.partitioner.iter().enumerate() {
            for &servers in &self.servers {
                let cut = Cut::new(source, algorithm, servers)?;
                let of_cut = (&*algorithm.to_string(), &cut);
                for Fanouts(fanouts) in &self.fanout {
                    let cell = Cell::new(source, of_cut, setting(fanouts, self.batch), model);
                    graph.cells.push(cell);
                    console.at(&source.name, graph.cells.len() as u64, total);
                    console.check_reader()?;
                }
                if at == 0 && servers == self.middle_servers() {
                    let Fanouts(fanouts) = &self.fanout[0];
                    let batches = [self.batch / 4, self.batch / 2, self.batch, self.batch * 2];
                    for batch in batches.into_iter().chain([self.batch * 4]).filter(|&n| n > 0) {
                        let cell = Cell::new(source, of_cut, setting(fanouts, batch), model);
                        graph.batches.push(cell);
                    }
                }
            }
        }
        Ok(graph)
    }

    /// Returns the number of servers of figures by another figure: the paper's four, if asked for.
    fn middle_servers(&self) -> u16 {
        self.servers.iter().copied().find(|&n| n == 4).unwrap_or(self.servers[0])
    }

    /// Writes what has been found so far.
    fn write(&self, found: &HopFigures) -> Result<()> {
        let write = |name: &str, content: &str| {
            let path = self.out.join(name);
            fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
        };
        write("report.md", &report::markdown(found))?;
        write("runs.json", &serde_json::to_string_pretty(found)?)?;
        charts::charts(found)?.iter().try_for_each(|(name, svg)| write(name, svg))
    }
}

impl FromStr for Fanouts {
    type Err = FanoutError;

    fn from_str(text: &str) -> Result<Self, FanoutError> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}
