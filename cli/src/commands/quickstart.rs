//! `lode quickstart`: generate, import, serve, train twice, compare.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use lodestore_graph::generate::GraphRecipe;
use lodestore_import::{ImportConfig, ImportReport};
use lodestore_trainer::config::{OndemandConfig, RapidConfig, ScheduleConfig};
use lodestore_trainer::report::EpochReport;
use lodestore_trainer::{Strategy, TrainConfig, TrainReport};
use serde::Serialize;

use super::generate::{GenerateConfig, GenerateReport, generate};
use super::import::import;
use super::train::{TrainRun, Trained, train};
use crate::child_servers::{self, ChildServers};
use crate::console::Console;
use crate::human::{self, joined};
use crate::interrupt::RemovedOnInterrupt;
use crate::outputs::NamedFiles;
use crate::table::Table;

/// Partitions, and workers: one each.
const PARTS: u16 = 4;
/// Partitions that each server holds.
const SERVED: [&[u16]; 2] = [&[0, 1], &[2, 3]];
/// Communities of the graph.
const CLASSES: u32 = 16;
const SEED: u64 = 1;
/// Roots per batch of a worker.
const BATCH: usize = 256;
/// Port of the first server; the others follow.
const FIRST_PORT: usize = 7171;
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
        NamedFiles::default().outputs("--dir", &self.dir).check()?;
        let dir = Dir::make(self.dir)?;
        let (raw, graph) = (dir.path.join(RAW), dir.path.join(GRAPH));
        let generate = GenerateConfig { recipe, dim: self.dim, out: raw };
        let import = generate.import(PARTS, graph);
        let train = TrainConfig {
            workers: PARTS.into(),
            epochs: self.epochs,
            evaluate_every: 0,
            batch_size: BATCH,
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
        let [ondemand, rapid] = strategies(&config);
        let (ondemand, rapid) = (train(ondemand)?, train(rapid)?);
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
        console.report(&report, |report| text(report, &config))
    }
}

/// Returns the strategies that are compared: rows as they are needed, and rows by a schedule.
fn strategies(config: &QuickstartConfig) -> [Strategy; 2] {
    let n_hot = config.generate.recipe.n_nodes as usize / 4;
    let schedule = ScheduleConfig { n_hot, ..ScheduleConfig::default() };
    let rapid = RapidConfig { schedule, ..RapidConfig::default() };
    [Strategy::Ondemand(OndemandConfig::default()), Strategy::Rapid(rapid)]
}

