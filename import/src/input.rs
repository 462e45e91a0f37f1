//! The files of an import, opened and checked against each other before anything is written.

use std::path::{Path, PathBuf};

use lodestore_graph::edges::{EdgeFiles, EdgeStream, ReadAhead, spool};
use lodestore_graph::npy::{NpyArray, NpyType};
use lodestore_store::source::{TensorSource, check_source};

use crate::config::{ImportConfig, TensorFile};
use crate::error::{Error, node_count};
use crate::order::remove;

/// Partitions without a node that an import makes. Each takes files and time; more are a slip.
const EMPTY_PARTS_MAX: u32 = 64;

/// Parsed edges of a text.
const PARSED_FILE: &str = "edges.u32";

/// Edges, tensors, and the number of their nodes.
pub(crate) struct Input {
    pub(crate) edges: Box<dyn EdgeStream>,
    /// In the order of the configuration.
    pub(crate) tensors: Vec<Box<dyn TensorSource>>,
    pub(crate) n_nodes: u32,
    pub(crate) weights: Option<Weights>,
    /// The copy of edges that had to be parsed.
    parsed: Option<PathBuf>,
}

impl Input {
    /// Opens all files. The number of nodes is that of the configuration, else that of the first
    /// tensor's rows, else the largest id in the edges + 1. Tensors and edges must agree with it.
    pub(crate) fn open(config: &ImportConfig) -> Result<Self, Error> {
        let tensors = config.tensors.iter().map(TensorFile::open).collect::<Result<Vec<_>, _>>()?;
        let n_nodes = match (config.nodes, tensors.first()) {
            (Some(n_nodes), _) => Some(n_nodes),
            (None, Some(source)) => Some(node_count(source.path(), source.n_rows(), "rows")?),
            (None, None) => None,
        };
        // Reads all of them: the first bad edge is found before the long work starts.
        let edges =
            config.edges.open(n_nodes).map_err(|error| match (&tensors[..], config.nodes) {
                ([first, ..], None) if error.is_out_of_range() => {
                    let (file, rows) = (first.path().to_owned(), first.n_rows());
                    Error::FewRows { file, rows, source: Box::new(error) }
                }
                _ => error.into(),
            })?;
        let n_nodes = edges.n_nodes();
        if n_nodes == 0 {
            return Err(Error::NoNodes { files: config.edges.names() });
        }
        let n_parts = config.partition.n_parts;
        if u32::from(n_parts) > n_nodes.saturating_add(EMPTY_PARTS_MAX) {
            return Err(Error::FewNodes { n_parts, n_nodes });
        }
        for (tensor, source) in config.tensors.iter().zip(&tensors) {
            check_source(&tensor.name, &**source, n_nodes)?;
        }
        let weights = config.rules.edge_weights.as_deref();
        let weights = weights.map(|path| Weights::open(path, edges.n_edges())).transpose()?;
        Ok(Self { edges, tensors, n_nodes, weights, parsed: None })
    }

    /// Returns the tensors whose rows are longer than a server sends, each with the bytes of a row.
    pub(crate) fn long_rows<'a>(
        &'a self,
        config: &'a ImportConfig,
    ) -> impl Iterator<Item = (&'a str, u64)> {
        let most = config.max_served_row_bytes.unwrap_or(u64::MAX);
        let rows = self.tensors.iter().map(|source| row_bytes(&**source));
        let named = config.tensors.iter().map(|tensor| &*tensor.name).zip(rows);
        named.filter(move |&(_, bytes)| bytes > most)
    }

    /// Replaces edges in text, each pass over which would parse them, by a copy in `staging` that
    /// is read as it is.
    pub(crate) fn keep_parsed(&mut self, files: &EdgeFiles, staging: &Path) -> Result<(), Error> {
        if files.has_text()? {
            let path = staging.join(PARSED_FILE);
            self.edges = Box::new(ReadAhead::new(spool(&*self.edges, &path)?));
            self.parsed = Some(path);
        }
        Ok(())
    }

    /// Removes that copy.
    pub(crate) fn remove_parsed(&self) -> Result<(), Error> {
        self.parsed.as_deref().map_or(Ok(()), remove)
    }

    /// Returns the bytes of a row of the tensor whose rows are longest.
    pub(crate) fn widest_row_bytes(&self) -> Option<u64> {
        self.tensors.iter().map(|source| row_bytes(&**source)).max()
    }
}

fn row_bytes(source: &dyn TensorSource) -> u64 {
    source.width() * source.dtype().size_bytes() as u64
}

/// Weights in a mapped file, one of each edge.
pub(crate) struct Weights(NpyArray);

impl Weights {
    fn open(path: &Path, n_edges: u64) -> Result<Self, Error> {
        let array = NpyArray::open(path)?;
        let refused = |reason: String| Error::Weights { file: path.to_owned(), reason };
        if array.dtype() != NpyType::F32 || array.shape() != [n_edges] {
            let (dtype, shape) = (array.dtype(), array.shape());
            return Err(refused(format!(
                "weights of {n_edges} edges must be f32 of shape ({n_edges},), found {dtype} of \
                 shape {shape:?}"
            )));
        }
        let Ok(weights) = bytemuck::try_cast_slice::<u8, f32>(array.bytes()) else {
            let reason = "the numbers do not start at a multiple of 4 bytes; save it with NumPy";
            return Err(refused(reason.to_owned()));
        };
        if let Some(edge) = weights.iter().position(|weight| !weight.is_finite()) {
            let weight = weights[edge];
            return Err(refused(format!(
                "the weight of edge {edge} is {weight}; it must be finite"
            )));
        }
        Ok(Self(array))
    }

    pub(crate) fn as_slice(&self) -> &[f32] {
        // The cast was checked when the file was opened.
        bytemuck::try_cast_slice(self.0.bytes()).unwrap_or_default()
    }
}
