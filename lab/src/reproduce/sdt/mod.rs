//! `lode-lab reproduce sdtgnn`: partitioners, local models and their averages, memory, and epochs
//! over links.

mod charts;
mod learning;
mod links;
mod report;

use std::fmt;
use std::path::Path;

use anyhow::Result;
use clap::Args;
use lodestore_graph::partition::{
    Algorithm, PartitionConfig, PartitionReport, SpringParams, partition,
};
use lodestore_trainer::config::OndemandConfig;
use lodestore_trainer::{Metric, ModelKind, Strategy, TrainConfig};
use serde::Serialize;

use crate::link_emulation::parse_rate;
use crate::reproduce::cut::{CutArgs, Source};
use crate::reproduce::output::{Figures, OutputFolder};
use lode_cli::console::Console;
use lode_cli::flags::FanoutArgs;
use lode_cli::usage::UsageError;

use learning::{Held, SdtLearning, SdtWay, WAYS, hold, learn};
use links::{SdtLinkRuns, over_links};

/// Set SDT-GNN's partitioner, its averages and its memory beside others.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode import --edges cora/edges.npy --undirected --order input --tensor feat=cora/features_csr.npz \\
      --tensor label=cora/labels.npy --tensor split=cora/split.npy --out cora
  lode-lab reproduce sdtgnn --graph cora --normalize --batch 32 --out sdtgnn

Graphs are cut again in memory for each number of partitions. Of a graph in one partition, in the order of its
input, partitioners get the stream that the input is. Each way is trained with each seed:

  whole graph            one worker on all of it
  gradients averaged     a worker for each partition, gradients averaged each step  (ondemand)
  sdt                    a local model for each partition, averaged each epoch      (sdt)
  sdt, moments ...       the same with --optimizer-state local, reset
  sdt, halo of 1 hop     the same with --halo-hops 1
  averaged once          local models averaged after the last epoch, and to be measured
  never averaged         the mean of the accuracies of local models

A graph that was imported in two partitions or more is also trained through a server for each of them, over
links of --rate. Writes report.md, charts and runs.json, after each graph, to --out.")]
pub(crate) struct SdtFiguresArgs {
    #[command(flatten)]
    cut: CutArgs,
    /// Partitions of partitioners and of memory.
    #[arg(long, value_name = "P,...", value_delimiter = ',', default_value = "4,8,16",
          value_parser = clap::value_parser!(u16).range(2..=256))]
    parts: Vec<u16>,
    /// Epochs of each run.
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Roots of a batch.
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 24))]
    batch: usize,
    #[command(flatten)]
    fanout: FanoutArgs,
    /// The model: sage, gcn or gat.
    #[arg(long, value_name = "MODEL", default_value = "sage")]
    model: ModelKind,
    /// Width of its hidden rows.
    #[arg(long, value_name = "N", default_value_t = 64)]
    hidden: usize,
    /// Bits per second of links.
    #[arg(long, default_value = "100Mbit,1Gbit", value_name = "RATE,...", value_delimiter = ',',
          value_parser = parse_rate)]
    rate: Vec<f64>,
    /// Only the figures of partitioners and memory.
    #[arg(long)]
    no_training: bool,
}

/// Output of `--json`, and contents of `runs.json`.
#[derive(Serialize)]
struct SdtFigures {
    seeds: u32,
    epochs: u32,
    batch: usize,
    model: ModelKind,
    metric: Metric,
    trained_parts: u16,
    graphs: Vec<SdtGraphFigures>,
}

/// All figures of a graph.
#[derive(Serialize)]
struct SdtGraphFigures {
    name: String,
    nodes: u32,
    edges: u64,
    row_bytes: u64,
    partitioners: Vec<Partitioned>,
    learnt: Vec<SdtLearning>,
    held: Vec<Held>,
    links: Vec<SdtLinkRuns>,
}

impl SdtFiguresArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let usual = self.usual();
        usual.validate().map_err(UsageError::of)?;
        let out = OutputFolder::new(&self.cut.out)?;
        let found = SdtFigures {
            seeds: self.cut.seeds,
            epochs: self.epochs,
            batch: self.batch,
            model: self.model,
            metric: self.cut.metric,
            trained_parts: self.cut.trained_parts,
            graphs: Vec::new(),
        };
        out.report_each(&self.cut.graph, found, console, |found, dir| {
            found.graphs.push(self.measure(dir, &usual, console)?);
            Ok(())
        })
    }

    /// Returns the settings that all ways share.
    fn usual(&self) -> TrainConfig {
        TrainConfig {
            strategy: Strategy::Ondemand(OndemandConfig::default()),
            model: self.model,
            fanouts: self.fanout.fanout.clone(),
            hidden: self.hidden,
            learning_rate: self.cut.learning_rate,
            epochs: self.epochs,
            batch_size: self.batch,
            normalize: self.cut.normalize,
            metric: self.cut.metric,
            ..TrainConfig::default()
        }
    }

    fn measure(
        &self,
        dir: &Path,
        usual: &TrainConfig,
        console: &Console,
    ) -> Result<SdtGraphFigures> {
        console.stage("open");
        let source = Source::open(dir)?;
        let mut graph = SdtGraphFigures {
            name: source.name.clone(),
            nodes: source.n_nodes,
            edges: source.n_edges,
            row_bytes: source.row_bytes,
            partitioners: Vec::new(),
            learnt: Vec::new(),
            held: Vec::new(),
            links: Vec::new(),
        };
        let refined = |n_parts| PartitionConfig {
            refine_rounds: 1,
            ..PartitionConfig::new(Algorithm::Spring(SpringParams::default()), n_parts)
        };
        let whole = source.cut(&refined(1))?;
        graph.held.push(hold(&source, &whole, 1, usual)?);
        for &n_parts in &self.parts {
            console.stage(&format!("{} in {n_parts} partitions", source.name));
            graph.partitioners.extend(compare(&source, n_parts)?);
            let cut = source.cut(&refined(n_parts))?;
            for workers in [1, 2] {
                graph.held.push(hold(&source, &cut, workers, usual)?);
            }
            console.check_reader()?;
        }
        if self.no_training {
            return Ok(graph);
        }
        let cut = source.cut(&refined(self.cut.trained_parts))?;
        for (done, way) in (0..).zip(WAYS) {
            console.at(&format!("{} {}", source.name, way.label()), done, WAYS.len() as u64);
            let cut = if way == SdtWay::Whole { &whole } else { &cut };
            graph.learnt.push(learn(&source, cut, way, usual, self.cut.seeds)?);
            console.check_reader()?;
        }
        graph.links = over_links(dir, usual, &self.rate, self.cut.delay, console)?;
        Ok(graph)
    }
}

impl Figures for SdtFigures {
    fn write(&self, text: &mut String) -> fmt::Result {
        report::write(text, self)
    }

    fn charts(&self) -> Result<Vec<(String, String)>> {
        charts::charts(self)
    }
}

/// Result of a partitioner on a graph.
#[derive(Serialize)]
struct Partitioned {
    name: String,
    parts: u16,
    replication_factor: f64,
    edge_cut: f64,
    node_balance: f64,
    seconds: f64,
    /// SPRING: clusters of the clustering pass, and those left after merging.
    clusters: Option<[u32; 2]>,
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
fn compare(source: &Source, n_parts: u16) -> Result<Vec<Partitioned>> {
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
