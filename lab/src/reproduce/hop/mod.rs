//! `lode-lab reproduce hopgnn`: what moves between servers, counted by sampling; times and
//! accuracies of training.

mod accuracy;
mod balance;
mod cells;
mod charts;
mod predictions;
mod report;
mod rows;
mod source;
mod timing;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use lodestore_graph::partition::Algorithm;
use lodestore_graph::sampler::{Fanout, FanoutError};
use lodestore_store::Graph;
use lodestore_trainer::ModelKind;
use lodestore_trainer::replay::Replay;
use serde::Serialize;

use super::recording::{Compute, Recording};
use crate::reproduce::output::{Figures, OutputFolder};
use lode_cli::console::Console;
use lode_cli::interrupt::RemovedOnInterrupt;
use lode_cli::usage::UsageError;

use super::parse_batch;
use accuracy::AccuracyRuns;
use cells::{Cell, GraphCells, ModelShape};
use rows::Setting;
use source::{InputGraph, ServerCut};
use timing::{LinkArg, Timing, TrainPlan};

/// Count the rows and bytes that HopGNN's ways of training move between servers, and time them.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode import --edges cora/edges.npy --undirected --tensor feat=cora/features_csr.npz \\
      --tensor split=cora/split.npy --out cora
  lode-lab reproduce hopgnn --graph cora --out hopgnn
  lode-lab reproduce hopgnn --graph cora --graph mine --servers 4 --fanout 10,10 --out hopgnn
  lode-lab reproduce hopgnn --graph cora-in-4 --servers 4 --fanout 10,10 --links 1Gbit/100us,1Gbit/1ms \\
      --compute replay:steps.json --repeats 5 --seeds 5 --out hopgnn-times

Graphs are partitioned again in memory for each number of servers, whatever their own partitions, and
batches sampled as `lode train --strategy hop` samples them: rows are counted that a server needs and does
not own. Training nodes are those whose tensor `split` is 0, or all without one.

--links and --seeds train as well, with the first --fanout, in the graph's own partitions: import it with
--parts. --links times each way over links on which rows, models and gradients travel, a server and a worker
for each partition. --compute replay:FILE has batches sleep what was recorded for their roots, in between
what the file has; `lode-lab reproduce rapidgnn --help` says how it looks. --seeds trains all models in all
ways for Table 3, rows from the graph's files.

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
    /// Neighbours per node and layer of a model, the hop next to the roots first; -1 takes all.
    /// Repeat for several models.
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
    #[arg(long, value_name = "SIZE", default_value = "512B", value_parser = lode_cli::flags::parse_size)]
    row_bytes: u64,
    /// Fixes the batches and the neighbours that are drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Train over these links, each a rate and a delay, such as 1Gbit/1ms.
    #[arg(long, value_name = "RATE/DELAY,...", value_delimiter = ',')]
    links: Vec<LinkArg>,
    /// Runs of each way and link, in turns: the median is in the tables, with the range.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "links",
          value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Computation of batches over links: model, or replay:FILE, which sleeps recorded times.
    #[arg(long, value_name = "HOW", default_value = "model", requires = "links")]
    compute: Compute,
    /// Epochs of each run over links; merging takes as many as there are servers, and one more.
    #[arg(long, value_name = "N", default_value_t = 6, requires = "links",
          value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Seeds with which each way is trained for its accuracy, from --seed on; 0: none.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seeds: u32,
    /// Epochs of these runs.
    #[arg(long, value_name = "N", default_value_t = 30, requires = "seeds",
          value_parser = clap::value_parser!(u32).range(1..))]
    learn_epochs: u32,
}

const DEFAULT_PARTITIONERS: &str =
    if cfg!(feature = "metis") { "spring,metis,hash" } else { "spring,hash" };

/// Neighbours by layer.
#[derive(Clone, Debug)]
struct Fanouts(Vec<Fanout>);

/// Output of `--json`, and contents of `runs.json`.
#[derive(Serialize)]
struct HopFigures {
    seed: u64,
    batch: usize,
    model: ModelShape,
    /// Runs of each way over links.
    repeats: u32,
    /// Computation over links in place of the model.
    recording: Option<Recording>,
    graphs: Vec<GraphCells>,
}

impl HopFigures {
    /// Returns whether anything was timed.
    fn is_timed(&self) -> bool {
        self.graphs.iter().any(|graph| !graph.timed.is_empty())
    }
}

