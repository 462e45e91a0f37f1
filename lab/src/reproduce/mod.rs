//! `lode-lab reproduce`: what a paper claims, measured here on links that behave like networks.

mod bars;
mod baselines;
mod capgnn;
mod charts;
mod convergence;
mod curves;
mod cut;
mod energy;
mod graphs;
mod groups;
mod hop;
mod machines;
mod massive_figures;
mod output;
mod papers;
mod rapid_figures;
mod recording;
mod report;
mod runs;
mod sdt;
mod subjects;

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use lodestore_graph::schedule::Schedule;
use serde::Serialize;

use crate::link_emulation::{LinkSpec, parse_delay, parse_rate};
use lode_cli::console::Console;
use lode_cli::human;
use lode_cli::interrupt::RemovedOnInterrupt;
use lode_cli::usage::UsageError;

use baselines::Baselines;
use capgnn::CapFiguresArgs;
use convergence::Convergence;
use energy::Energy;
use graphs::{KeptOf, Partitioning, Size, make, open};
use groups::{FAST, GraphRuns, Group, NamedLink, SLOW, charge_schedule, check_equal, link_name};
use hop::HopFiguresArgs;
use machines::Machines;
use massive_figures::MassiveFigures;
use output::{Figures, OutputFolder};
use papers::{MODELS, Published};
use rapid_figures::RapidFigures;
use recording::{Compute, Recording};
use runs::{Bench, Case, Cluster, Contestant, Run, slow_link};
use sdt::SdtFiguresArgs;
use subjects::{Origin, Subject};

/// Measure what a paper claims, and set its figures beside ours.
#[derive(Subcommand)]
#[command(after_help = "\
Example:
  lode-lab reproduce rapidgnn --out rapidgnn
  lode-lab reproduce hopgnn --graph my-graph --out hopgnn
  lode-lab reproduce sdtgnn --graph my-graph --out sdtgnn
  lode-lab reproduce capgnn --graph my-graph --out capgnn")]
pub(crate) enum ReproduceCommand {
    /// The schedule-driven one: steady cache and prefetching.
    Rapidgnn(ReproduceArgs),
    /// The score-driven one: a buffer with eviction.
    Massivegnn(ReproduceArgs),
    /// The feature-centric one: models or roots go to the features.
    Hopgnn(HopFiguresArgs),
    /// The streaming one: a local model for each partition, and averages of them.
    Sdtgnn(SdtFiguresArgs),
    /// The full-batch one: halos that are exchanged, kept, narrowed or given up.
    Capgnn(CapFiguresArgs),
}

impl ReproduceCommand {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        match self {
            Self::Rapidgnn(args) => args.run(console),
            Self::Massivegnn(args) => {
                ReproduceArgs { paper: Paper::Massivegnn, ..args }.run(console)
            }
            Self::Hopgnn(args) => args.run(console),
            Self::Sdtgnn(args) => args.run(console),
            Self::Capgnn(args) => args.run(console),
        }
    }
}

/// Train as a paper did, on links that behave like networks, and set its figures beside ours.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode-lab reproduce rapidgnn --out rapidgnn
  lode-lab reproduce rapidgnn --out reddit --graphs reddit-like --keep 2 --no-figures
  lode-lab reproduce rapidgnn --out mine --graph my-graph --batches 100,300 --repeats 5 --rate 10Gbit,1Gbit
  lode-lab reproduce massivegnn --out massivegnn --scale 0.02 --epochs 3

Graphs stand for those of the papers: generated, with their features, splits and about their cuts;
--scale 1 has their degrees and the nodes of Reddit and OGBN-Products, and a tenth of OGBN-Papers' nodes
under its batches. The graph like Reddit has fewer neighbours a node the smaller it is: at most a quarter
of a community; the report has its degree. Each worker owns
one partition, and each partition is served by a process of its own behind a link of its own. Every run is
made over the links of --rate and --delay, and the papers' graphs also over one that is solved from
RapidGNN's own speed-ups: as slow beside this machine's computing as its Table 2 implies. Who keeps rows may
keep as many as the others. --graph takes imported graphs, with tensors feat, label and split.

