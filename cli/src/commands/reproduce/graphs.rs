//! The graphs of a reproduction: generated, partitioned, imported.

use std::path::{Path, PathBuf};

use anyhow::Result;
use lodestore_graph::generate::GraphRecipe;

use super::papers::Model;
use crate::commands::generate::{GenerateConfig, generate};
use crate::commands::import::import;
use crate::console::Console;

const SEED: u64 = 1;
/// Fewer nodes have no communities to sample.
const FEWEST_NODES: u32 = 1000;

/// A graph that was made.
pub(super) struct Made {
    pub(super) dir: PathBuf,
    pub(super) nodes: u32,
    pub(super) edges: u64,
    pub(super) edge_cut: f64,
    pub(super) row_bytes: u64,
    /// Rows that each worker may keep of those that it does not own.
    pub(super) kept_rows: u32,
}

/// How large a graph and its caches are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Nodes, in those of the model.
    pub(super) scale: f64,
    /// Partitions, one for each.
    pub(super) n_workers: u16,
    /// Rows that a worker may keep, of those that it does not own.
    pub(super) kept_share: f64,
}

/// Makes the graph of `model` below `dir`, in one partition per worker.
pub(super) fn make(model: &Model, size: Size, dir: &Path, console: &Console) -> Result<Made> {
    let (raw, graph) = (dir.join(format!("{}-raw", model.name)), dir.join(model.name));
    let recipe = GraphRecipe {
        n_nodes: ((f64::from(model.nodes) * size.scale) as u32).max(FEWEST_NODES),
        mean_degree: model.degree,
        n_classes: model.classes,
        train: model.train,
        seed: SEED,
        ..GraphRecipe::default()
    };
    let config = GenerateConfig { recipe, dim: model.dim, out: raw.clone() };
    let made = generate(&config, console)?;
    let imported = import(&config.import(size.n_workers, graph.clone()), console)?;
    std::fs::remove_dir_all(&raw)?;
    let n_remote = f64::from(made.nodes) * (1.0 - 1.0 / f64::from(size.n_workers));
    Ok(Made {
        dir: graph,
        nodes: made.nodes,
        edges: made.edges,
        edge_cut: imported.edge_cut,
        row_bytes: u64::from(model.dim) * 4,
        kept_rows: (size.kept_share * n_remote) as u32,
    })
}
