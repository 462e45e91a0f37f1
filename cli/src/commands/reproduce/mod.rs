//! `lode reproduce`: what a paper claims, measured here on links that behave like networks.

mod bars;
mod baselines;
mod bench;
mod charts;
mod curves;
mod energy;
mod graphs;
mod machines;
mod massive_figures;
mod papers;
mod rapid_figures;
mod report;
mod runs;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::console::Console;
use crate::human;
use crate::interrupt::RemovedOnInterrupt;
use crate::shaping::{LinkSpec, parse_delay, parse_rate};

use baselines::Baselines;
use bench::Bench;
use energy::Energy;
use graphs::{Cut, KeptOf, Made, Size, make};
use machines::Machines;
use massive_figures::MassiveFigures;
use papers::{MODELS, Model};
use rapid_figures::RapidFigures;
use runs::{Case, Cluster, Contestant, Run, slow_link};

/// Train as a paper did, on links that behave like networks, and set its figures beside ours.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode reproduce rapidgnn --out rapidgnn
  lode reproduce rapidgnn --out reddit --graphs reddit-like --keep 2 --no-figures
  lode reproduce massivegnn --out massivegnn --scale 0.02 --epochs 3

Graphs stand for those of the papers: generated, with their features, splits and about their cuts;
--scale 1 has their degrees and the nodes of Reddit and OGBN-Products, and a tenth of OGBN-Papers' nodes
under its batches. The graph like Reddit has fewer neighbours a node the smaller it is: at most a quarter
of a community; the report has its degree. Each worker owns
one partition, and each partition is served by a process of its own behind a link of its own. Every run is
made over two kinds of link: the one of --rate and --delay, and one as slow beside this machine's computing
as RapidGNN's Table 2 implies. Who keeps rows may keep as many as the others.

Writes report.md, a chart for each link and figure, and runs.json, after each graph, to --out; all losses
of one batch size must be equal bit for bit, or it fails.")]
pub(crate) struct ReproduceArgs {
    /// Which paper.
    #[arg(value_name = "PAPER")]
    paper: Paper,
    /// Folder of the report, which must not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Nodes of each graph and roots of each batch, in those of the papers.
    #[arg(long, value_name = "X", default_value_t = 0.05, value_parser = parse_scale)]
    scale: f64,
    /// Only these graphs; all unless given.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',',
          value_parser = MODELS.map(|model| model.name))]
    graphs: Vec<String>,
    /// Leave out the figures and other baselines beside the tables of all contestants, which have runs of
    /// their own.
    #[arg(long)]
    no_figures: bool,
    /// Rows that each worker may keep, as a share of those that it does not own (rapidgnn) or of its halo
    /// (massivegnn): in two hot sets of half of them, in the oracle's tier, or in MassiveGNN's buffer.
    /// With 2 a hot set has all.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = parse_share)]
    keep: f64,
    /// Epochs of each run.
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Workers, partitions and servers.
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(2..=64))]
    workers: u16,
    /// Bits per second of the first kind of link.
    #[arg(long, default_value = "10Gbit", value_name = "RATE", value_parser = parse_rate)]
    rate: f64,
    /// Delay of both kinds of link.
    #[arg(long, default_value = "100us", value_name = "TIME", value_parser = parse_delay)]
    delay: Duration,
}

/// A paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Paper {
    /// The schedule-driven one: steady cache and prefetching.
    Rapidgnn,
    /// The score-driven one: a buffer with eviction.
    Massivegnn,
}

impl Paper {
    fn contestants(self) -> &'static [Contestant] {
        use Contestant::{Massive, MassiveKept, Ondemand, Rapid, RapidOracle};
        match self {
            Self::Rapidgnn => &[Ondemand, Rapid, RapidOracle],
            Self::Massivegnn => &[Ondemand, MassiveKept, Massive, Rapid, RapidOracle],
        }
    }
}