--compute replay:FILE has steps sleep what was recorded elsewhere, so that servers, links and prefetchers have
the cores. FILE has {\"source\": \"where it is from\", \"seconds\": {\"1000\": [0.057]}}: by roots of a batch, the
seconds of one step for all, or of each step of an epoch, which the figures of the papers' graphs do not take.
A checksum of its rows then stands for each loss.

Writes report.md, a chart for each link and figure, and runs.json, after each graph, to --out; all losses
of one batch size must be equal bit for bit, or it fails.")]
pub(crate) struct ReproduceArgs {
    #[arg(skip)]
    paper: Paper,
    /// Folder of the report, which must not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Nodes of each graph and roots of each batch, in those of the papers.
    #[arg(long, value_name = "X", default_value_t = 0.05, value_parser = parse_scale)]
    scale: f64,
    /// Only these graphs; all unless given, and none with --graph.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',',
          value_parser = MODELS.map(|model| model.name))]
    graphs: Vec<String>,
    /// A graph of your own, which `lode import` has cut into a partition for each worker; repeat
    /// for several. The figures that need graphs of other cuts leave it out.
    #[arg(long, value_name = "DIR")]
    graph: Vec<PathBuf>,
    /// Roots of a batch and worker, in place of the papers' at --scale.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse_batch)]
    batches: Vec<usize>,
    /// Runs of each cell, in turns: the median is in the tables, with the range.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Computation of batches: model, or replay:FILE, which sleeps recorded times.
    #[arg(long, value_name = "HOW", default_value = "model")]
    compute: Compute,
    /// Leave out the figures and other baselines beside the tables of all contestants, which have
    /// runs of their own.
    #[arg(long)]
    no_figures: bool,
    /// Leave out the links that are solved from RapidGNN's speed-ups.
    #[arg(long)]
    no_solved_links: bool,
    /// Rows that each worker may keep, as a share of those that it does not own (rapidgnn) or of
    /// its halo (massivegnn). They are in two hot sets of half of them, in the oracle's tier, or in
    /// MassiveGNN's buffer. With 2 a hot set has all.
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
    /// Bits per second of links; several for rapidgnn.
    #[arg(long, default_value = "10Gbit", value_name = "RATE,...", value_delimiter = ',',
          value_parser = parse_rate)]
    rate: Vec<f64>,
    /// Delay of all links.
    #[arg(long, default_value = "100us", value_name = "TIME", value_parser = parse_delay)]
    delay: Duration,
}

/// A paper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Paper {
    /// The schedule-driven one: steady cache and prefetching.
    #[default]
    Rapidgnn,
    /// The score-driven one: a buffer with eviction.
    Massivegnn,
}

impl Paper {
    fn contestants(self) -> &'static [Contestant] {
        use Contestant::{
            Massive, MassiveKept, Ondemand, Rapid, RapidCache, RapidOracle, RapidPrefetch,
        };
        match self {
            Self::Rapidgnn => &[Ondemand, RapidPrefetch, RapidCache, Rapid, RapidOracle],
            Self::Massivegnn => &[Ondemand, MassiveKept, Massive, Rapid, RapidOracle],
        }
    }
}

/// Output of `--json`, and contents of `runs.json`.
#[derive(Serialize)]
struct Reproduction {
    paper: Paper,
    workers: u16,
    epochs: u32,
    scale: f64,
    keep: f64,
    repeats: u32,
    /// Computation in place of the models.
    recording: Option<Recording>,
    has_figures: bool,
    /// Whether the system counts energy.
    energy_counters: bool,
    graphs: Vec<GraphRuns>,
    /// RapidGNN's other baselines.
    baselines: Baselines,
    /// Fig. 6 of either.
    machines: Machines,
    /// RapidGNN's Fig. 9.
    convergence: Convergence,
    /// RapidGNN's other figures, and MassiveGNN's.
    rapid_figures: RapidFigures,
    massive_figures: MassiveFigures,
}

impl Figures for Reproduction {
    fn write(&self, text: &mut String) -> fmt::Result {
        report::write(text, self)
    }

    fn charts(&self) -> Result<Vec<(String, String)>> {
        let mut charts = charts::charts(self)?;
        let figures = match self.paper {
            Paper::Rapidgnn => self.rapid_figures.charts()?,
            Paper::Massivegnn if !self.has_figures => Vec::new(),
            Paper::Massivegnn => self.massive_figures.charts()?,
        };
        charts.extend(figures.into_iter().map(|(name, svg)| (name.to_owned(), svg)));
        if !self.has_figures {
            return Ok(charts);
        }
        if self.paper == Paper::Rapidgnn {
            charts.push(("fig9.svg".to_owned(), self.convergence.curves().svg()?));
        }
        if !self.machines.is_empty() {
            charts.push(("fig6.svg".to_owned(), self.machines.curves(self.paper).svg()?));
        }
        Ok(charts)
    }
}

impl Reproduction {
    /// Returns whether anything was measured over links of this kind.
    fn has_links(&self, link: &str) -> bool {
        self.graphs.iter().flat_map(|graph| &graph.groups).any(|group| group.link == link)
    }

