//! The graphs of a reproduction: generated, partitioned, imported.

use std::path::{Path, PathBuf};

use anyhow::Result;
use lodestore_graph::edges::EdgeFiles;
use lodestore_graph::generate::GraphRecipe;
use lodestore_graph::order::RowOrder;
use lodestore_graph::partition::{Algorithm, PartitionConfig, SpringParams};
use lodestore_store::NanPolicy;

use super::papers::Model;
use super::runs::KEPT_SHARE;
use crate::commands::generate::{self, GenerateConfig, generate};
use crate::commands::import::{ImportConfig, ImportTensor, KeptEdges, import};
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
}

impl Made {
    /// Rows that each of `n_workers` workers may keep of those that it does not own.
    pub(super) fn n_kept(&self, n_workers: u16) -> u32 {
        let n_remote = f64::from(self.nodes) * (1.0 - 1.0 / f64::from(n_workers));
        (KEPT_SHARE * n_remote) as u32
    }
}

/// Makes the graph of `model` below `dir`, in one partition per worker.
pub(super) fn make(
    model: &Model,
    scale: f64,
    n_parts: u16,
    dir: &Path,
    console: &Console,
) -> Result<Made> {
    let (raw, graph) = (dir.join(format!("{}-raw", model.name)), dir.join(model.name));
    let recipe = GraphRecipe {
        n_nodes: ((f64::from(model.nodes) * scale) as u32).max(FEWEST_NODES),
        mean_degree: model.degree,
        n_classes: model.classes,
        train: model.train,
        seed: SEED,
        ..GraphRecipe::default()
    };
    let made = generate(&GenerateConfig { recipe, dim: model.dim, out: raw.clone() }, console)?;
    let tensor = |name, file| ImportTensor::new(name, raw.join(file));
    let config = ImportConfig {
        edges: EdgeFiles::from(raw.join(generate::EDGES_FILE)),
        kept: KeptEdges::default(),
        tensors: vec![
            tensor("feat", generate::FEATURES_FILE),
            tensor("label", generate::LABELS_FILE),
            tensor("split", generate::SPLIT_FILE),
        ],
        nodes: None,
        partition: PartitionConfig {
            undirected: true,
            ..PartitionConfig::new(Algorithm::Spring(SpringParams::default()), n_parts)
        },
        order: RowOrder::default(),
        compare_orders: false,
        nan: NanPolicy::Refuse,
        out: graph.clone(),
    };
    let imported = import(&config, console)?;
    std::fs::remove_dir_all(&raw)?;
    Ok(Made {
        dir: graph,
        nodes: made.nodes,
        edges: made.edges,
        edge_cut: imported.edge_cut,
        row_bytes: u64::from(model.dim) * 4,
    })
}
