//! Which edges an import keeps, and what it keeps of them.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use lodestore_graph::npy::{NpyArray, NpyType};
use lodestore_graph::topology::{EdgePolicy, TopologyOptions};

/// Which edges an import keeps, and what it keeps of them.
#[derive(Args, Clone, Debug)]
pub(crate) struct KeptEdges {
    /// What to do with edges from a node to itself.
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = Policy::Keep)]
    self_loops: Policy,
    /// What to do with edges that are in the input more than once; where they are kept, each can
    /// be sampled.
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = Policy::Drop)]
    duplicates: Policy,
    /// Keep the position of each edge in the input beside the topology: 8 bytes an edge.
    #[arg(long)]
    edge_ids: bool,
    /// Keep a weight of each edge beside the topology: .npy of shape (E,), f32, in the order of
    /// the edges. Of repeated edges that are dropped the first one's is kept.
    #[arg(long, value_name = "FILE")]
    edge_weights: Option<PathBuf>,
}

/// What is done with some edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    Keep,
    Drop,
}

impl Default for KeptEdges {
    fn default() -> Self {
        let (self_loops, duplicates) = (Policy::Keep, Policy::Drop);
        Self { self_loops, duplicates, edge_ids: false, edge_weights: None }
    }
}

impl KeptEdges {
    /// Maps the weights, if there are any, of `n_edges` edges.
    pub(super) fn weights(&self, n_edges: u64) -> Result<Option<Weights>> {
        self.edge_weights.as_deref().map(|path| Weights::open(path, n_edges)).transpose()
    }

    pub(super) fn options<'a>(
        &self,
        undirected: bool,
        weights: Option<&'a Weights>,
    ) -> TopologyOptions<'a> {
        let policy = |policy| match policy {
            Policy::Keep => EdgePolicy::Keep,
            Policy::Drop => EdgePolicy::Drop,
        };
        TopologyOptions {
            undirected,
            self_loops: policy(self.self_loops),
            duplicates: policy(self.duplicates),
            edge_ids: self.edge_ids,
            weights: weights.map(Weights::as_slice),
            ..TopologyOptions::default()
        }
    }

    /// Columns kept, by name.
    pub(super) fn columns(&self) -> Vec<&'static str> {
        let columns = [("ids", self.edge_ids), ("weights", self.edge_weights.is_some())];
        columns.into_iter().filter(|(_, kept)| *kept).map(|(name, _)| name).collect()
    }

    /// Whether self loops and repeated edges are left out.
    pub(super) fn drops(&self) -> [bool; 2] {
        [self.self_loops, self.duplicates].map(|policy| policy == Policy::Drop)
    }
}

/// Weights in a mapped file, one of each edge.
pub(super) struct Weights(NpyArray);

impl Weights {
    fn open(path: &Path, n_edges: u64) -> Result<Self> {
        let array = NpyArray::open(path)?;
        let path = path.display();
        if array.dtype() != NpyType::F32 || array.shape() != [n_edges] {
            let (dtype, shape) = (array.dtype(), array.shape());
            bail!(
                "{path}: weights of {n_edges} edges must be f32 of shape ({n_edges},), found \
                 {dtype} of shape {shape:?}"
            );
        }
        let Ok(weights) = bytemuck::try_cast_slice::<u8, f32>(array.bytes()) else {
            bail!("{path}: the numbers do not start at a multiple of 4 bytes; save it with NumPy");
        };
        if let Some(edge) = weights.iter().position(|weight| !weight.is_finite()) {
            bail!("{path}: the weight of edge {edge} is {}; it must be finite", weights[edge]);
        }
        Ok(Self(array))
    }

    fn as_slice(&self) -> &[f32] {
        // That it can be was found out when it was opened.
        bytemuck::try_cast_slice(self.0.bytes()).unwrap_or_default()
    }
}