impl HopFiguresArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        self.graph.iter().try_for_each(|dir| self.check(dir))?;
        let recording = self.compute.recording()?;
        let replay = recording.as_ref().map(Recording::by_roots).transpose()?;
        let out = OutputFolder::new(&self.out)?;
        let model = ModelShape { kind: self.model, hidden: self.hidden };
        let (seed, batch, repeats) = (self.seed, self.batch, self.repeats);
        let graphs = Vec::new();
        let found = HopFigures { seed, batch, model, repeats, recording, graphs };
        out.report_each(&self.graph, found, console, |found, dir| {
            console.stage("open");
            let source = InputGraph::open(dir, self.row_bytes)?;
            let mut graph = self.measure(&source, model, console)?;
            drop(source);
            self.train(dir, &mut graph, model, replay.as_ref(), console)?;
            found.graphs.push(graph);
            Ok(())
        })
    }

    /// Times and learns the requested cells, in the graph's own partitions.
    fn train(
        &self,
        dir: &Path,
        graph: &mut GraphCells,
        model: ModelShape,
        replay: Option<&Replay>,
        console: &Console,
    ) -> Result<()> {
        let (Fanouts(fanouts), n_parts) = (&self.fanout[0], graph.own_parts);
        let plan = TrainPlan { fanouts, batch: self.batch, model, seed: self.seed };
        if !self.links.is_empty() {
            let (links, repeats, epochs) = (&self.links[..], self.repeats, self.epochs);
            let timing = Timing { links, repeats, epochs, replay, plan };
            let scratch = tempfile::Builder::new().prefix("servers-").tempdir_in(&self.out)?;
            let _interrupt = RemovedOnInterrupt::watch(scratch.path())?;
            console.stage("links");
            graph.timed = timing.measure(dir, n_parts, scratch.path(), console)?;
        }
        if self.seeds > 0 {
            console.stage("seeds");
            let (n_seeds, epochs) = (self.seeds, self.learn_epochs);
            graph.learnt = AccuracyRuns { n_seeds, epochs, plan }.measure(dir, n_parts, console)?;
        }
        Ok(())
    }

    /// Fails where a server would have no node to own, and where there is nothing to train between.
    fn check(&self, dir: &Path) -> Result<()> {
        let graph = Graph::open(dir)?;
        let (n_nodes, n_parts) = (graph.book().n_nodes(), graph.book().n_parts());
        if n_parts < 2 && (!self.links.is_empty() || self.seeds > 0) {
            return Err(UsageError::new(format!(
                "--graph {}: found 1 partition, expected one for each server that --links and --seeds \
                 train with; import it with --parts 4",
                dir.display()
            ))
            .into());
        }
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
    fn measure(
        &self,
        source: &InputGraph,
        model: ModelShape,
        console: &Console,
    ) -> Result<GraphCells> {
        let mut graph = GraphCells {
            name: source.name.clone(),
            nodes: source.n_nodes,
            undirected: source.undirected,
            edges: source.n_edges,
            training_nodes: source.train.len(),
            row_bytes: source.row_bytes,
            own_parts: source.own_parts,
            cells: Vec::new(),
            batches: Vec::new(),
            timed: Vec::new(),
            learnt: Vec::new(),
        };
        let n_cuts = self.partitioner.len() * self.servers.len();
        let total = (n_cuts * self.fanout.len()) as u64;
        let setting = |fanouts, batch| {
            let (seed, iterations) = (self.seed, self.iterations);
            Setting { fanouts, batch, seed, iterations }
        };
        for (at, algorithm) in self.partitioner.iter().enumerate() {
            for &servers in &self.servers {
                let cut = ServerCut::new(source, algorithm, servers)?;
                let cell =
                    |setting| Cell::new(source, &algorithm.to_string(), &cut, setting, model);
                for Fanouts(fanouts) in &self.fanout {
                    graph.cells.push(cell(setting(fanouts, self.batch)));
                    console.at(&source.name, graph.cells.len() as u64, total);
                    console.check_reader()?;
                }
                if at == 0 && servers == self.middle_servers() {
                    let Fanouts(fanouts) = &self.fanout[0];
                    let batches = [self.batch / 4, self.batch / 2, self.batch, self.batch * 2];
                    for batch in batches.into_iter().chain([self.batch * 4]).filter(|&n| n > 0) {
                        graph.batches.push(cell(setting(fanouts, batch)));
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
}

impl Figures for HopFigures {
    fn write(&self, text: &mut String) -> fmt::Result {
        report::write(text, self)
    }

    fn charts(&self) -> Result<Vec<(String, String)>> {
        charts::charts(self)
    }
}

impl FromStr for Fanouts {
    type Err = FanoutError;

    fn from_str(text: &str) -> Result<Self, FanoutError> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}
