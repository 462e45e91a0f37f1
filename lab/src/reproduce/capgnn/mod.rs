//! `lode-lab reproduce capgnn`: halos, what they move, what is learnt, and epochs over links.

mod caches;
mod charts;
mod halos;
mod learning;
mod links;
mod report;
mod throttled;
mod ways;

use std::fmt;
use std::path::Path;

use anyhow::Result;
use clap::{Args, ValueEnum};
use lodestore_graph::partition::{Algorithm, PartitionConfig, SpringParams};
use lodestore_graph::sampler::Fanout;
use lodestore_trainer::config::FullConfig;
use lodestore_trainer::{Metric, ModelKind, Strategy, TrainConfig};
use serde::Serialize;

use crate::link_emulation::parse_rate;
use crate::reproduce::cut::{Cut, CutArgs, Source, Splits};
use crate::reproduce::output::{Figures, OutputFolder};
use lode_cli::console::Console;
use lode_cli::usage::UsageError;

use caches::{Cached, cached};
use halos::{HaloFigures, Moved, halos_of, moved};
use learning::{CapLearning, SplitCut, learn};
use links::{CapLinkRuns, over_links};
use throttled::{Throttled, throttled};
use ways::{CapWay, profiles};

/// Set CaPGNN's full-batch training, its halos and what it saves beside others.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode import --edges cora/edges.npy --undirected --order input --tensor feat=cora/features_csr.npz \\
      --tensor label=cora/labels.npy --tensor split=cora/split.npy --out cora
  lode-lab reproduce capgnn --graph cora --normalize --out capgnn

Graphs are cut again in memory for each number of partitions, by SPRING refined once; halos of hash, and of
METIS where this build has it, are set beside. Each way is trained
with each seed and each split:

  one partition      the graph as a whole
  exact              rows and gradients of halos exchanged each epoch
  zero halos         nothing exchanged: the control
  K epochs old       the same rows used for K more epochs (--staleness)
  f16, int8          narrowed before they travel
  K, int8            both, with the largest K
  rapa               RAPA's partitions for devices of which the first is half as fast

A tier of halos' features is tried at 10 to 100 % of their rows under JACA, FIFO and LRU; losses must stay
those of kept features. A graph that was imported in two partitions or more is also trained over links of --rate, and
by processes of which the first has half a processor, where there is one for each. Writes report.md,
charts and runs.json, after each graph, to --out.")]
pub(crate) struct CapFiguresArgs {
    #[command(flatten)]
    cut: CutArgs,
    /// Partitions of which halos and bytes are measured.
    #[arg(long, value_name = "P,...", value_delimiter = ',', default_value = "2,3,4,5,8",
          value_parser = clap::value_parser!(u16).range(2..=256))]
    parts: Vec<u16>,
    /// Epochs of each run.
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Which nodes train: stored as the graph has them, ids the first 60 % of the ids, random 60 %.
    #[arg(long, value_name = "SPLIT,...", value_delimiter = ',', default_value = "ids,random")]
    splits: Vec<Splits>,
    /// The model: sage, gcn or gat.
    #[arg(long, value_name = "MODEL", default_value = "gcn")]
    model: ModelKind,
    /// Layers of the model.
    #[arg(long, value_name = "L", default_value_t = 3,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    layers: usize,
    /// Width of its hidden rows.
    #[arg(long, value_name = "N", default_value_t = 256)]
    hidden: usize,
    /// Share of elements dropped in training.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    dropout: f32,
    /// Epochs that rows of halos may be old.
    #[arg(long, value_name = "K,...", value_delimiter = ',', default_value = "1,2,5,10",
          value_parser = clap::value_parser!(u32).range(1..))]
    staleness: Vec<u32>,
    /// Bits per second of links.
    #[arg(long, default_value = "1Gbit,10Gbit", value_name = "RATE,...", value_delimiter = ',',
          value_parser = parse_rate)]
    rate: Vec<f64>,
    /// Parts of the report that are made: halos (and bytes of epochs), tiers, learning, links,
    /// slow-worker.
    #[arg(
        long,
        value_name = "PART,...",
        value_delimiter = ',',
        default_value = "halos,tiers,learning,links,slow-worker"
    )]
    only: Vec<Section>,
}

/// A part of the report.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    Halos,
    Tiers,
    Learning,
    Links,
    SlowWorker,
}

/// Output of `--json`, and contents of `runs.json`.
#[derive(Serialize)]
struct CapFigures {
    seeds: u32,
    epochs: u32,
    hidden: usize,
    layers: usize,
    model: ModelKind,
    metric: Metric,
    trained_parts: u16,
    graphs: Vec<CapGraphFigures>,
}

/// All figures of a graph.
#[derive(Serialize)]
struct CapGraphFigures {
    name: String,
    nodes: u32,
    edges: u64,
    row_bytes: u64,
    halos: Vec<HaloFigures>,
    moved: Vec<Moved>,
    cached: Vec<Cached>,
    learnt: Vec<CapLearning>,
    links: Vec<CapLinkRuns>,
    throttled: Option<Throttled>,
}

