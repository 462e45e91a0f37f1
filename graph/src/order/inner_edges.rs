//! The edges that stay inside one partition.

use std::ops::Range;

use crate::ids::NodeId;
use crate::topology::Topology;

/// The lists of a partition's nodes, cut down to nodes of the same partition. Nodes are rows:
/// counted from the partition's first.
pub(super) struct Inside<'a> {
    topology: &'a Topology,
    range: Range<u32>,
}

impl<'a> Inside<'a> {
    /// Returns the nodes of `range` in `topology`, which holds each edge in both directions.
    pub(super) fn new(topology: &'a Topology, range: Range<u32>) -> Self {
        Self { topology, range }
    }

    /// Returns the number of rows.
    pub(super) fn n_rows(&self) -> u32 {
        self.range.end - self.range.start
    }

    /// Returns the neighbours of `row` that are rows themselves, ascending; a self loop is one of
    /// them.
    #[inline]
    pub(super) fn neighbours(&self, row: u32) -> impl Iterator<Item = u32> + use<'a> {
        let start = self.range.start;
        self.list(row).iter().map(move |id| id - start)
    }

    /// Returns how many neighbours `row` has in the whole graph.
    pub(super) fn full_degree(&self, row: u32) -> u32 {
        self.topology.in_degree(NodeId(self.range.start + row))
    }

    /// Lists ascend by id and a partition owns one range of ids: its part of a list is one run.
    #[inline]
    fn list(&self, row: u32) -> &'a [u32] {
        let list = self.topology.in_neighbours(NodeId(self.range.start + row));
        let first = list.partition_point(|&id| id < self.range.start);
        let end = list.partition_point(|&id| id < self.range.end);
        &list[first..end]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{graph, inside};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn neighbours_are_those_of_the_same_partition(graph in graph()) {
            let (topology, book) = graph;
            for part in book.parts() {
                let range = book.range(part);
                let inside = inside(&topology, &book, part);
                for row in 0..inside.n_rows() {
                    let mut expected = topology.in_neighbours(NodeId(range.start + row)).to_vec();
                    expected.retain(|id| range.contains(id));
                    let found: Vec<u32> =
                        inside.neighbours(row).map(|other| range.start + other).collect();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }
}
