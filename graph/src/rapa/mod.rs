//! RAPA: partitions give up halo replicas until no device has more to do than the others (CaPGNN,
//! section 4.3).
//!
//! A partition's subgraph has the in-edges of the nodes that it owns. Sources that it does not own
//! are its halo; an edge from one of them is an *outer* edge. Without a replica its outer edges go,
//! so what is computed changes: nothing here is applied to a graph, it only says what would go.

mod adjust;
mod collect;
mod cost;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::NodeId;

pub use adjust::adjust;
pub use collect::part_loads;

/// Speed of a device, in seconds of the same jobs on every device: larger is slower. Equations 13
/// and 14 divide each by the largest of all devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Its name.
    pub name: String,
    /// A matrix from host memory to the device.
    pub h2d_seconds: f64,
    /// The same matrix back.
    pub d2h_seconds: f64,
    /// The same matrix within the device.
    pub idt_seconds: f64,
    /// A sparse matrix times a dense one.
    pub spmm_seconds: f64,
    /// A dense matrix times a dense one.
    pub mm_seconds: f64,
    /// Memory for a subgraph, its features included.
    pub memory_bytes: u64,
}

/// Parameters of RAPA beside graph and devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RapaParams {
    /// Share of the sparse product in the cost of computing, in [0, 1] (Eq. 14).
    pub alpha: f64,
    /// Costs are balanced when their standard deviation is below this share of their mean.
    pub epsilon: f64,
    /// Bytes of a node in a subgraph: its features, and its place in index and lists.
    pub node_bytes: u64,
    /// Bytes of an edge.
    pub edge_bytes: u64,
    /// Bytes of a device for everything else: gradients, buffers.
    pub reserve_bytes: u64,
}

/// Defaults: α of one half, ε of 1 %, 100 MB of reserve (section 5.1). Nodes have 8 bytes beside
/// features, which are absent, and edges 4.
impl Default for RapaParams {
    fn default() -> Self {
        let (node_bytes, edge_bytes, reserve_bytes) = (8, 4, 100_000_000);
        Self { alpha: 0.5, epsilon: 0.01, node_bytes, edge_bytes, reserve_bytes }
    }
}

/// A halo replica of a partition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HaloReplica {
    /// The node.
    pub node: NodeId,
    /// Outer edges that start from it.
    pub edges: u32,
    /// How much would change without it (Eq. 16). In a subgraph of in-edges a replica has no
    /// incoming edge, so that the equation's second sum is empty.
    pub influence: f64,
}

/// Work of a partition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartLoad {
    /// Nodes that it owns.
    pub inner: u64,
    /// In-edges of these.
    pub edges: u64,
    /// Its halo, of lowest influence first; of equals the lower id.
    pub replicas: Vec<HaloReplica>,
}

/// Partitions after RAPA.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjusted {
    /// Each partition.
    pub parts: Vec<AdjustedPart>,
    /// Passes over them (Alg. 3), the last of which may have changed nothing.
    pub passes: u32,
    /// Standard deviation of the costs before, and after.
    pub deviation: [f64; 2],
    /// Whether that is below ε, rather than that nothing was left to give up.
    pub is_balanced: bool,
}

/// One partition after RAPA.
#[derive(Clone, Debug, PartialEq)]
pub struct AdjustedPart {
    /// How many of its replicas go: the first of [`PartLoad::replicas`].
    pub n_dropped: usize,
    /// Edges that go with them.
    pub edges_dropped: u64,
    /// Its cost before, and after: λ of Eq. 15.
    pub cost: [f64; 2],
    /// Bytes that it needs after.
    pub bytes: u64,
    /// Whether its device has these.
    pub fits: bool,
}

/// Why there is nothing to adjust.
#[derive(Debug, Error, PartialEq)]
pub enum RapaError {
    /// Partitions without devices.
    #[error("{parts} partitions need as many devices, or one profile for all; found {found}")]
    Devices {
        /// Partitions.
        parts: usize,
        /// Profiles given.
        found: usize,
    },
    /// A profile that no device has.
    #[error("device `{name}`: {figure} must be a time above 0, found {found}")]
    Profile {
        /// The device.
        name: String,
        /// Which figure.
        figure: &'static str,
        /// The given value.
        found: f64,
    },
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
}

#[cfg(test)]
mod tests;
