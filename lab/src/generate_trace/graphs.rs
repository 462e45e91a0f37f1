//! Traces of training on a graph, sampled or full-batch.

use std::path::Path;

use anyhow::Result;
use lodestore_graph::edges::ArrayEdges;
use lodestore_graph::generate::{GraphRecipe, generate};
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::sampler::{Fanout, Sampler, batch_seed, epoch_order};
use lodestore_graph::topology::{Topology, scratch_topology};
use lodestore_graph::{NodeId, splitmix64};
use lodestore_store::Graph;

use super::Batches;
use lode_cli::commands::generate::usage_or_failure;
use lode_cli::console::Console;

/// Graph to sample, and settings of the batches.
pub(super) struct Sampled<'a> {
    /// Folder of the graph; without it one of `n_nodes` and `mean_degree` is generated.
    pub(super) graph: Option<&'a Path>,
    pub(super) n_nodes: u32,
    pub(super) mean_degree: f32,
    pub(super) fanouts: &'a [Fanout],
    /// Share of the nodes that are roots.
    pub(super) roots: f64,
    pub(super) batch_size: usize,
    pub(super) epochs: u32,
    pub(super) seed: u64,
}

/// Returns the input nodes of all batches of one worker.
pub(super) fn neighbours(sampled: &Sampled<'_>, console: &Console) -> Result<Batches> {
    console.stage("topology");
    let topology = match sampled.graph {
        Some(dir) => Graph::open(dir)?.open_topology()?,
        None => generated_topology(sampled, console)?,
    };
    // The share of the 2⁶⁴ words that are below the bound is the share of roots; a share of 1 takes
    // all.
    let is_root = |id: &u32| {
        splitmix64(splitmix64(sampled.seed) ^ u64::from(*id)) as f64
            <= sampled.roots * 2f64.powi(64)
    };
    let roots: Vec<NodeId> = (0..topology.n_nodes()).filter(is_root).map(NodeId).collect();
    let mut sampler = Sampler::new(&topology, sampled.fanouts);
    let mut batches = Batches::new();
    let total = u64::from(sampled.epochs) * roots.len().div_ceil(sampled.batch_size) as u64;
    for epoch in 0..sampled.epochs {
        let order = epoch_order(sampled.seed, epoch, &roots);
        for (batch, roots) in (0..).zip(order.chunks(sampled.batch_size)) {
            let seed = batch_seed(sampled.seed, 0, epoch, batch);
            batches.ids.extend(sampler.sample(roots, seed).nodes.iter().map(|node| node.0));
            batches.end_batch()?;
            console.at("sample", batches.offsets.len() as u64 - 1, total);
        }
    }
    Ok(batches)
}

/// Returns in each epoch the halo of each partition in turn: the rows that full-batch training on
/// all partitions requests (CaPGNN, section 4.2). With `batch_size` it takes that many of each at a
/// time, and none of those whose halo is at its end. Batch `i` is always of partition `i %
/// n_parts`.
pub(super) fn halos(dir: &Path, batch_size: Option<u32>, epochs: u32) -> Result<Batches> {
    let graph = Graph::open(dir)?;
    let halos =
        graph.book().parts().map(|part| graph.open_halo(part)).collect::<Result<Vec<_>, _>>()?;
    let largest = halos.iter().map(|halo| halo.ids.len()).max().unwrap_or(0).max(1);
    let batch_size = batch_size.map_or(largest, |size| size as usize);
    let mut batches = Batches::new();
    for _ in 0..epochs {
        for first in (0..largest).step_by(batch_size) {
            for halo in &halos {
                let rest = halo.ids.get(first..).unwrap_or_default();
                batches.ids.extend(rest.iter().take(batch_size).map(|node| node.0));
                batches.end_batch()?;
            }
        }
    }
    Ok(batches)
}

/// Returns the topology of a generated graph; its files are gone when it is open.
fn generated_topology(sampled: &Sampled<'_>, console: &Console) -> Result<Topology> {
    let dir = tempfile::tempdir()?;
    let (n_nodes, mean_degree, seed) = (sampled.n_nodes, sampled.mean_degree, sampled.seed);
    let n_classes = GraphRecipe::default().n_classes.min(n_nodes);
    let recipe = GraphRecipe { n_nodes, mean_degree, n_classes, seed, ..GraphRecipe::default() };
    let made = generate(&recipe, dir.path(), &mut console.progress("edges"));
    let made = made.map_err(usage_or_failure)?;
    console.stage("topology");
    let edges = ArrayEdges::open_npy(&made.edges_path, Some(n_nodes))?;
    let scratch = dir.path().join("scratch.csr");
    Ok(scratch_topology(&edges, Relabelling::identity(n_nodes), &scratch)?.1)
}
