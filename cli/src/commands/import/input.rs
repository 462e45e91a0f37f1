//! The files of an import, opened and checked against each other before anything is written.

use anyhow::{Context, Result, bail};
use lodestore_graph::edges::{EdgeStream, NpyEdges};
use lodestore_store::{TensorSource, check_source, open_source};

use super::ImportConfig;

/// Edges, tensors, and how many nodes they are about.
pub(super) struct Input {
    pub(super) edges: NpyEdges,
    pub(super) tensors: Vec<(String, Box<dyn TensorSource>)>,
    pub(super) n_nodes: u32,
}

impl Input {
    /// The number of nodes is `--nodes`, or that of the first tensor's rows, or the largest id in
    /// the edges + 1; all tensors must agree with it, and all edges must stay below it.
    pub(super) fn open(config: &ImportConfig) -> Result<Self> {
        let tensors = config
            .tensors
            .iter()
            .map(|tensor| Ok((tensor.name.clone(), open_source(&tensor.file)?)))
            .collect::<Result<Vec<_>>>()?;
        let n_nodes = match (config.nodes, tensors.first()) {
            (Some(n_nodes), _) => Some(n_nodes),
            (None, Some((_, source))) => Some(rows(&**source)?),
            (None, None) => None,
        };
        let edges = NpyEdges::open(&config.edges, n_nodes)?;
        let n_nodes = edges.n_nodes();
        if n_nodes == 0 {
            bail!(
                "{}: no edges, and nothing else tells how many nodes there are; give --nodes or a \
                 --tensor",
                config.edges.display()
            );
        }
        for (name, source) in &tensors {
            check_source(name, &**source, n_nodes)?;
        }
        // A pass that finds the first bad edge, before the long work starts.
        edges.for_each_chunk(&mut |_| Ok(()))?;
        Ok(Self { edges, tensors, n_nodes })
    }
}

fn rows(source: &dyn TensorSource) -> Result<u32> {
    u32::try_from(source.n_rows()).ok().filter(|&n| n < u32::MAX).with_context(|| {
        let (file, found) = (source.path().display(), source.n_rows());
        format!("{file}: {found} rows; a graph has at most 2^32 - 2 nodes")
    })
}
