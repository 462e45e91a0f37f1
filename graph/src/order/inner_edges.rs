//! The edges that stay inside one partition.

use std::ops::Range;

use crate::edges::{CHUNK_EDGES, EdgeError, EdgeStream, VisitChunk};
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

    /// Returns how many neighbours of `row` are rows.
    #[inline]
    pub(super) fn degree(&self, row: u32) -> u32 {
        self.list(row).len() as u32
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

/// The same as a stream: each edge once, from the lower row to the higher.
pub(super) struct InsideEdges<'a> {
    inside: &'a Inside<'a>,
    n_edges: u64,
}

impl<'a> InsideEdges<'a> {
    pub(super) fn new(inside: &'a Inside<'a>) -> Self {
        let lower = |row| inside.neighbours(row).take_while(move |&other| other <= row).count();
        let n_edges = (0..inside.n_rows()).map(|row| lower(row) as u64).sum();
        Self { inside, n_edges }
    }
}

impl EdgeStream for InsideEdges<'_> {
    fn n_edges(&self) -> u64 {
        self.n_edges
    }

    fn n_nodes(&self) -> u32 {
        self.inside.n_rows()
    }

    fn for_each_chunk(&self, f: &mut VisitChunk<'_>) -> Result<(), EdgeError> {
        let mut chunk = Vec::with_capacity(CHUNK_EDGES);
        for row in 0..self.inside.n_rows() {
            for other in self.inside.neighbours(row).take_while(|&other| other <= row) {
                chunk.push([other, row]);
                if chunk.len() == CHUNK_EDGES {
                    f(&chunk)?;
                    chunk.clear();
                }
            }
        }
        if chunk.is_empty() { Ok(()) } else { f(&chunk) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{graph, inside};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn edges_are_those_whose_ends_are_both_inside(graph in graph()) {
            let (topology, book) = graph;
            for part in book.parts() {
                let range = book.range(part);
                let mut expected = Vec::new();
                for v in range.clone() {
                    for &u in topology.in_neighbours(NodeId(v)) {
                        if u <= v && range.contains(&u) {
                            expected.push([u - range.start, v - range.start]);
                        }
                    }
                }
                let inside = inside(&topology, &book, part);
                let edges = InsideEdges::new(&inside);
                let mut found = Vec::new();
                edges.for_each_chunk(&mut |chunk| {
                    found.extend_from_slice(chunk);
                    Ok(())
                }).unwrap();
                prop_assert_eq!(edges.n_edges(), expected.len() as u64);
                prop_assert_eq!(found, expected);
            }
        }
    }
}
