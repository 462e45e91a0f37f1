//! Partitioners: each sees passes over an edge stream and memory of the order of the nodes, and
//! returns every node one owner.

mod algorithm;
mod hash;
mod loads;
#[cfg(feature = "metis")]
mod metis;
mod plan;
mod refine;
mod report;
mod spring;
pub(crate) mod steps;
mod vertex_cut;
mod workload;

use thiserror::Error;

use crate::edges::{EdgeError, EdgeStream};
use crate::ids::PartId;
use crate::topology::Direction;

pub use algorithm::Algorithm;
pub use plan::{MemoryPlan, PlannedPhase};
pub use report::{PartitionReport, StreamOrder};
pub use spring::{ClusterCounts, SpringParams};
pub use steps::StepSeconds;
pub use vertex_cut::VertexCutReport;
pub use workload::{Workers, Workload};

use refine::RefineSettings;
use steps::Steps;
use vertex_cut::vertex_cut;

/// Assignment of nodes to partitions, and its quality.
#[derive(Clone, Debug)]
pub struct Partitioning {
    /// Owner of each external id.
    pub assignment: Vec<PartId>,
    /// Cut, copies, balance, time and memory.
    pub report: PartitionReport,
}

/// Settings of a partitioning.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionConfig {
    /// The algorithm that assigns nodes to partitions.
    pub algorithm: Algorithm,
    /// Number of partitions, 1 or more.
    pub n_parts: u16,
    /// Whether each edge stands for both directions.
    pub direction: Direction,
    /// When given, no partition owns more than this times |V| / p nodes, rounded down, but at
    /// least |V| / p rounded up. Refinement keeps to [`REFINED_BALANCE`] where nothing is given.
    pub max_balance: Option<f64>,
    /// Rounds of refinement after the algorithm.
    pub refine_rounds: u32,
    /// Bytes that a step may take whose size depends on the edges; it fails where it needs more.
    pub max_memory_bytes: Option<u64>,
}

/// Balance that refinement keeps to by default.
pub const REFINED_BALANCE: f64 = 1.05;

impl PartitionConfig {
    /// Returns `algorithm` alone: directed, without refinement or a bound of balance or memory.
    #[must_use]
    pub fn new(algorithm: Algorithm, n_parts: u16) -> Self {
        Self {
            algorithm,
            n_parts,
            direction: Direction::Directed,
            max_balance: None,
            refine_rounds: 0,
            max_memory_bytes: None,
        }
    }

    /// Checks that the parameters are in range.
    pub fn check(&self) -> Result<(), PartitionError> {
        if let Algorithm::Spring(params) = &self.algorithm {
            params.check()?;
        }
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

    /// Returns the number of nodes that a partition may own.
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
        /// The accepted values.
        expected: &'static str,
        /// The given value.
        found: f64,
    },
    /// Training leaves no memory for data.
    #[error(
        "{n_workers} workers with {memory_bytes} bytes each, of which training takes \
         {reserved_bytes}, have no room for data; give more memory or reserve less"
    )]
    Memory {
        /// Memory of each worker.
        memory_bytes: u64,
        /// Ratio of it that is used for training.
        reserved_bytes: u64,
        /// Number of workers.
        n_workers: u16,
    },
    /// SPRING found more clusters than there is memory to merge.
    #[error(
        "merging the {n_clusters} clusters that SPRING found needs {needed_bytes} bytes, and \
         {max_bytes} are free; a larger tau finds fewer"
    )]
    MergingMemory {
        /// Clusters found.
        n_clusters: u32,
        /// Bytes needed to merge them.
        needed_bytes: u64,
        /// Bytes that may be taken.
        max_bytes: u64,
    },
    /// More partitions than there can be.
    #[error("{found} partitions are needed, but there can be {most} at most; give more memory")]
    TooManyParts {
        /// Partitions needed.
        found: u64,
        /// Partitions possible.
        most: u16,
    },
    /// This build has no METIS.
    #[error("this build has no METIS (cargo feature `metis`)")]
    NoMetis,
    /// METIS refused.
    #[error("METIS cannot partition this graph: {message}")]
    Metis {
        /// The fault.
        message: String,
    },
    /// An algorithm that is not known.
    #[error(
        "partitioner {found:?} is not known; hash, range, dbh, greedy, hdrf, 2ps-l and spring are"
    )]
    Algorithm {
        /// Name given.
        found: String,
    },
}

/// Assigns an owner to every node, and measures the result.
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
    let mut steps = Steps::new(edges.n_edges());
    let (n_parts, capacity) = (config.n_parts, config.capacity(n_nodes));
    let (mut copies, mut clusters) = (None, None);
    let mut assignment = match &config.algorithm {
        Algorithm::Hash => hash::by_hash(n_nodes, n_parts),
        Algorithm::Range => hash::by_range(n_nodes, n_parts),
        Algorithm::Spring(params) => {
            let (owners, counts) = spring::spring(edges, n_nodes, params, config, &mut steps)?;
            clusters = Some(counts);
            owners
        }
        #[cfg(feature = "metis")]
        Algorithm::Metis => {
            metis::by_metis(edges, n_nodes, n_parts, config.max_balance, &mut steps)?
        }
        #[cfg(not(feature = "metis"))]
        Algorithm::Metis => return Err(PartitionError::NoMetis),
        Algorithm::Dbh | Algorithm::Greedy | Algorithm::Hdrf | Algorithm::TwoPsL => {
            let algorithm = &config.algorithm;
            let (owners, report) = vertex_cut(edges, n_nodes, n_parts, algorithm, &mut steps)?;
            copies = Some(report);
            owners
        }
    };
    if let Some(capacity) = capacity {
        loads::relieve_all(&mut assignment, n_parts, capacity);
    }
    steps.done("assignment", 0);
    if let Some(capacity) = capacity.filter(|_| config.refine_rounds > 0) {
        let settings = RefineSettings { n_parts, capacity, n_rounds: config.refine_rounds };
        refine::refine(edges, &mut assignment, settings, &mut steps)?;
    }
    let (steps, peak_growth_bytes) = steps.finish();
    let mut report = report::measure(edges, &assignment, config, steps, peak_growth_bytes)?;
    (report.vertex_cut, report.clusters) = (copies, clusters);
    Ok(Partitioning { assignment, report })
}

#[cfg(test)]
mod tests;