/// What `--json` prints, and what `runs.json` holds.
#[derive(Serialize)]
struct Reproduction {
    paper: Paper,
    workers: u16,
    epochs: u32,
    scale: f64,
    keep: f64,
    has_figures: bool,
    /// Whether the system counts energy.
    energy_counters: bool,
    graphs: Vec<GraphRuns>,
    /// RapidGNN's other baselines.
    baselines: Baselines,
    /// Fig. 6 of either.
    machines: Machines,
    /// RapidGNN's other figures, and MassiveGNN's.
    rapid_figures: RapidFigures,
    massive_figures: MassiveFigures,
}

impl Reproduction {
    /// Measures what the figures of the last graph show, and what stands beside its table.
    fn draw(&mut self, of: Bench<'_>, made: &Made, cluster: &Cluster) -> Result<()> {
        let slow = self.slow_link();
        match self.paper {
            Paper::Rapidgnn => {
                let groups = self.graphs.last().map_or(&[][..], |graph| &graph.groups);
                self.baselines.measure(of, groups, made, cluster)?;
                self.rapid_figures.count(of, made, cluster)?;
            }
            Paper::Massivegnn => {
                self.massive_figures.follow(of, made, cluster)?;
                self.massive_figures.sweep(of, made, cluster, slow)?;
            }
        }
        self.machines.measure(self.paper, of, slow)
    }

    /// The slow link of the graph that was last: that of its middle batch size.
    fn slow_link(&self) -> LinkSpec {
        let groups = self.graphs.last().map_or(&[][..], |graph| &graph.groups);
        let slow: Vec<&Group> = groups.iter().filter(|group| group.link == SLOW).collect();
        let of_none = LinkSpec { rate_bits: 1e9, delay: Duration::ZERO };
        slow.get(slow.len() / 2).map_or(of_none, |group| group.spec())
    }
}

/// All runs on one graph.
#[derive(Serialize)]
struct GraphRuns {
    name: &'static str,
    stands_for: &'static str,
    nodes: u32,
    /// Undirected.
    edges: u64,
    /// Mean degree at full size, both directions counted.
    full_degree: f32,
    row_bytes: u64,
    edge_cut: f64,
    /// Nodes of a partition's halo over its own.
    halo_ratio: f64,
    /// Rows that each worker may keep.
    kept_rows: u32,
    groups: Vec<Group>,
}

/// Runs of all contestants that differ in nothing else.
#[derive(Serialize)]
struct Group {
    link: &'static str,
    rate_bits: f64,
    delay_seconds: f64,
    batch: usize,
    /// The paper's.
    published_batch: u32,
    /// The baseline first.
    runs: Vec<Run>,
}

impl Group {
    /// The link of its runs.
    fn spec(&self) -> LinkSpec {
        let (rate_bits, delay) = (self.rate_bits, Duration::from_secs_f64(self.delay_seconds));
        LinkSpec { rate_bits, delay }
    }
}

/// The link that was asked for.
const FAST: &str = "fast";
/// The link on which the baseline pulls as long, beside its computing, as the paper's Table 2 implies.
const SLOW: &str = "slow";