    /// Returns the links that figures of one kind are over: the solved ones, if there are any.
    fn figure_link(&self) -> &'static str {
        if self.has_links(SLOW) { SLOW } else { FAST }
    }

    /// Returns the rates that were asked for, each once, in the order of their runs.
    fn rates(&self) -> Vec<f64> {
        let groups = self.graphs.iter().flat_map(|graph| &graph.groups);
        let mut rates = Vec::new();
        for group in groups.filter(|group| group.link == FAST) {
            if !rates.contains(&group.spec.rate_bits) {
                rates.push(group.spec.rate_bits);
            }
        }
        rates
    }

    /// Measures the figures of the last graph and the baselines beside its table.
    fn draw(&mut self, of: Bench<'_>, batch: usize, cluster: &Cluster<'_>) -> Result<()> {
        let groups = self.graphs.last().map_or(&[][..], |graph| &graph.groups);
        let slow = groups.iter().rfind(|group| group.batch == batch).map(|group| group.spec);
        let slow = slow.context("a graph without a link; give --rate")?;
        match self.paper {
            Paper::Rapidgnn => self.baselines.measure(of, groups, cluster)?,
            Paper::Massivegnn => {
                self.massive_figures.follow(of, batch, cluster)?;
                self.massive_figures.sweep(of, batch, slow, cluster)?;
            }
        }
        self.machines.measure(self.paper, of, batch, slow)
    }
}

impl ReproduceArgs {
    fn run(self, console: &Console) -> Result<()> {
        if self.paper == Paper::Massivegnn && self.rate.len() > 1 {
            return Err(UsageError::new("--rate: massivegnn takes one rate").into());
        }
        let subjects = Subject::all(&self.graphs, &self.graph, &self.batches, self.scale)?;
        let recording = self.compute.recording()?;
        // Before anything is made.
        for subject in &subjects {
            let has_figures = subject.model().is_some() && !self.no_figures;
            for (batch, _) in &subject.batches {
                let Some(recording) = &recording else { break };
                recording.of(*batch)?;
                if has_figures {
                    recording.check_figures(*batch)?;
                }
            }
        }
        let out = OutputFolder::new(&self.out)?;
        let scratch = tempfile::Builder::new().prefix("graphs-").tempdir_in(&self.out)?;
        let _interrupt = RemovedOnInterrupt::watch(scratch.path())?;
        let found = Reproduction {
            paper: self.paper,
            workers: self.workers,
            epochs: self.epochs,
            scale: self.scale,
            keep: self.keep,
            repeats: self.repeats,
            recording,
            has_figures: !self.no_figures,
            energy_counters: Energy::start().is_some(),
            graphs: Vec::new(),
            baselines: Baselines::default(),
            machines: Machines::default(),
            convergence: Convergence::default(),
            rapid_figures: RapidFigures::default(),
            massive_figures: MassiveFigures::default(),
        };
        out.report_each(&subjects, found, console, |found, subject| {
            self.measure(subject, scratch.path(), &out, found, console)
        })
    }

    /// Makes or opens a graph, and measures all of it.
    fn measure(
        &self,
        subject: &Subject,
        scratch: &Path,
        out: &OutputFolder<'_>,
        found: &mut Reproduction,
        console: &Console,
    ) -> Result<()> {
        let (scale, n_workers, kept_share) = (self.scale, self.workers, self.keep);
        let kept_of = match self.paper {
            Paper::Rapidgnn => KeptOf::Others,
            Paper::Massivegnn => KeptOf::Halo,
        };
        let size = Size { scale, n_workers, kept_share, kept_of, cut: Partitioning::Good };
        let made = match &subject.origin {
            Origin::Model(model) => make(model, size, scratch, console)?,
            Origin::Folder(folder) => open(folder, size)?,
        };
        let recording = found.recording.clone();
        let cluster = Cluster::start(&made, scratch, self.workers)?;
        let cluster = cluster.replaying(recording.as_ref());
        let trained = self.train_on(subject, &cluster, scratch, found, console)?;
        found.graphs.push(trained);
        let batch = subject.middle_batch();
        if !self.no_figures && self.paper == Paper::Rapidgnn {
            let epochs = self.epochs.max(LEARNT_EPOCHS);
            found.convergence.measure(&subject.name, batch, epochs, &cluster, console)?;
        }
        if let Some(model) = subject.model().filter(|_| !self.no_figures) {
            let (epochs, repeats, recording) = (self.epochs, self.repeats, recording.as_ref());
            let of = Bench { model, size, epochs, repeats, recording, scratch, console };
            // The tables' results are written first, whatever becomes of the figures.
            out.write(found)?;
            found.draw(of, batch, &cluster)?;
        }
        cluster.stop()?;
        if subject.model().is_some() {
            fs::remove_dir_all(&made.dir)?;
        }
        Ok(())
    }

