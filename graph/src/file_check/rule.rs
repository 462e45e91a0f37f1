//! Rule for the numbers of a section.

use std::ops::Range;

/// Order and range of the numbers of a section.
#[derive(Clone, Debug)]
pub(super) enum Rule {
    /// u64: ascend from 0 to `end`.
    Offsets { end: u64 },
    /// u32: nodes of the graph.
    Nodes { graph_nodes: u32 },
    /// u32: ascend strictly, nodes of the graph that the partition does not own.
    Foreign { graph_nodes: u32, owned: Range<u32> },
    /// u16: at least 1, and fewer than there are partitions.
    Overlaps { n_parts: u16 },
    /// u32: anything.
    Any,
    /// f32: neither infinite nor NaN.
    Finite,
}

impl Rule {
    pub(super) const fn entry_bytes(&self) -> u64 {
        match self {
            Self::Offsets { .. } => 8,
            Self::Nodes { .. } | Self::Foreign { .. } | Self::Any | Self::Finite => 4,
            Self::Overlaps { .. } => 2,
        }
    }

    /// Returns the first and last number of `bytes`, and the first entry that is wrong.
    pub(super) fn check(
        &self,
        first_entry: u64,
        bytes: &[u8],
    ) -> (Option<(u64, u64)>, Option<u64>) {
        let wrong = match self {
            Self::Offsets { .. } => {
                let mut last = 0;
                u64s(bytes).position(|offset| std::mem::replace(&mut last, offset) > offset)
            }
            Self::Nodes { graph_nodes } => u32s(bytes).position(|id| id >= *graph_nodes),
            Self::Foreign { graph_nodes, owned } => {
                let mut least = 0u64;
                u32s(bytes).position(|id| {
                    let is_wrong =
                        u64::from(id) < least || id >= *graph_nodes || owned.contains(&id);
                    least = u64::from(id) + 1;
                    is_wrong
                })
            }
            Self::Overlaps { n_parts } => {
                u16s(bytes).position(|overlap| overlap == 0 || overlap >= *n_parts)
            }
            Self::Any => None,
            Self::Finite => u32s(bytes).position(|bits| !f32::from_bits(bits).is_finite()),
        };
        let ends = match self {
            Self::Offsets { .. } => u64s(bytes).next().zip(u64s(bytes).next_back()),
            Self::Overlaps { .. } => None,
            _ => u32s(bytes).next().zip(u32s(bytes).next_back()).map(|(a, b)| (a.into(), b.into())),
        };
        (ends, wrong.map(|entry| first_entry + entry as u64))
    }

    /// Returns whether the number `next` may follow `last`, the last one of the piece before.
    pub(super) fn may_follow(&self, last: u64, next: u64) -> bool {
        match self {
            Self::Offsets { .. } => last <= next,
            Self::Foreign { .. } => last < next,
            Self::Nodes { .. } | Self::Overlaps { .. } | Self::Any | Self::Finite => true,
        }
    }

    /// Returns the entry that is wrong about the first or the last number of a whole section.
    pub(super) fn check_ends(&self, ends: Option<(u64, u64)>, n_entries: u64) -> Option<u64> {
        let Self::Offsets { end } = self else { return None };
        match ends {
            Some((0, last)) if last == *end => None,
            Some((0, _)) => n_entries.checked_sub(1),
            _ => Some(0),
        }
    }
}

fn u64s(bytes: &[u8]) -> impl DoubleEndedIterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|&entry| u64::from_le_bytes(entry))
}

fn u32s(bytes: &[u8]) -> impl DoubleEndedIterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|&entry| u32::from_le_bytes(entry))
}

fn u16s(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.as_chunks().0.iter().map(|&entry| u16::from_le_bytes(entry))
}
