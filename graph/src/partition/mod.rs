//! Partitioners: each sees passes over an edge stream and memory of the order of the nodes, and
//! gives every node one owner.

mod hash;
mod report;
mod spring;

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use thiserror::Error;

use crate::PartId;
use crate::edges::{EdgeError, EdgeStream};

pub use report::{PartitionReport, StepSeconds};
pub use spring::SpringParams;
pub(crate) use spring::{MergedClusters, UNSEEN, merged_clusters};

/// Who owns each node, and what that is worth.
#[derive(Clone, Debug)]
pub struct Partitioning {
    /// Owner of each external id.
    pub assignment: Vec<PartId>,
    /// Cut, copies, balance, time and memory.
    pub report: PartitionReport,
}

/// How nodes are given to partitions.
#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    /// By a hash of the id: even, and blind to the edges.
    Hash,
    /// By ranges of ids: as good as the order of the input.
    Range,
    /// SPRING (SDT-GNN, Algorithm 1).
    Spring(SpringParams),
}

/// Why a graph could not be partitioned.
#[derive(Debug, Error)]
pub enum PartitionError {
    /// The edges could not be read.
    #[error(transparent)]
    Edges(#[from] EdgeError),
    /// The edges name nodes past the last one.
    #[error("the edges name {found} nodes, but the graph has {expected}")]
    Nodes {
        /// Nodes of the graph.
        expected: u32,
        /// Nodes of the edge stream.
        found: u32,
    },
    /// There is nowhere to put nodes.
    #[error("a graph needs at least 1 partition, found 0")]
    NoParts,
    /// A parameter out of range.
    #[error("{name} must be {expected}, found {found}")]
    Parameter {
        /// Its name.
        name: &'static str,
        /// What is accepted.
        expected: &'static str,
        /// What was given.
        found: f64,
    },
    /// An algorithm that is not known.
    #[error("partitioner {found:?} is not known; hash, range and spring are")]
    Algorithm {
        /// Name given.
        found: String,
    },
}

/// Gives every node an owner, and measures the result.
///
/// `undirected` says that each edge stands for both directions. Nodes without edges are owned
/// too; partitions may stay empty when there are more of them than nodes.
pub fn partition(
    edges: &dyn EdgeStream,
    n_nodes: u32,
    n_parts: u16,
    undirected: bool,
    algorithm: &Algorithm,
) -> Result<Partitioning, PartitionError> {
    if n_parts == 0 {
        return Err(PartitionError::NoParts);
    }
    if edges.n_nodes() > n_nodes {
        return Err(PartitionError::Nodes { expected: n_nodes, found: edges.n_nodes() });
    }
    let mut steps = Steps::new();
    let assignment = match algorithm {
        Algorithm::Hash => hash::by_hash(n_nodes, n_parts),
        Algorithm::Range => hash::by_range(n_nodes, n_parts),
        Algorithm::Spring(params) => spring::spring(edges, n_nodes, n_parts, params, &mut steps)?,
    };
    steps.done("assignment");
    let name = algorithm.to_string();
    let report = report::measure(edges, &assignment, n_parts, undirected, &name, steps.done)?;
    Ok(Partitioning { assignment, report })
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hash => "hash",
            Self::Range => "range",
            Self::Spring(_) => "spring",
        })
    }
}

impl FromStr for Algorithm {
    type Err = PartitionError;

    /// Takes an algorithm by name, with its default parameters.
    fn from_str(name: &str) -> Result<Self, PartitionError> {
        match name {
            "hash" => Ok(Self::Hash),
            "range" => Ok(Self::Range),
            "spring" => Ok(Self::Spring(SpringParams::default())),
            _ => Err(PartitionError::Algorithm { found: name.to_owned() }),
        }
    }
}

/// A stopwatch that notes how long each step took.
struct Steps {
    since: Instant,
    done: Vec<StepSeconds>,
}

impl Steps {
    fn new() -> Self {
        Self { since: Instant::now(), done: Vec::new() }
    }

    /// The time since the last step was spent on `step`.
    fn done(&mut self, step: impl Into<String>) {
        let now = Instant::now();
        let seconds = (now - self.since).as_secs_f64();
        self.done.push(StepSeconds { step: step.into(), seconds });
        self.since = now;
    }
}

#[cfg(test)]
mod tests;
