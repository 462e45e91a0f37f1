//! The newtype for a row inside a partition.

use bytemuck::{Pod, Zeroable};

/// A row of a segment, counted from 0: the node's id minus the first id of its partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct RowIdx(pub u32);

impl std::fmt::Display for RowIdx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
