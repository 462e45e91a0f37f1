//! Folder layouts of other projects, read as the inputs of an import.
//!
//! Files that the store can read are used as they are. Others are converted, in bounded memory, to
//! files of a scratch folder beside the graph. Lists of node ids become splits, labels with NaN
//! integers, text packed rows, and pairs of ids edges.

mod convert;
mod graphbolt;
mod ogb;
mod text;

use std::path::Path;
use std::str::FromStr;

use lodestore_graph::edges::{EdgeFile, EdgeFiles};
use lodestore_graph::topology::Direction;
use tempfile::TempDir;
use thiserror::Error;

use crate::config::TensorFile;
use crate::error::Error;
use crate::run::parent_of;

/// Label of a node that has none.
pub const NO_LABEL: i64 = -1;
/// Values of the tensor `split`: training, validation, test, and nodes of none.
pub const SPLIT_VALUES: [u8; 4] = [0, 1, 2, 255];

/// A folder layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A node property dataset of the Open Graph Benchmark, as its downloads are: `raw/` with
    /// `.csv.gz` or `.npz` files, and `split/`.
    Ogb,
    /// An on-disk dataset of DGL's GraphBolt before its preprocessing: `metadata.yaml` and the
    /// files that it names.
    GraphBolt,
}

/// A name of no layout.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("layout {found:?} is not known; ogb and graphbolt are")]
pub struct UnknownLayout {
    /// The name given.
    pub found: String,
}

impl FromStr for Layout {
    type Err = UnknownLayout;

    fn from_str(text: &str) -> Result<Self, UnknownLayout> {
        match text {
            "ogb" => Ok(Self::Ogb),
            "graphbolt" => Ok(Self::GraphBolt),
            _ => Err(UnknownLayout { found: text.to_owned() }),
        }
    }
}

/// The inputs of an import that a folder holds.
#[derive(Debug)]
pub struct Dataset {
    /// Files of edges.
    pub edges: EdgeFiles,
    /// Tensors, by the names `feat`, `label`, `split` and those of the layout.
    pub tensors: Vec<TensorFile>,
    /// Number of nodes.
    pub nodes: u32,
    /// Undirected where the layout says that each edge stands for both directions.
    pub direction: Direction,
    /// Parts of the dataset that are left out, for people.
    pub warnings: Vec<String>,
    /// How the dataset was understood, for people.
    pub notes: Vec<String>,
    /// Converted files; removed with this.
    scratch: TempDir,
}

impl Dataset {
    /// Reads the folder `dir`. Converted files go to a folder beside `out`, the place of the graph.
    pub fn open(layout: Layout, dir: &Path, out: &Path) -> Result<Self, Error> {
        let parent = parent_of(out);
        let scratch = tempfile::Builder::new().prefix(".lode-").tempdir_in(parent);
        let scratch = scratch.map_err(Error::io(parent, "create a folder in"))?;
        match layout {
            Layout::Ogb => ogb::open(dir, scratch),
            Layout::GraphBolt => graphbolt::open(dir, scratch),
        }
    }

    /// Returns the dataset of these edges alone, of one direction.
    fn new(edges: EdgeFile, nodes: u32, scratch: TempDir) -> Self {
        Self {
            edges: EdgeFiles::one(edges),
            tensors: Vec::new(),
            nodes,
            direction: Direction::Directed,
            warnings: Vec::new(),
            notes: Vec::new(),
            scratch,
        }
    }

    /// Returns the folder of converted files.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }
}

#[cfg(test)]
mod tests;