    /// Runs all contestants with each batch size over each link.
    fn train_on(
        &self,
        subject: &Subject,
        cluster: &Cluster<'_>,
        scratch: &Path,
        found: &mut Reproduction,
        console: &Console,
    ) -> Result<GraphRuns> {
        let made = cluster.made;
        let mut groups = Vec::new();
        for &(batch, published) in &subject.batches {
            let schedule = scratch.join(format!("{}-{batch}.schedule", subject.name));
            let of_batch = OfBatch { name: &subject.name, batch, published, schedule: &schedule };
            // Without a link; it also reads what all others then find in memory.
            let case = self.case(Contestant::Ondemand, of_batch);
            let plain = cluster.run(case, None, console)?;
            let given = |&rate_bits: &f64| NamedLink {
                name: FAST,
                spec: LinkSpec { rate_bits, delay: self.delay },
            };
            let mut links: Vec<_> = self.rate.iter().map(given).collect();
            if let Some(model) = subject.model().filter(|_| !self.no_solved_links) {
                let spec = slow_link(&plain, model.ratio(), self.delay);
                links.push(NamedLink { name: SLOW, spec });
            }
            let mut of_links = Vec::new();
            for link in links {
                of_links.push(self.compare(of_batch, link, &plain, cluster, console)?);
            }
            charge_schedule(&mut of_links);
            groups.append(&mut of_links);
            if self.paper == Paper::Rapidgnn {
                let opened = Schedule::open(&schedule)?;
                found.rapid_figures.count(&subject.name, batch, made, &opened)?;
            }
            fs::remove_file(&schedule)?;
        }
        Ok(GraphRuns {
            name: subject.name.clone(),
            stands_for: subject.model().map(|model| model.stands_for),
            nodes: made.nodes,
            edges: made.edges,
            full_degree: subject.model().map(|model| model.degree),
            row_bytes: made.row_bytes,
            edge_cut: made.edge_cut,
            halo_ratio: made.halo_ratio,
            kept_rows: made.kept_rows,
            groups,
        })
    }

    fn case<'a>(&self, contestant: Contestant, of: OfBatch<'a>) -> Case<'a> {
        let usual = Case::usual(contestant, of.batch, self.epochs);
        Case { schedule: contestant.has_schedule().then_some(of.schedule), ..usual }
    }

    /// Runs all contestants over one link, in turns; all must learn what `plain` did.
    fn compare(
        &self,
        of: OfBatch<'_>,
        NamedLink { name: link, spec }: NamedLink,
        plain: &Run,
        cluster: &Cluster<'_>,
        console: &Console,
    ) -> Result<Group> {
        let contestants = self.paper.contestants();
        let mut repeats: Vec<Vec<Run>> = vec![Vec::new(); contestants.len()];
        for turn in 0..self.repeats as usize * contestants.len() {
            let which = turn % contestants.len();
            let contestant = contestants[which];
            let run = cluster.run(self.case(contestant, of), Some(spec), console)?;
            check_equal(plain, &run, of.name)?;
            console.line(&format!(
                "  {:<14} {:<22} batch {:<5} {:<21} {:>9} a step",
                of.name,
                link_name(spec),
                of.batch,
                contestant.label(),
                human::seconds(run.step_seconds),
            ))?;
            repeats[which].push(run);
        }
        Ok(Group {
            link,
            spec,
            batch: of.batch,
            published: of.published,
            runs: repeats.into_iter().filter_map(Run::middle_of).collect(),
        })
    }
}

/// A batch size of a graph, and where its schedule is kept for all runs.
#[derive(Clone, Copy)]
struct OfBatch<'a> {
    name: &'a str,
    batch: usize,
    published: Option<Published>,
    schedule: &'a Path,
}

/// Epochs of the runs of Fig. 9, at least.
const LEARNT_EPOCHS: u32 = 10;

fn parse_scale(text: &str) -> Result<f64, String> {
    let scale = text.parse::<f64>().ok().filter(|scale| (0.0001..=10.0).contains(scale));
    scale.ok_or_else(|| "expected a number from 0.0001 to 10".to_owned())
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=2.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 2".to_owned())
}

fn parse_batch(text: &str) -> Result<usize, String> {
    let batch = text.parse::<usize>().ok().filter(|batch| (1..=1 << 24).contains(batch));
    batch.ok_or_else(|| "expected a number of roots from 1 to 16777216".to_owned())
}
