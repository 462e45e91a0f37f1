//! The subgraph of a partition: neighbour lists of its own nodes, and its halo.

use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

use crate::batch::Block;
use crate::book::PartitionBook;
use crate::ids::{NodeId, PartId};
use crate::node_set::NodeSet;
use crate::topology::Topology;

/// Halos of all partitions: foreign nodes in the neighbour lists of a partition's own nodes.
#[derive(Debug)]
pub struct Halos {
    /// By partition, in rising order.
    sets: Vec<NodeSet>,
    /// Share of the edges of all lists that are kept.
    pub kept_share: f64,
}

/// A partition has more edges than a block can number.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "partition {part} has more than {} edges, the most that one can have; import the graph in more \
     partitions",
    u32::MAX
)]
pub struct TooManyEdges {
    /// The partition.
    pub part: u32,
}

/// A partition's own nodes with all of their in-neighbours, under local ids: own nodes first, then
/// the halo, each in rising order of global ids.
#[derive(Clone, Debug)]
pub struct PartGraph {
    /// The partition.
    pub part: u32,
    /// By local id.
    pub nodes: Vec<NodeId>,
    /// Number of own nodes.
    pub n_own: usize,
    /// Destinations are the own nodes.
    pub block: Arc<Block>,
    /// Which own nodes have an in-neighbour in the halo.
    pub is_boundary: Vec<bool>,
    /// By partition: which of its rows the halo has, as places in it.
    pub receives: Vec<(u32, Range<usize>)>,
    /// By partition: the own nodes that are in its halo.
    pub sends: Vec<(u32, Arc<[u32]>)>,
}

impl Halos {
    /// Finds the halo of each partition, less the nodes in `dropped`, which are given by partition
    /// or for none.
    #[must_use]
    pub fn find(topology: &Topology, book: &PartitionBook, dropped: &[Vec<NodeId>]) -> Self {
        let n_nodes = topology.n_nodes();
        let (mut n_kept, mut n_edges) = (0u64, 0u64);
        let mut halo = |part: PartId| {
            let own = book.range(part);
            let gone = dropped.get(part.index()).map_or(&[][..], |gone| gone);
            let gone = NodeSet::new(n_nodes, gone.iter().copied());
            let lists = own.clone().map(|node| topology.in_neighbours(NodeId(node)));
            let others = lists.flatten().copied().filter(|source| {
                let is_kept = own.contains(source) || !gone.contains(NodeId(*source));
                n_edges += 1;
                n_kept += u64::from(is_kept);
                is_kept && !own.contains(source)
            });
            NodeSet::new(n_nodes, others.map(NodeId))
        };
        let sets = book.parts().map(&mut halo).collect();
        let kept_share = if n_edges > 0 { n_kept as f64 / n_edges as f64 } else { 1.0 };
        Self { sets, kept_share }
    }
}

impl PartGraph {
    /// Makes the lists of `part`.
    ///
    /// # Errors
    /// [`TooManyEdges`] for more edges than a block can number.
    pub fn new(
        topology: &Topology,
        book: &PartitionBook,
        halos: &Halos,
        part: u32,
    ) -> Result<Self, TooManyEdges> {
        let own = book.range(PartId(part as u16));
        let (halo, n_own) = (&halos.sets[part as usize], own.len());
        let nodes: Vec<NodeId> = own.clone().map(NodeId).chain(halo.iter()).collect();
        let local = |source: u32| match own.contains(&source) {
            true => Some(source - own.start),
            false => {
                let node = NodeId(source);
                halo.contains(node).then(|| n_own as u32 + halo.index(node))
            }
        };
        let (mut offsets, mut sources) = (vec![0], Vec::new());
        let mut is_boundary = Vec::with_capacity(n_own);
        for node in own.clone() {
            let first = sources.len();
            sources.extend(topology.in_neighbours(NodeId(node)).iter().copied().filter_map(local));
            is_boundary.push(sources[first..].iter().any(|&source| source as usize >= n_own));
            let Ok(end) = u32::try_from(sources.len()) else {
                return Err(TooManyEdges { part });
            };
            offsets.push(end);
        }
        let n_src = nodes.len() as u32;
        let block = Arc::new(Block { n_src, n_dst: n_own as u32, offsets, sources });
        let receives = owners(&nodes[n_own..], book);
        let sends = (0..).zip(&halos.sets).filter_map(|(other, halo)| {
            let of_other = |node: &NodeId| own.contains(&node.0);
            let sent = halo.iter_from(NodeId(own.start)).take_while(of_other);
            let sent: Arc<[u32]> = sent.map(|node| node.0 - own.start).collect();
            (other != part && !sent.is_empty()).then_some((other, sent))
        });
        let sends = sends.collect();
        Ok(Self { part, nodes, n_own, block, is_boundary, receives, sends })
    }

