//! The graphs of a reproduction: generated, partitioned, imported.

use std::path::{Path, PathBuf};

use anyhow::Result;
use lodestore_graph::generate::GraphRecipe;
use lodestore_graph::partition::Algorithm;

use super::papers::Model;
use crate::commands::generate::{GenerateConfig, generate};
use crate::commands::import::import;
use crate::console::Console;

const SEED: u64 = 1;
/// Fewer nodes have no communities to sample.
const FEWEST_NODES: u32 = 400;
/// Nodes of a community where classes have many.
const COMMUNITY_NODES: u32 = 500;
/// A node's neighbours are at most this share of its community: an edge stands once in a graph.
const MOST_OF_COMMUNITY: f32 = 0.25;
/// Of the edges between classes those to hubs of the whole graph, and how heavy the tail of these is
/// (degree exponent 2.33). Chosen by what the paper says of Products under the baseline, and kept for
/// all: that a batch asks for about 12 remote rows for each root (Fig. 4: 12 000 of batch 1000), and
/// that one node is in all 66 batches of an epoch (Fig. 3). The latter is reuse, on which caches live.
const HUB_SHARE: f64 = 0.1;
const HUB_POWER: u32 = 4;

/// A graph that was made.
pub(super) struct Made {
    pub(super) dir: PathBuf,
    pub(super) nodes: u32,
    pub(super) edges: u64,
    pub(super) edge_cut: f64,
    /// Nodes of the halos over the nodes that partitions own, on average.
    pub(super) halo_ratio: f64,
    pub(super) row_bytes: u64,
    /// Rows that each worker may keep of those that it does not own.
    pub(super) kept_rows: u32,
    /// Nodes that each worker trains on.
    n_roots: u32,
}

/// Rounds of eviction in a run: each fetches more rows than a few batches miss, and pays over hundreds.
const ROUNDS: u32 = 4;
/// Most batches between two rounds.
const MOST_DELTA: u32 = 64;

impl Made {
    /// MassiveGNN's Δ, by which a run of some epochs has [`ROUNDS`] of eviction, or more.
    pub(super) fn delta(&self, epochs: u32, batch: usize) -> u32 {
        let n_batches = epochs.saturating_mul(self.n_roots.div_ceil(batch.max(1) as u32));
        (n_batches / ROUNDS).clamp(1, MOST_DELTA)
    }
}

/// How large a graph and its caches are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Nodes and roots of a batch, in those of the model.
    pub(super) scale: f64,
    /// Partitions, one for each.
    pub(super) n_workers: u16,
    /// Rows that a worker may keep.
    pub(super) kept_share: f64,
    /// What that is a share of.
    pub(super) kept_of: KeptOf,
    pub(super) cut: Cut,
}

/// How a graph is partitioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// By SPRING, refined: about as METIS does.
    Good,
    /// Each node by its hash: DistDGL's random partitions.
    Random,
}

/// What rows that may be kept are counted by.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeptOf {
    /// All that a worker does not own.
    Others,
    /// The halo of its partition, as MassiveGNN's buffers are (its Table I).
    Halo,
}

/// Makes the graph of `model` below `dir`, in one partition per worker.
pub(super) fn make(model: &Model, size: Size, dir: &Path, console: &Console) -> Result<Made> {
    let (raw, graph) = (dir.join(format!("{}-raw", model.name)), dir.join(model.name));
    let n_nodes = ((f64::from(model.nodes) * size.scale) as u32).max(FEWEST_NODES);
    let of_class = (n_nodes / model.classes).max(1);
    let community_nodes = if model.class_is_community { of_class } else { COMMUNITY_NODES };
    let recipe = GraphRecipe {
        n_nodes,
        mean_degree: model.degree.min(MOST_OF_COMMUNITY * community_nodes.min(of_class) as f32),
        n_classes: model.classes,
        community_nodes,
        hub_share: HUB_SHARE,
        hub_power: HUB_POWER,
        train: model.train,
        seed: SEED,
        ..GraphRecipe::default()
    };
    let config = GenerateConfig { recipe, dim: model.dim, out: raw.clone() };
    let made = generate(&config, console)?;
    let mut partitioned = config.import(size.n_workers, graph.clone());
    match size.cut {
        // The papers' partitions come from METIS, whose cuts refinement reaches.
        Cut::Good => partitioned.partition.refine_rounds = 1,
        Cut::Random => partitioned.partition.algorithm = Algorithm::Hash,
    }
    let imported = import(&partitioned, console)?;
    std::fs::remove_dir_all(&raw)?;
    let n_owned = f64::from(made.nodes) / f64::from(size.n_workers);
    let halo_ratio = imported.replication_factor - 1.0;
    let n_all = match size.kept_of {
        KeptOf::Others => f64::from(made.nodes) - n_owned,
        KeptOf::Halo => halo_ratio * n_owned,
    };
    Ok(Made {
        dir: graph,
        nodes: made.nodes,
        edges: made.edges,
        edge_cut: imported.edge_cut,
        halo_ratio,
        row_bytes: u64::from(model.dim) * 4,
        kept_rows: (size.kept_share * n_all) as u32,
        n_roots: (n_owned * f64::from(model.train)) as u32,
    })
}
