//! Newtypes for the ids that travel between crates.

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

/// A node after import: partition `p` owns one contiguous range of these.
///
/// 32 bits bound a graph to 2³² − 1 nodes and halve the topology and the id lists on the wire.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Pod,
    Zeroable,
    Serialize,
    Deserialize,
)]
#[repr(transparent)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// A partition of a graph, counted from 0.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Pod,
    Zeroable,
    Serialize,
    Deserialize,
)]
#[repr(transparent)]
#[serde(transparent)]
pub struct PartId(pub u16);

impl NodeId {
    /// Returns the id as an index into arrays of one entry per node.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl PartId {
    /// Returns the id as an index into arrays of one entry per partition.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::fmt::Display for PartId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
