//! Synthetic graphs: power-law degrees, planted communities, labels and splits, streamed to disk.
//!
//! Every node and edge is a function of the recipe alone, so that nothing is kept while writing.

mod model;

use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;

use crate::file_error::FileError;
use crate::npy::{NpyError, NpyType, NpyWriter};
use model::Model;

/// Numbers that are written, and reported as progress, at a time.
const CHUNK: usize = 1 << 16;
const MAX_MEAN_DEGREE: f32 = 100_000.0;

/// The graph to make. The same recipe makes the same files, byte for byte, on any machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GraphRecipe {
    /// Number of nodes, 1 or more.
    pub n_nodes: u32,
    /// Mean number of edges at a node; each undirected edge is at two nodes.
    pub mean_degree: f32,
    /// Number of classes, from 1 to `n_nodes`.
    pub n_classes: u32,
    /// Share of the edges that join nodes of one class; those stay inside one community.
    pub homophily: f32,
    /// Mean nodes of a community. A class has several communities, one at least.
    pub community_nodes: u32,
    /// Share of the edges between classes that go to hubs of the whole graph.
    pub hub_share: f64,
    /// Skew of these edges: of `n` nodes the first `r` hubs have the share `(r / n)^(1 /
    /// hub_power)`. With `k` for this number, degrees among hubs fall with exponent `1 + k / (k −
    /// 1)`: 3 for 2, 2.5 for 3, 2.33 for 4. With 1 there are no hubs.
    pub hub_power: u32,
    /// Fraction of the nodes that train.
    pub train: f32,
    /// Fraction of the nodes that validate.
    pub val: f32,
    /// Fraction of the nodes that test.
    pub test: f32,
    /// Seed of everything.
    pub seed: u64,
}

/// Counts and paths of the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GenerateSummary {
    /// Number of nodes.
    pub nodes: u32,
    /// Number of undirected edges, each written once.
    pub edges: u64,
    /// Edges, u32 of shape (edges, 2).
    pub edges_path: PathBuf,
    /// Labels, i64 of shape (nodes).
    pub labels_path: PathBuf,
    /// Splits, u8 of shape (nodes): 0 train, 1 validation, 2 test, 255 none.
    pub split_path: PathBuf,
}

/// Why a graph could not be made.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// A recipe with a number out of range.
    #[error("{name} must be {expected}, found {found}")]
    Recipe {
        /// The number's name.
        name: &'static str,
        /// The accepted values.
        expected: String,
        /// The given value.
        found: f64,
    },
    /// The folder cannot be made.
    #[error(transparent)]
    Io(#[from] FileError),
    /// A file cannot be written.
    #[error(transparent)]
    Npy(#[from] NpyError),
}

impl Default for GraphRecipe {
    /// Returns 200 000 nodes of mean degree 20 in 16 classes; a tenth of them train.
    fn default() -> Self {
        Self {
            n_nodes: 200_000,
            mean_degree: 20.0,
            n_classes: 16,
            homophily: 0.8,
            community_nodes: 500,
            hub_share: 0.05,
            hub_power: 2,
            train: 0.1,
            val: 0.05,
            test: 0.1,
            seed: 0,
        }
    }
}

impl GraphRecipe {
    fn check(&self) -> Result<(), GenerateError> {
        let (n_nodes, n_classes) = (f64::from(self.n_nodes), f64::from(self.n_classes));
        let (mean_degree, homophily) = (f64::from(self.mean_degree), f64::from(self.homophily));
        let fractions = [self.train, self.val, self.test].map(f64::from);
        let sum: f64 = fractions.iter().sum();
        let cases = [
            ("n_nodes", 1.0, f64::from(u32::MAX), n_nodes),
            ("mean_degree", 0.0, f64::from(MAX_MEAN_DEGREE), mean_degree),
            ("n_classes", 1.0, n_nodes, n_classes),
            ("homophily", 0.0, 1.0, homophily),
            ("community_nodes", 1.0, f64::from(u32::MAX), f64::from(self.community_nodes)),
            ("hub_share", 0.0, 1.0, self.hub_share),
            ("hub_power", 1.0, 16.0, f64::from(self.hub_power)),
            ("train", 0.0, 1.0, fractions[0]),
            ("val", 0.0, 1.0, fractions[1]),
            ("test", 0.0, 1.0, fractions[2]),
            // Sums of decimal fractions are a little off.
            ("train + val + test", 0.0, 1.0 + 1e-6, sum),
        ];
        // Not a number is in no range.
        match cases.into_iter().find(|&(_, low, high, found)| !(low..=high).contains(&found)) {
            Some((name, low, high, found)) => Err(GenerateError::Recipe {
                name,
                expected: format!("from {low} to {high}"),
                found,
            }),
            None => Ok(()),
        }
    }
}

/// Writes `edges.npy`, `labels.npy` and `split.npy` into `dir`, which is made if need be.
///
/// Edges come in the order of their first node, each once, without self loops; a few are
/// repeated. `progress` is called with the edges written so far and the edges in all. Memory is
/// constant.
pub fn generate(
    recipe: &GraphRecipe,
    dir: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<GenerateSummary, GenerateError> {
    recipe.check()?;
    std::fs::create_dir_all(dir).map_err(FileError::at(dir, "create the folder"))?;
    let model = Model::new(recipe);
    let nodes = 0..u64::from(recipe.n_nodes);
    let n_nodes = u64::from(recipe.n_nodes);
    let edges = nodes.clone().map(|node| model.n_started(node)).sum();
    let summary = GenerateSummary {
        nodes: recipe.n_nodes,
        edges,
        edges_path: dir.join("edges.npy"),
        labels_path: dir.join("labels.npy"),
        split_path: dir.join("split.npy"),
    };
    let labels = nodes.clone().map(|node| model.label(node) as i64);
    write(&summary.labels_path, NpyType::I64, &[n_nodes], labels, &mut |_| {})?;
    let splits = nodes.clone().map(|node| model.split(node));
    write(&summary.split_path, NpyType::U8, &[n_nodes], splits, &mut |_| {})?;
    let pairs = nodes.flat_map(|node| {
        let ends = model.ends(node, model.n_started(node));
        ends.map(move |end| [node as u32, end as u32])
    });
    write(&summary.edges_path, NpyType::U32, &[edges, 2], pairs, &mut |n| progress(n, edges))?;
    Ok(summary)
}

/// Streams rows to a `.npy` file.
fn write<T: bytemuck::NoUninit>(
    path: &Path,
    dtype: NpyType,
    shape: &[u64],
    mut rows: impl Iterator<Item = T>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), GenerateError> {
    let mut writer = NpyWriter::create(path, dtype, shape)?;
    let mut chunk = Vec::with_capacity(CHUNK);
    let mut n_written = 0;
    loop {
        chunk.clear();
        chunk.extend(rows.by_ref().take(CHUNK));
        if chunk.is_empty() {
            return Ok(writer.finish()?);
        }
        writer.write_all(bytemuck::cast_slice(&chunk))?;
        n_written += chunk.len() as u64;
        progress(n_written);
    }
}

#[cfg(test)]
mod tests;