impl CapFiguresArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let usual = self.usual();
        usual.validate().map_err(UsageError::of)?;
        let out = OutputFolder::new(&self.cut.out)?;
        let found = CapFigures {
            seeds: self.cut.seeds,
            epochs: self.epochs,
            hidden: self.hidden,
            layers: self.layers,
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
            strategy: Strategy::Full(FullConfig::default()),
            model: self.model,
            fanouts: vec![Fanout::All; self.layers],
            hidden: self.hidden,
            learning_rate: self.cut.learning_rate,
            dropout: self.dropout,
            epochs: self.epochs,
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
    ) -> Result<CapGraphFigures> {
        console.stage("open");
        let source = Source::open(dir)?;
        let mut graph = CapGraphFigures {
            name: source.name.clone(),
            nodes: source.n_nodes,
            edges: source.n_edges,
            row_bytes: source.row_bytes,
            halos: Vec::new(),
            moved: Vec::new(),
            cached: Vec::new(),
            learnt: Vec::new(),
            links: Vec::new(),
            throttled: None,
        };
        if self.makes(Section::Halos) {
            for &n_parts in &self.parts {
                console.stage(&format!("{} in {n_parts} partitions", source.name));
                let cut = source.cut(&refined(n_parts))?;
                let n_hops = self.layers as u32;
                graph.halos.extend(halos_of(&cut.graph(), REFINED, n_hops));
                for (name, algorithm) in controls() {
                    let control = source.cut(&PartitionConfig::new(algorithm, n_parts))?;
                    graph.halos.extend(halos_of(&control.graph(), name, n_hops));
                }
                graph.moved.push(moved(&source, &cut, usual)?);
                console.check_reader()?;
            }
        }
        let trains = [Section::Tiers, Section::Learning].map(|section| self.makes(section));
        if trains.contains(&true) {
            let cut = source.cut(&refined(self.cut.trained_parts))?;
            if trains[0] {
                console.stage(&format!("{} tiers", source.name));
                graph.cached = cached(&source, &cut, usual)?;
            }
            if trains[1] {
                graph.learnt = self.learn_all(&source, &cut.joined()?, &cut, usual, console)?;
            }
        }
        if self.makes(Section::Links) {
            console.stage("links");
            graph.links = over_links(dir, usual, &self.rate, self.cut.delay, &self.staleness)?;
        }
        if self.makes(Section::SlowWorker) {
            console.stage("a slow worker");
            graph.throttled = throttled(dir, usual)?;
        }
        Ok(graph)
    }

    /// Returns whether a part of the report is asked for.
    fn makes(&self, section: Section) -> bool {
        self.only.contains(&section)
    }

    /// Trains in all ways on `cut`, or on `whole`, the graph in one partition.
    fn learn_all(
        &self,
        source: &Source,
        whole: &Cut,
        cut: &Cut,
        usual: &TrainConfig,
        console: &Console,
    ) -> Result<Vec<CapLearning>> {
        let devices = profiles(self.cut.trained_parts)?;
        let mut learnt = Vec::new();
        for &splits in &self.splits {
            let ways = CapWay::all(&self.staleness);
            for (done, way) in (0..).zip(&ways) {
                let stage = format!("{} {}", source.name, way.label());
                console.at(&stage, done, ways.len() as u64);
                let config = way.settings(usual, &devices);
                let cut = if *way == CapWay::Whole { whole } else { cut };
                learnt.push(learn(
                    SplitCut { source, cut, splits },
                    *way,
                    &config,
                    self.cut.seeds,
                )?);
                console.check_reader()?;
            }
        }
        Ok(learnt)
    }
}

impl CapFigures {
    /// Returns whether halos were counted.
    fn has_halos(&self) -> bool {
        self.graphs.iter().any(|graph| !graph.halos.is_empty())
    }
}

impl Figures for CapFigures {
    fn write(&self, text: &mut String) -> fmt::Result {
        report::write(text, self)
    }

    fn charts(&self) -> Result<Vec<(String, String)>> {
        charts::charts(self)
    }
}

/// The partitions of the report, by name; halos of others are set beside theirs.
const REFINED: &str = "spring, refined";

/// Returns the partitioners whose halos are set beside SPRING's: METIS where it is built in.
fn controls() -> impl Iterator<Item = (&'static str, Algorithm)> {
    let known = Algorithm::all();
    let controls = [("hash", Algorithm::Hash), ("metis", Algorithm::Metis)];
    controls.into_iter().filter(move |(_, algorithm)| known.contains(algorithm))
}

/// Returns the settings of SPRING in `n_parts` partitions, refined once.
fn refined(n_parts: u16) -> PartitionConfig {
    let spring = Algorithm::Spring(SpringParams::default());
    PartitionConfig { refine_rounds: 1, ..PartitionConfig::new(spring, n_parts) }
}