    /// Returns the number of nodes in the halo.
    #[must_use]
    pub fn n_halo(&self) -> usize {
        self.nodes.len() - self.n_own
    }

    /// Returns the nodes of the halo.
    #[must_use]
    pub fn halo(&self) -> &[NodeId] {
        &self.nodes[self.n_own..]
    }

    /// Returns the own nodes.
    #[must_use]
    pub fn own(&self) -> &[NodeId] {
        &self.nodes[..self.n_own]
    }

    /// Returns the rows of the halo whose partitions are those that `is_of` holds for.
    pub fn n_rows_from(&self, is_of: impl Fn(u32) -> bool) -> u64 {
        let from = self.receives.iter().filter(|(part, _)| is_of(*part));
        from.map(|(_, range)| range.len() as u64).sum()
    }
}

/// Returns which of `nodes`, in rising order, belong to which partition.
fn owners(nodes: &[NodeId], book: &PartitionBook) -> Vec<(u32, Range<usize>)> {
    let mut first = 0;
    let mut of_parts = Vec::new();
    for part in book.parts() {
        let end = book.range(part).end;
        let n = nodes[first..].partition_point(|node| node.0 < end);
        if n > 0 {
            of_parts.push((u32::from(part.0), first..first + n));
        }
        first += n;
    }
    of_parts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::edges::MemoryEdges;
    use crate::relabel::Relabelling;
    use crate::topology::Direction;

    proptest! {
        /// The naive twin looks every edge of the graph up.
        #[test]
        fn partitions_have_the_edges_of_the_graph_and_halos_match_what_is_sent(
            edges in prop::collection::vec((0u32..40, 0u32..40), 0..200),
            n_parts in 1u16..6,
            dropped in prop::collection::vec(prop::collection::btree_set(0u32..40, 0..8), 5),
        ) {
            let edges: Vec<[u32; 2]> =
                edges.into_iter().map(|(a, b)| [a, b]).chain([[39, 39]]).collect();
            let owners: Vec<PartId> = (0..40u16).map(|id| PartId(id * 7 % n_parts)).collect();
            let relabelling = Relabelling::new(&owners, n_parts).unwrap();
            let edges = MemoryEdges::new(edges).unwrap();
            let topology = Topology::from_edges(&edges, &relabelling, Direction::Directed).unwrap();
            let book = &relabelling.book;
            let gone: Vec<Vec<NodeId>> =
                dropped.iter().map(|of| of.iter().map(|&id| NodeId(id)).collect()).collect();
            for gone in [&[][..], &gone] {
                let halos = Halos::find(&topology, book, gone);
                let (mut n_kept, mut n_all) = (0, 0);
                let parts: Vec<PartGraph> = (0..u32::from(n_parts))
                    .map(|part| PartGraph::new(&topology, book, &halos, part).unwrap())
                    .collect();
                for graph in &parts {
                    let own = book.range(PartId(graph.part as u16));
                    let mut halo = BTreeSet::new();
                    for (at, node) in own.clone().enumerate() {
                        let gone = gone.get(graph.part as usize).map_or(&[][..], |gone| gone);
                        let list = topology.in_neighbours(NodeId(node));
                        let kept: Vec<u32> = list.iter().copied()
                            .filter(|id| own.contains(id) || !gone.contains(&NodeId(*id)))
                            .collect();
                        (n_kept, n_all) = (n_kept + kept.len(), n_all + list.len());
                        let bounds = &graph.block.offsets[at..at + 2];
                        let found: Vec<u32> = graph.block.sources
                            [bounds[0] as usize..bounds[1] as usize]
                            .iter()
                            .map(|&local| graph.nodes[local as usize].0)
                            .collect();
                        prop_assert_eq!(&found, &kept);
                        let outer: Vec<u32> =
                            kept.into_iter().filter(|id| !own.contains(id)).collect();
                        prop_assert_eq!(graph.is_boundary[at], !outer.is_empty());
                        halo.extend(outer);
                    }
                    let found: Vec<u32> = graph.halo().iter().map(|node| node.0).collect();
                    prop_assert_eq!(found, halo.into_iter().collect::<Vec<_>>());
                    // One expects the rows that the other sends, row by row.
                    for other in &parts {
                        let sent = other.sends.iter().find(|(to, _)| *to == graph.part);
                        let sent: Vec<NodeId> = sent.iter()
                            .flat_map(|(_, rows)| rows.iter())
                            .map(|&row| other.nodes[row as usize])
                            .collect();
                        let range = graph.receives.iter().find(|(from, _)| *from == other.part);
                        let range = range.map_or(0..0, |(_, range)| range.clone());
                        prop_assert_eq!(&graph.halo()[range], &sent[..]);
                    }
                }
                let share = if n_all > 0 { n_kept as f64 / n_all as f64 } else { 1.0 };
                prop_assert!((halos.kept_share - share).abs() < 1e-12);
            }
        }
    }
}
