//! Relabelling: from the ids of the input to ids where each partition owns one contiguous range.

use thiserror::Error;

use crate::book::PartitionBook;
use crate::ids::PartId;

/// A bijection between external ids (of the input) and internal ids (of the stored graph).
///
/// Inside a partition nodes keep the order of the input, unless they were put in another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relabelling {
    /// Which internal ids each partition owns.
    pub book: PartitionBook,
    /// External id of each internal id.
    pub external_of: Vec<u32>,
    /// Internal id of each external id.
    pub internal_of: Vec<u32>,
}

/// The reason why an assignment of nodes to partitions has no relabelling.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RelabelError {
    /// A partition that does not exist.
    #[error("node {node} is assigned to partition {found}, but there are {n_parts}")]
    Part {
        /// External id of the node.
        node: usize,
        /// Partition found.
        found: PartId,
        /// Number of partitions.
        n_parts: u16,
    },
    /// More nodes than ids, or no partition.
    #[error(
        "{n_nodes} nodes in {n_parts} partitions: at most 2^32 - 1 nodes, at least 1 partition"
    )]
    Size {
        /// Number of nodes.
        n_nodes: usize,
        /// Number of partitions.
        n_parts: u16,
    },
    /// An order that leaves out a node, repeats one, or moves one to another partition.
    #[error("an order must list the nodes of each partition once; row {row} breaks it")]
    Order {
        /// The first row that is wrong; the number of nodes for an order that is too short.
        row: usize,
    },
}

impl Relabelling {
    /// Relabels by the partition of each external id.
    pub fn new(assignment: &[PartId], n_parts: u16) -> Result<Self, RelabelError> {
        let size = RelabelError::Size { n_nodes: assignment.len(), n_parts };
        if u32::try_from(assignment.len()).is_err() {
            return Err(size);
        }
        let mut counts = vec![0u32; usize::from(n_parts)];
        for (node, &found) in assignment.iter().enumerate() {
            let count = counts.get_mut(found.index());
            *count.ok_or(RelabelError::Part { node, found, n_parts })? += 1;
        }
        let book = PartitionBook::from_counts(&counts).ok_or(size)?;
        let mut next = book.bounds().to_vec();
        let mut internal_of = vec![0u32; assignment.len()];
        let mut external_of = vec![0u32; assignment.len()];
        for (external, part) in assignment.iter().enumerate() {
            let internal = &mut next[part.index()];
            internal_of[external] = *internal;
            external_of[*internal as usize] = external as u32;
            *internal += 1;
        }
        Ok(Self { book, external_of, internal_of })
    }

    /// Returns the same partitions in another order: row `i` goes to the node that had id
    /// `order[i]`.
    pub fn in_order(mut self, order: &[u32]) -> Result<Self, RelabelError> {
        if order.len() != self.external_of.len() {
            let row = order.len().min(self.external_of.len());
            return Err(RelabelError::Order { row });
        }
        let mut external_of = vec![0u32; order.len()];
        for part in self.book.parts() {
            let range = self.book.range(part);
            for row in range.clone() {
                let node = order[row as usize];
                if !range.contains(&node) {
                    return Err(RelabelError::Order { row: row as usize });
                }
                let external = self.external_of[node as usize];
                external_of[row as usize] = external;
                self.internal_of[external as usize] = row;
            }
        }
        // Of rows that repeat a node the node remembers the last one only.
        let repeated = (0..)
            .zip(&external_of)
            .position(|(row, &external): (u32, _)| self.internal_of[external as usize] != row);
        match repeated {
            Some(row) => Err(RelabelError::Order { row }),
            None => Ok(Self { external_of, ..self }),
        }
    }

    /// Returns one partition, in which every node keeps its id.
    #[must_use]
    pub fn identity(n_nodes: u32) -> Self {
        let ids: Vec<u32> = (0..n_nodes).collect();
        Self { book: PartitionBook::single(n_nodes), external_of: ids.clone(), internal_of: ids }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_partitions_that_do_not_exist() {
        let found = PartId(2);
        assert_eq!(
            Relabelling::new(&[PartId(0), found], 2),
            Err(RelabelError::Part { node: 1, found, n_parts: 2 })
        );
        assert!(matches!(Relabelling::new(&[], 0), Err(RelabelError::Size { .. })));
    }

    #[test]
    fn identity_is_the_relabelling_of_one_partition() {
        for n_nodes in [0, 1, 5] {
            let one = Relabelling::new(&vec![PartId(0); n_nodes], 1).unwrap();
            assert_eq!(Relabelling::identity(n_nodes as u32), one);
        }
    }

    #[test]
    fn an_order_that_is_none_is_refused() {
        let relabelling = Relabelling::new(&[0, 1, 0, 1, 1].map(PartId), 3).unwrap();
        let row_of_error = |order: &[u32]| match relabelling.clone().in_order(order) {
            Err(RelabelError::Order { row }) => row,
            other => panic!("{other:?}"),
        };
        assert_eq!(row_of_error(&[0, 1, 2, 3]), 4);
        assert_eq!(row_of_error(&[0, 1, 2, 3, 4, 5]), 5);
        assert_eq!(row_of_error(&[0, 2, 1, 3, 4]), 1);
        assert_eq!(row_of_error(&[0, 1, 2, 3, 5]), 4);
        assert_eq!(row_of_error(&[0, 1, 2, 3, 3]), 3);
        let other = relabelling.clone().in_order(&[1, 0, 3, 4, 2]).unwrap();
        assert_eq!(other.book, relabelling.book);
        assert_eq!(other.external_of, [2, 0, 3, 4, 1]);
        assert_eq!(other.internal_of, [1, 4, 0, 2, 3]);
    }

    proptest! {
        #[test]
        fn agrees_with_a_stable_sort_by_partition(parts in prop::collection::vec(0u16..5, 0..60)) {
            let assignment: Vec<PartId> = parts.iter().map(|&p| PartId(p)).collect();
            let relabelling = Relabelling::new(&assignment, 5).unwrap();
            let mut sorted: Vec<u32> = (0..parts.len() as u32).collect();
            sorted.sort_by_key(|&v| parts[v as usize]);
            prop_assert_eq!(&relabelling.external_of, &sorted);
            for (external, &internal) in relabelling.internal_of.iter().enumerate() {
                prop_assert_eq!(relabelling.external_of[internal as usize] as usize, external);
                let owner = relabelling.book.part_of(crate::ids::NodeId(internal));
                prop_assert_eq!(owner, Some(assignment[external]));
            }
        }
    }
}
