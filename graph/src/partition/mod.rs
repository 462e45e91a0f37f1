//! Partitioners: each sees passes over an edge stream and memory of the order of the nodes, and
//! gives every node one owner.

mod hash;
mod loads;
mod refine;
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

/// What is to be done to a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionConfig {
    /// Who gives nodes to partitions.
    pub algorithm: Algorithm,
    /// Number of partitions, 1 or more.
    pub n_parts: u16,
    /// Each edge stands for both directions.
    pub undirected: bool,
    /// When given, no partition owns more than this times |V| / p nodes, rounded down, but at
    /// least |V| / p rounded up. Refinement keeps to [`REFINED_BALANCE`] where nothing is given.
    pub max_balance: Option<f64>,
    /// Rounds of refinement after the algorithm.
    pub refine_rounds: u32,
}

/// Balance that refinement keeps to unless told otherwise.
pub const REFINED_BALANCE: f64 = 1.05;

impl PartitionConfig {
    /// `algorithm` alone: directed, without refinement or a bound of balance.
    #[must_use]
    pub fn new(algorithm: Algorithm, n_parts: u16) -> Self {
        Self { algorithm, n_parts, undirected: false, max_balance: None, refine_rounds: 0 }
    }

    fn check(&self) -> Result<(), PartitionError> {
        if self.n_parts == 0 {
            return Err(PartitionError::NoParts);
        }
        match self.max_balance {
            Some(found) if !(1.0..=f64::MAX).contains(&found) => {
                let (name, expected) = ("max_balance", "a number from 1");
                Err(PartitionError::Parameter { name, expected, found })
            }
            _ => Ok(()),
        }
    }

    /// Nodes that a partition may own.
    fn capacity(&self, n_nodes: u32) -> Option<u64> {
        let refined = (self.refine_rounds > 0).then_some(REFINED_BALANCE);
        let per_part = f64::from(n_nodes) / f64::from(self.n_parts);
        let fewest = u64::from(n_nodes).div_ceil(u64::from(self.n_parts));
        self.max_balance.or(refined).map(|most| fewest.max((most * per_part) as u64))
    }
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
/// Nodes without edges are owned too; partitions may stay empty when there are more of them than
/// nodes. The same edges in the same order give the same owners.
pub fn partition(
    edges: &dyn EdgeStream,
    n_nodes: u32,
    config: &PartitionConfig,
) -> Result<Partitioning, PartitionError> {
    config.check()?;
    if edges.n_nodes() > n_nodes {
        return Err(PartitionError::Nodes { expected: n_nodes, found: edges.n_nodes() });
    }
    let mut steps = Steps::new();
    let (n_parts, capacity) = (config.n_parts, config.capacity(n_nodes));
    let mut assignment = match &config.algorithm {
        Algorithm::Hash => hash::by_hash(n_nodes, n_parts),
        Algorithm::Range => hash::by_range(n_nodes, n_parts),
        Algorithm::Spring(params) => {
            spring::spring(edges, n_nodes, n_parts, params, capacity, &mut steps)?
        }
    };
    if let Some(capacity) = capacity {
        loads::relieve_all(&mut assignment, n_parts, capacity);
    }
    steps.done("assignment");
    if let Some(capacity) = capacity.filter(|_| config.refine_rounds > 0) {
        let rounds = config.refine_rounds;
        refine::refine(edges, &mut assignment, n_parts, capacity, rounds, &mut steps)?;
    }
    let report = report::measure(edges, &assignment, config, steps.done)?;
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
