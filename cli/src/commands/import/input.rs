//! The files of an import, opened and checked against each other before anything is written.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lodestore_graph::edges::{EdgeFiles, EdgeStream, ReadAhead, spool};
use lodestore_server::limits::ROW_BYTES_MAX;
use lodestore_store::{TensorSource, check_source};

use super::kept::Weights;
use super::order::remove;
use super::{ImportConfig, ImportTensor};

/// Edges of a text, parsed.
const PARSED_FILE: &str = "edges.u32";

/// Edges, tensors, and how many nodes they are about.
pub(super) struct Input {
    pub(super) edges: Box<dyn EdgeStream>,
    /// As in the configuration.
    pub(super) tensors: Vec<Box<dyn TensorSource>>,
    pub(super) n_nodes: u32,
    pub(super) weights: Option<Weights>,
    /// Where edges are that had to be parsed.
    parsed: Option<PathBuf>,
}

impl Input {
    /// The number of nodes is `--nodes`, or that of the first tensor's rows, or the largest id in
    /// the edges + 1; all tensors must agree with it, and all edges must stay below it.
    pub(super) fn open(config: &ImportConfig) -> Result<Self> {
        let tensors =
            config.tensors.iter().map(ImportTensor::open).collect::<Result<Vec<_>, _>>()?;
        let n_nodes = match (config.nodes, tensors.first()) {
            (Some(n_nodes), _) => Some(n_nodes),
            (None, Some(source)) => Some(rows(&**source)?),
            (None, None) => None,
        };
        // Reads all of them: the first bad edge is found before the long work starts.
        let edges = config.edges.open(n_nodes)?;
        let n_nodes = edges.n_nodes();
        if n_nodes == 0 {
            bail!(
                "{}: no edges, and nothing else tells how many nodes there are; give --nodes or a \
                 --tensor",
                config.edges.names()
            );
        }
        for (tensor, source) in config.tensors.iter().zip(&tensors) {
            check_source(&tensor.name, &**source, n_nodes)?;
        }
        let weights = config.kept.weights(edges.n_edges())?;
        Ok(Self { edges, tensors, n_nodes, weights, parsed: None })
    }

    /// Names the tensors whose rows are too long for a server, before the long work starts.
    pub(super) fn warn_of_long_rows(&self, config: &ImportConfig) -> Vec<String> {
        let long = config.tensors.iter().zip(&self.tensors).filter_map(|(tensor, source)| {
            let found = row_bytes(&**source);
            (found > ROW_BYTES_MAX as u64).then(|| {
                eprintln!(
                    "lode: warning: tensor `{}` has rows of {found} bytes, and a server sends at most \
                     {ROW_BYTES_MAX}: this graph can be read here, and `lode serve` refuses it",
                    tensor.name
                );
                tensor.name.clone()
            })
        });
        long.collect()
    }

    /// Replaces edges in text, each pass over which would parse them, by a copy in `staging` that
    /// is read as it is.
    pub(super) fn keep_parsed(&mut self, files: &EdgeFiles, staging: &Path) -> Result<()> {
        if files.has_text()? {
            let path = staging.join(PARSED_FILE);
            self.edges = Box::new(ReadAhead::new(spool(&*self.edges, &path)?));
            self.parsed = Some(path);
        }
        Ok(())
    }

    /// Removes that copy.
    pub(super) fn remove_parsed(&self) -> Result<()> {
        self.parsed.as_deref().map_or(Ok(()), remove)
    }

    /// Bytes of a row of the tensor whose rows are longest.
    pub(super) fn widest_row_bytes(&self) -> Option<u64> {
        self.tensors.iter().map(|source| row_bytes(&**source)).max()
    }
}

fn row_bytes(source: &dyn TensorSource) -> u64 {
    source.width() * source.dtype().size_bytes() as u64
}

fn rows(source: &dyn TensorSource) -> Result<u32> {
    u32::try_from(source.n_rows()).ok().filter(|&n| n < u32::MAX).with_context(|| {
        let (file, found) = (source.path().display(), source.n_rows());
        format!("{file}: {found} rows; a graph has at most 2^32 - 2 nodes")
    })
}
