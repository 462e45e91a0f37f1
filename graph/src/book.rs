//! The partition book: which partition owns which node.

use std::ops::Range;

use thiserror::Error;

use crate::ids::{NodeId, PartId};

/// Range bounds of all partitions; routing is a search over them, then a subtraction.
///
/// Invariant: `bounds` starts with 0, never decreases, and has one entry more than there are
/// partitions. An empty partition has two equal bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionBook {
    bounds: Vec<u32>,
}

/// Why a list of bounds is not a partition book.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BookError {
    /// Fewer than two bounds name no partition.
    #[error("a partition book needs at least 2 bounds (1 partition), found {found}")]
    TooShort {
        /// Bounds given.
        found: usize,
    },
    /// More partitions than a `PartId` can name.
    #[error("a graph has at most {} partitions, found {found}", u16::MAX)]
    TooLong {
        /// Partitions given.
        found: usize,
    },
    /// The first range must start at node 0.
    #[error("the first bound must be 0, found {found}")]
    Start {
        /// First bound given.
        found: u32,
    },
    /// A range ends before it starts.
    #[error("bound {position} is {found}, below the bound before it ({before})")]
    Decreasing {
        /// Position in the list.
        position: usize,
        /// Bound at that position.
        found: u32,
        /// Bound before it.
        before: u32,
    },
}

impl PartitionBook {
    /// Checks and takes `parts + 1` bounds.
    pub fn new(bounds: Vec<u32>) -> Result<Self, BookError> {
        if bounds.len() < 2 {
            return Err(BookError::TooShort { found: bounds.len() });
        }
        if bounds.len() - 1 > usize::from(u16::MAX) {
            return Err(BookError::TooLong { found: bounds.len() - 1 });
        }
        if bounds[0] != 0 {
            return Err(BookError::Start { found: bounds[0] });
        }
        if let Some(i) = (1..bounds.len()).find(|&i| bounds[i] < bounds[i - 1]) {
            let (found, before) = (bounds[i], bounds[i - 1]);
            return Err(BookError::Decreasing { position: i, found, before });
        }
        Ok(Self { bounds })
    }

    /// Returns the book of partitions with these many nodes each, in order.
    ///
    /// Fails when the sum passes 2³² − 1 or there is no partition.
    pub fn from_counts(counts: &[u32]) -> Option<Self> {
        let mut bounds = Vec::with_capacity(counts.len() + 1);
        bounds.push(0u32);
        let mut end = 0u32;
        for &count in counts {
            end = end.checked_add(count)?;
            bounds.push(end);
        }
        Self::new(bounds).ok()
    }

    /// Returns the book of one partition that owns every node.
    #[must_use]
    pub fn single(n_nodes: u32) -> Self {
        Self { bounds: vec![0, n_nodes] }
    }

    /// Returns the number of partitions, at least 1.
    #[must_use]
    pub fn n_parts(&self) -> u16 {
        u16::try_from(self.bounds.len() - 1).unwrap_or(u16::MAX)
    }

    /// Returns the number of nodes of the whole graph.
    #[must_use]
    #[inline]
    pub fn n_nodes(&self) -> u32 {
        self.bounds[self.bounds.len() - 1]
    }

    /// Returns all partitions in order.
    pub fn parts(&self) -> impl Iterator<Item = PartId> + use<> {
        (0..self.n_parts()).map(PartId)
    }

    /// Returns the nodes that `part` owns; empty for a partition that does not exist.
    #[must_use]
    pub fn range(&self, part: PartId) -> Range<u32> {
        match self.bounds.get(part.index()..part.index() + 2) {
            Some(&[start, end]) => start..end,
            _ => 0..0,
        }
    }

    /// Returns the owner of `node` and the node's row in it; `None` past the last node.
    #[must_use]
    #[inline]
    pub fn locate(&self, node: NodeId) -> Option<(PartId, u32)> {
        if node.0 >= self.n_nodes() {
            return None;
        }
        let part = self.bounds.partition_point(|&bound| bound <= node.0) - 1;
        Some((PartId(u16::try_from(part).ok()?), node.0 - self.bounds[part]))
    }

    /// Returns the owner of `node`; `None` past the last node.
    #[must_use]
    pub fn part_of(&self, node: NodeId) -> Option<PartId> {
        self.locate(node).map(|(part, _)| part)
    }

    /// Returns the `parts + 1` bounds.
    #[must_use]
    pub fn bounds(&self) -> &[u32] {
        &self.bounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_what_is_no_book() {
        assert_eq!(PartitionBook::new(vec![0]), Err(BookError::TooShort { found: 1 }));
        assert_eq!(PartitionBook::new(vec![1, 2]), Err(BookError::Start { found: 1 }));
        assert_eq!(
            PartitionBook::new(vec![0, 5, 4]),
            Err(BookError::Decreasing { position: 2, found: 4, before: 5 })
        );
        assert!(PartitionBook::from_counts(&[u32::MAX, 1]).is_none());
        assert!(PartitionBook::from_counts(&[]).is_none());
    }

    #[test]
    fn empty_partitions_own_nothing() {
        let book = PartitionBook::from_counts(&[0, 2, 0, 1, 0]).unwrap();
        assert_eq!(book.locate(NodeId(0)), Some((PartId(1), 0)));
        assert_eq!(book.locate(NodeId(1)), Some((PartId(1), 1)));
        assert_eq!(book.locate(NodeId(2)), Some((PartId(3), 0)));
        assert_eq!(book.locate(NodeId(3)), None);
        assert_eq!(book.range(PartId(4)), 3..3);
        assert_eq!(book.range(PartId(5)), 0..0);
    }

    proptest! {
        #[test]
        fn locate_agrees_with_a_scan(counts in prop::collection::vec(0u32..5, 1..9)) {
            let book = PartitionBook::from_counts(&counts).unwrap();
            for id in 0..book.n_nodes() + 2 {
                let naive = book.parts().find(|&p| book.range(p).contains(&id))
                    .map(|p| (p, id - book.range(p).start));
                prop_assert_eq!(book.locate(NodeId(id)), naive);
            }
        }
    }
}
