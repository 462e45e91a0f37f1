//! `lode quickstart`: generate, import, serve, train twice, compare.

mod by_hand;
mod comparison;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use lodestore_client::ClientConfig;
use lodestore_graph::generate::GraphRecipe;
use lodestore_import::{ImportConfig, ImportReport};
use lodestore_store::OpenOptions;
use lodestore_trainer::{Strategy, TrainConfig, TrainReport};
use serde::Serialize;

use super::generate::{GenerateConfig, GenerateReport, generate};
use super::import::import;
use super::train::{Form, TierChoice, TrainRun, Trained, train};
use crate::console::Console;
use crate::human;
use crate::interrupt::RemovedOnInterrupt;

use crate::child_servers::{self, ChildServers};

/// Partitions, and workers: one each.
const PARTS: u16 = 4;
/// Partitions that each server holds.
const SERVED: [&[u16]; 2] = [&[0, 1], &[2, 3]];
/// Communities of the graph.
const CLASSES: u32 = 16;
const SEED: u64 = 1;
/// Roots per batch of a worker.
const BATCH: usize = 256;
/// Folders below the one of everything.
const RAW: &str = "raw";
const GRAPH: &str = "graph";

/// Generate a graph, import it, serve it from two processes, train through them, and compare.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode quickstart
  lode quickstart --nodes 20000 --epochs 2 --cleanup")]
pub(crate) struct QuickstartArgs {
    /// Number of nodes.
    #[arg(long, value_name = "N", default_value_t = 200_000,
          value_parser = clap::value_parser!(u32).range(100..))]
    nodes: u32,
    /// Mean degree.
    #[arg(long, value_name = "D", default_value_t = 20.0)]
    degree: f32,
    /// Features per node.
    #[arg(long, value_name = "F", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..))]
    dim: u32,
    /// Epochs of each training run.
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Folder for everything, made if it does not exist; a new temporary one unless given.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Remove the folder's content at the end.
    #[arg(long)]
    cleanup: bool,
}

/// Output of `--json`.
#[derive(Serialize)]
struct QuickstartReport {
    dir: String,
    generate: GenerateReport,
    import: ImportReport,
    servers: Vec<child_servers::Address>,
    ondemand: TrainReport,
    rapid: TrainReport,
    losses_identical: bool,
    seconds: f64,
    kept: bool,
}

/// Places and sizes of a quickstart.
struct QuickstartConfig {
    dir: Dir,
    cleanup: bool,
    generate: GenerateConfig,
    import: ImportConfig,
    train: TrainConfig,
}

/// The folder of everything.
struct Dir {
    path: PathBuf,
    /// It was made here, so an interrupted run takes it along.
    _interrupt: Option<RemovedOnInterrupt>,
}

impl Dir {
    fn make(asked: Option<PathBuf>) -> Result<Self> {
        let Some(path) = asked else {
            let path = tempfile::Builder::new().prefix("lode-quickstart-").tempdir()?.keep();
            let interrupt = Some(RemovedOnInterrupt::watch(&path)?);
            return Ok(Self { path, _interrupt: interrupt });
        };
        std::fs::create_dir_all(&path)
            .with_context(|| format!("{}: cannot create the folder", path.display()))?;
        Ok(Self { path, _interrupt: None })
    }
}

impl QuickstartArgs {
    fn configure(self) -> Result<QuickstartConfig> {
        let recipe = GraphRecipe {
            n_nodes: self.nodes,
            mean_degree: self.degree,
            n_classes: CLASSES,
            seed: SEED,
            ..GraphRecipe::default()
        };
        let dir = Dir::make(self.dir)?;
        let (raw, graph) = (dir.path.join(RAW), dir.path.join(GRAPH));
        let generate = GenerateConfig { recipe, dim: self.dim, out: raw };
        let import = generate.import(PARTS, graph);
        let train = TrainConfig {
            workers: PARTS.into(),
            epochs: self.epochs,
            evaluate_every: 0,
            batch_size: BATCH,
            n_hot: self.nodes as usize / 4,
            seed: SEED,
            ..TrainConfig::default()
        };
        Ok(QuickstartConfig { dir, cleanup: self.cleanup, generate, import, train })
    }

    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let start = Instant::now();
        let config = self.configure()?;
        let dir = &config.dir.path;
        console.line(&format!("Everything goes to {}\n", dir.display()))?;
        let made = generate(&config.generate, console)?;
        say(console, "generate", &made_text(&made), made.seconds)?;
        let graph = import(&config.import, console)?;
        say(console, "import", &imported_text(&graph), graph.seconds)?;

        let serving = Instant::now();
        console.stage("serve");
        let servers = ChildServers::start(&config.import.out, dir, &SERVED)?;
        say(console, "serve", &servers.text(), serving.elapsed().as_secs_f64())?;
        let train = |strategy| run_strategy(strategy, &config, &servers, console);
        let (ondemand, rapid) = (train(Strategy::Ondemand)?, train(Strategy::Rapid)?);
        let addresses = servers.stop()?;

        if config.cleanup {
            for made in [&config.generate.out, &config.import.out] {
                std::fs::remove_dir_all(made)
                    .with_context(|| format!("{}: cannot remove", made.display()))?;
            }
        }
        let report = QuickstartReport {
            dir: dir.display().to_string(),
            losses_identical: same_bits(&ondemand.step_losses, &rapid.step_losses),
            generate: made,
            import: graph,
            servers: addresses,
            ondemand,
            rapid,
            seconds: start.elapsed().as_secs_f64(),
            kept: !config.cleanup,
        };
        console.report(&report, |report| comparison::text(report, &config))
    }
}

fn run_strategy(
    strategy: Strategy,
    config: &QuickstartConfig,
    servers: &ChildServers,
    console: &Console,
) -> Result<TrainReport> {
    let start = Instant::now();
    let run = TrainRun {
        graph: config.import.out.clone(),
        connect: servers.addresses(),
        client: ClientConfig::default(),
        store: OpenOptions::default(),
        tiers: TierChoice::default(),
        buffer: None,
        profiles: Vec::new(),
        train: TrainConfig { strategy, ..config.train.clone() },
        log: None,
        form: Form::default(),
        keep_schedule: false,
    };
    let Trained { report, .. } = train(&run, console)?;
    let text = format!(
        "{strategy}: {} epochs of {} steps, 4 workers, rows through the servers",
        report.epochs.len(),
        report.epochs.first().map_or(0, |epoch| epoch.steps),
    );
    say(console, "train", &text, start.elapsed().as_secs_f64())?;
    Ok(report)
}

/// Prints a stage that is done.
fn say(console: &Console, stage: &str, text: &str, seconds: f64) -> Result<()> {
    console.line(&format!("  {stage:<9} {text:<72} {:>8}", human::seconds(seconds)))
}

fn made_text(made: &GenerateReport) -> String {
    format!(
        "{} nodes, {} edges, {} features per node: {}",
        human::count(made.nodes.into()),
        human::count(made.edges),
        made.dim,
        human::bytes(made.bytes),
    )
}

fn imported_text(graph: &ImportReport) -> String {
    format!(
        "{} partitions by {}, {} of the edges cut: {}",
        graph.parts.len(),
        graph.partitioner,
        human::percent(graph.edge_cut),
        human::bytes(graph.bytes()),
    )
}

fn same_bits(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