impl ReproduceArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        fs::create_dir(&self.out)
            .with_context(|| format!("cannot make the folder {}", self.out.display()))?;
        let scratch = tempfile::Builder::new().prefix("graphs-").tempdir_in(&self.out)?;
        let _interrupt = RemovedOnInterrupt::watch(scratch.path())?;
        let mut found = Reproduction {
            paper: self.paper,
            workers: self.workers,
            epochs: self.epochs,
            scale: self.scale,
            keep: self.keep,
            has_figures: !self.no_figures,
            energy_counters: Energy::start().is_some(),
            graphs: Vec::new(),
            baselines: Baselines::default(),
            machines: Machines::default(),
            rapid_figures: RapidFigures::default(),
            massive_figures: MassiveFigures::default(),
        };
        let is_asked = |model: &&Model| {
            self.graphs.is_empty() || self.graphs.iter().any(|name| name == model.name)
        };
        for model in MODELS.iter().filter(is_asked) {
            let (scale, n_workers, kept_share) = (self.scale, self.workers, self.keep);
            let kept_of = match self.paper {
                Paper::Rapidgnn => KeptOf::Others,
                Paper::Massivegnn => KeptOf::Halo,
            };
            let size = Size { scale, n_workers, kept_share, kept_of, cut: Cut::Good };
            let made = make(model, size, scratch.path(), console)?;
            let cluster = Cluster::start(&made.dir, scratch.path(), self.workers)?;
            found.graphs.push(self.train_on(model, &made, &cluster, console)?);
            let of = Bench { model, size, epochs: self.epochs, scratch: scratch.path(), console };
            if !self.no_figures {
                found.draw(of, &made, &cluster)?;
            }
            cluster.stop()?;
            fs::remove_dir_all(&made.dir)?;
            self.write(&found)?;
        }
        console.report(&found, |found| {
            format!("{}\nWritten to {}", report::markdown(found), self.out.display())
        })
    }

    /// Writes what has been found so far.
    fn write(&self, found: &Reproduction) -> Result<()> {
        let write = |name: &str, content: &str| {
            let path = self.out.join(name);
            fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
        };
        write("report.md", &report::markdown(found))?;
        write("runs.json", &serde_json::to_string_pretty(found)?)?;
        charts::charts(found)?.iter().try_for_each(|(name, svg)| write(name, svg))?;
        if self.no_figures {
            return Ok(());
        }
        let figures = match self.paper {
            Paper::Rapidgnn => found.rapid_figures.charts(found)?,
            Paper::Massivegnn => found.massive_figures.charts()?,
        };
        figures.iter().try_for_each(|(name, svg)| write(name, svg))?;
        write("fig6.svg", &found.machines.curves(self.paper).svg()?)
    }

    fn train_on(
        &self,
        model: &Model,
        made: &Made,
        cluster: &Cluster,
        console: &Console,
    ) -> Result<GraphRuns> {
        let mut groups = Vec::new();
        for (batch, published) in model.batches(self.scale).into_iter().zip(model.rapidgnn) {
            let case = |contestant| Case::usual(contestant, batch, self.epochs);
            let plain = cluster.run(made, case(Contestant::Ondemand), None, console)?;
            let fast = LinkSpec { rate_bits: self.rate, delay: self.delay };
            let slow = slow_link(&plain, model.ratio(), self.delay);
            for (link, spec) in [(FAST, fast), (SLOW, slow)] {
                let mut runs = Vec::new();
                for &contestant in self.paper.contestants() {
                    let run = cluster.run(made, case(contestant), Some(spec), console)?;
                    check_equal(&plain, &run, model.name)?;
                    console.line(&format!(
                        "  {:<14} {link:<9} batch {batch:<5} {:<21} {:>9} a step",
                        model.name,
                        contestant.label(),
                        human::seconds(run.step_seconds),
                    ))?;
                    runs.push(run);
                }
                groups.push(Group {
                    link,
                    rate_bits: spec.rate_bits,
                    delay_seconds: spec.delay.as_secs_f64(),
                    batch,
                    published_batch: published.batch,
                    runs,
                });
            }
        }
        Ok(GraphRuns {
            name: model.name,
            stands_for: model.stands_for,
            nodes: made.nodes,
            edges: made.edges,
            full_degree: model.degree,
            row_bytes: made.row_bytes,
            edge_cut: made.edge_cut,
            halo_ratio: made.halo_ratio,
            kept_rows: made.kept_rows,
            groups,
        })
    }
}

/// How rows travel must not change what is learnt.
fn check_equal(expected: &Run, found: &Run, graph: &str) -> Result<()> {
    let same = expected.losses.len() == found.losses.len()
        && expected.losses.iter().zip(&found.losses).all(|(a, b)| a.to_bits() == b.to_bits());
    if !same || expected.parameters_digest != found.parameters_digest {
        bail!("{} learnt something else than ondemand on {graph}", found.contestant.label());
    }
    Ok(())
}

fn parse_scale(text: &str) -> Result<f64, String> {
    let scale = text.parse::<f64>().ok().filter(|scale| (0.0001..=10.0).contains(scale));
    scale.ok_or_else(|| "expected a number from 0.0001 to 10".to_owned())
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=2.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 2".to_owned())
}
