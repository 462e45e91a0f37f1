//! `lode generate`: a graph with communities, features, labels and splits, as .npy files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use lodestore_graph::generate::{GenerateError, GraphRecipe, generate as generate_topology};
use lodestore_graph::process::{peak_anonymous_bytes, watch_memory};
use lodestore_graph::topology::Direction;
use lodestore_import::ImportConfig;
use lodestore_server::limits::ROW_BYTES_MAX;
use lodestore_store::synthetic::write_features;
use serde::Serialize;

use crate::console::Console;
use crate::human;
use crate::outputs::NamedFiles;
use crate::staging::Staging;
use crate::usage::UsageError;

/// Files of a generated graph.
pub const EDGES_FILE: &str = "edges.npy";
pub const FEATURES_FILE: &str = "features.npy";
pub const LABELS_FILE: &str = "labels.npy";
pub const SPLIT_FILE: &str = "split.npy";

/// Generate a power-law graph with communities; features correlate with labels.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode generate --nodes 200000 --degree 20 --dim 128 --classes 16 --seed 1 --out raw
  lode import --edges raw/edges.npy --undirected --tensor feat=raw/features.npy \\
      --tensor label=raw/labels.npy --tensor split=raw/split.npy --parts 4 --out my-graph

Writes edges.npy (undirected, each edge once), features.npy, labels.npy and split.npy (0 train,
1 validation, 2 test, 255 none). The same seed makes the same bytes.")]
pub struct GenerateArgs {
    /// Number of nodes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Mean degree.
    #[arg(long, value_name = "D", default_value_t = 20.0)]
    degree: f32,
    /// Features per node.
    #[arg(long, value_name = "F", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..))]
    dim: u32,
    /// Classes; each has communities of its own.
    #[arg(long, value_name = "C", default_value_t = 16)]
    classes: u32,
    /// Share of edges that stay inside a class, and there inside a community.
    #[arg(long, value_name = "H", default_value_t = 0.8)]
    homophily: f32,
    /// Mean nodes of a community; a class has one or more.
    #[arg(long, value_name = "N", default_value_t = 500,
          value_parser = clap::value_parser!(u32).range(1..))]
    community: u32,
    /// Share of the edges between classes that go to hubs of the whole graph.
    #[arg(long, value_name = "S", default_value_t = 0.05)]
    hub_share: f64,
    /// How heavy the tail of these hubs' degrees is: 2 for an exponent of 3, 3 for 2.5, 4 for 2.33.
    #[arg(long, value_name = "K", default_value_t = 2)]
    hub_power: u32,
    /// Share of the nodes that train.
    #[arg(long, value_name = "S", default_value_t = 0.1)]
    train: f32,
    /// Fixes every byte.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Folder for the files; must not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Output of `--json`.
#[derive(Serialize)]
pub struct GenerateReport {
    pub dir: String,
    pub nodes: u32,
    /// Lines of edges.npy: each undirected edge once.
    pub edges: u64,
    pub classes: u32,
    pub dim: u32,
    pub seed: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub peak_anonymous_bytes: u64,
}

/// The graph to generate.
pub struct GenerateConfig {
    pub recipe: GraphRecipe,
    pub dim: u32,
    pub out: PathBuf,
}

impl GenerateConfig {
    /// Returns the import of all that is written, in `n_parts` partitions by SPRING, to `out`.
    pub fn import(&self, n_parts: u16, out: PathBuf) -> ImportConfig {
        let file = |name| self.out.join(name);
        let mut config = ImportConfig::new(file(EDGES_FILE), n_parts, out)
            .with_tensor("feat", file(FEATURES_FILE))
            .with_tensor("label", file(LABELS_FILE))
            .with_tensor("split", file(SPLIT_FILE));
        config.partition.direction = Direction::Undirected;
        config.max_served_row_bytes = Some(ROW_BYTES_MAX as u64);
        config
    }
}

impl GenerateArgs {
    fn configure(self) -> GenerateConfig {
        let recipe = GraphRecipe {
            n_nodes: self.nodes,
            mean_degree: self.degree,
            n_classes: self.classes,
            homophily: self.homophily,
            community_nodes: self.community,
            hub_share: self.hub_share,
            hub_power: self.hub_power,
            train: self.train,
            seed: self.seed,
            ..GraphRecipe::default()
        };
        GenerateConfig { recipe, dim: self.dim, out: self.out }
    }

    pub fn run(self, console: &Console) -> Result<()> {
        NamedFiles::default().outputs("--out", [&self.out]).check()?;
        let report = generate(&self.configure(), console)?;
        console.report(&report, text)
    }
}

/// Writes all files to a staging folder, and moves it to its place.
pub fn generate(config: &GenerateConfig, console: &Console) -> Result<GenerateReport> {
    let start = Instant::now();
    watch_memory();
    let staging = Staging::begin(&config.out)?;
    let dir = staging.path();
    let made = generate_topology(&config.recipe, dir, &mut console.progress("edges"));
    let made = made.map_err(usage_or_failure)?;
    let (labels, features) = (dir.join(LABELS_FILE), dir.join(FEATURES_FILE));
    let seed = config.recipe.seed;
    write_features(&labels, config.dim, seed, &features, &mut console.progress("features"))?;
    let bytes = folder_bytes(dir)?;
    staging.commit()?;
    Ok(GenerateReport {
        dir: config.out.display().to_string(),
        nodes: config.recipe.n_nodes,
        edges: made.edges,
        classes: config.recipe.n_classes,
        dim: config.dim,
        seed,
        bytes,
        seconds: start.elapsed().as_secs_f64(),
        peak_anonymous_bytes: peak_anonymous_bytes(),
    })
}

/// Converts an error; a recipe that cannot be is a mistake in the arguments.
pub fn usage_or_failure(error: GenerateError) -> anyhow::Error {
    match error {
        GenerateError::Recipe { .. } => UsageError::of(error).into(),
        error => error.into(),
    }
}

fn folder_bytes(dir: &Path) -> Result<u64> {
    let sizes = fs::read_dir(dir)?.map(|entry| Ok(entry?.metadata()?.len()));
    sizes.sum::<std::io::Result<u64>>().with_context(|| format!("{}: cannot list", dir.display()))
}

fn text(report: &GenerateReport) -> String {
    format!(
        "{}: {} nodes in {} classes, {} undirected edges, {} features per node; {} in {}",
        report.dir,
        human::count(report.nodes.into()),
        report.classes,
        human::count(report.edges),
        report.dim,
        human::bytes(report.bytes),
        human::seconds(report.seconds),
    )
}