fn run_strategy(
    strategy: Strategy,
    config: &QuickstartConfig,
    servers: &ChildServers,
    console: &Console,
) -> Result<TrainReport> {
    let start = Instant::now();
    let name = strategy.name();
    let train_config = TrainConfig { strategy, ..config.train.clone() };
    let run = TrainRun::new(config.import.out.clone(), servers.addresses(), train_config);
    let Trained { report, .. } = train(&run, console)?;
    let text = format!(
        "{name}: {} epochs of {} steps, 4 workers, rows through the servers",
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

/// Returns the whole answer.
fn text(report: &QuickstartReport, config: &QuickstartConfig) -> String {
    let place = if report.kept {
        format!("Kept in {}: raw/ (the .npy files), graph/ (the import), server logs", report.dir)
    } else {
        "The files were removed (--cleanup)".to_owned()
    };
    format!(
        "\n{}\n\n{}\n\n{place}. Took {}.\n\nThe same by hand:\n\n{}",
        table(&report.ondemand, &report.rapid),
        verdict(report),
        human::seconds(report.seconds),
        commands(config),
    )
}

fn table(ondemand: &TrainReport, rapid: &TrainReport) -> Table {
    let mut table = Table::new(["", "ondemand", "rapid"]);
    let mut row = |name: &str, figure: &dyn Fn(&TrainReport) -> String| {
        table.row([name.to_owned(), figure(ondemand), figure(rapid)]);
    };
    row("test accuracy", &|r| human::accuracy(r.test_accuracy));
    row("final loss", &|r| r.epochs.last().map_or_else(String::new, |e| format!("{:.6}", e.loss)));
    row("seconds per epoch", &|r| format!("{:.2}", mean(r, |e| e.seconds)));
    row("ms per step", &|r| format!("{:.1}", r.mean_step_seconds * 1e3));
    row("remote rows per step", &|r| human::count(r.remote_rows_per_step.round() as u64));
    row("remote MB per step", &|r| format!("{:.2}", r.remote_bytes_per_step / 1e6));
    row("hit rate", &|r| human::percent(mean(r, |e| e.hit_rate.unwrap_or(0.0))));
    row("wait share", &|r| human::percent(wait_share(r)));
    row("MB of kept rows and window", &|r| format!("{:.1}", r.memory_measured_bytes as f64 / 1e6));
    row("setup seconds", &|r| format!("{:.2}", r.setup_seconds));
    table
}

fn verdict(report: &QuickstartReport) -> String {
    let n_steps = human::count(report.ondemand.step_losses.len() as u64);
    let losses = if report.losses_identical {
        format!("Losses are bit-identical at all {n_steps} steps")
    } else {
        format!("LOSSES DIFFER somewhere in {n_steps} steps, which must not be")
    };
    let saved = report.ondemand.remote_bytes_per_step / report.rapid.remote_bytes_per_step;
    format!("{losses}; rapid moved {saved:.1} times fewer remote bytes.")
}

/// Returns the time in which a worker had no batch to train on, as a share of the epochs.
fn wait_share(report: &TrainReport) -> f64 {
    let sum = |figure: fn(&EpochReport) -> f64| -> f64 { report.epochs.iter().map(figure).sum() };
    sum(|epoch| epoch.wait_seconds) / sum(|epoch| epoch.seconds).max(1e-9)
}

fn mean(report: &TrainReport, figure: fn(&EpochReport) -> f64) -> f64 {
    let sum: f64 = report.epochs.iter().map(figure).sum();
    sum / report.epochs.len().max(1) as f64
}

/// Returns the commands to paste into a shell to do the same in a fresh folder.
fn commands(config: &QuickstartConfig) -> String {
    let mut lines = vec!["cd \"$(mktemp -d)\"".to_owned()];
    lines.extend(path_line());
    lines.push(generate_line(config));
    lines.push(import_line(config));
    let mut connect = String::new();
    for (parts, port) in SERVED.iter().zip(FIRST_PORT..) {
        let parts = joined(*parts, ",");
        lines.push(format!(
            "lode serve graph --parts {parts} --listen 127.0.0.1:{port} --shards 1 &"
        ));
        connect.push_str(&format!(" --connect 127.0.0.1:{port}"));
    }
    lines.push("sleep 1".to_owned());
    for strategy in strategies(config) {
        lines.push(train_line(config, &strategy, &connect));
    }
    lines.push("kill %1 %2; wait".to_owned());
    joined(lines.iter().map(|line| format!("  {line}")), "\n")
}

/// Lets the shell find this program, unless it did.
fn path_line() -> Option<String> {
    let typed = std::env::args_os().next()?;
    if typed == "lode" {
        return None;
    }
    let program = std::env::current_exe().ok()?;
    Some(format!("PATH='{}':$PATH", program.parent()?.display()))
}

fn generate_line(config: &QuickstartConfig) -> String {
    let (recipe, dim) = (&config.generate.recipe, config.generate.dim);
    format!(
        "lode generate --nodes {} --degree {} --dim {dim} --classes {} --seed {} --out raw",
        recipe.n_nodes, recipe.mean_degree, recipe.n_classes, recipe.seed,
    )
}

fn import_line(config: &QuickstartConfig) -> String {
    let import = &config.import;
    let mut line = "lode import --edges raw/edges.npy --undirected".to_owned();
    for tensor in &import.tensors {
        let file = tensor.file.file_name().map_or(tensor.file.as_path(), Path::new);
        line.push_str(&format!(" \\\n      --tensor {}=raw/{}", tensor.name, file.display()));
    }
    let (n_parts, partitioner) = (import.partition.n_parts, &import.partition.algorithm);
    format!("{line} \\\n      --parts {n_parts} --partitioner {partitioner} --out graph")
}

fn train_line(config: &QuickstartConfig, strategy: &Strategy, connect: &str) -> String {
    let train = &config.train;
    let hot = strategy.schedule().map(|schedule| format!(" --hot {}", schedule.n_hot));
    let hot = hot.unwrap_or_default();
    format!(
        "lode train --graph graph{connect} \\\n      --strategy {strategy} --workers {} \
         --epochs {} --batch {} --evaluate-every {} --seed {}{hot}",
        train.workers, train.epochs, train.batch_size, train.evaluate_every, train.seed,
    )
}
