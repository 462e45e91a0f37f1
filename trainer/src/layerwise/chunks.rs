//! Chunks of a pass: nodes that are computed together, and the block of their neighbours.

use std::ops::Range;

use lodestore_graph::node_set::NodeSet;
use lodestore_graph::{NodeId, PartId, PartitionBook, batch::Block, topology::Topology};

/// Consecutive members of a set, all of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) first: NodeId,
    pub(super) n_nodes: usize,
    /// Number of the first node in the set.
    pub(super) number: usize,
    /// The worker that owns the partition.
    pub(super) worker: u32,
}

/// The owners of nodes: partition p belongs to worker p mod workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owners<'a> {
    pub(crate) book: &'a PartitionBook,
    pub(crate) n_workers: u32,
}

impl Owners<'_> {
    /// Returns the members of `nodes` that the workers of process `rank` own.
    pub(super) fn of_rank(&self, nodes: &NodeSet, rank: u32, n_ranks: u32) -> NodeSet {
        let is_own = |part: &PartId| u32::from(part.0) % self.n_workers % n_ranks == rank;
        let ranges = self.book.parts().filter(is_own).map(|part| self.book.range(part));
        let members = |range: Range<u32>| {
            nodes.iter_from(NodeId(range.start)).take_while(move |node| node.0 < range.end)
        };
        NodeSet::new(self.book.n_nodes(), ranges.flat_map(members))
    }
}

impl Chunk {
    /// Returns the chunk's nodes out of `nodes`.
    pub(super) fn nodes(&self, nodes: &NodeSet) -> Vec<NodeId> {
        nodes.iter_from(self.first).take(self.n_nodes).collect()
    }

    /// Splits `nodes` into chunks of at most `limit` bytes, or of one node, each of one partition.
    /// All processes get the same chunks.
    pub(super) fn split(
        nodes: &NodeSet,
        owners: Owners<'_>,
        limit: u64,
        bytes_of: impl Fn(NodeId) -> u64,
    ) -> Vec<Self> {
        let mut chunks: Vec<Self> = Vec::new();
        let (mut n_bytes, mut worker, mut end) = (0, 0, 0);
        for (number, node) in nodes.iter().enumerate() {
            n_bytes += bytes_of(node);
            match chunks.last_mut() {
                Some(chunk) if node.0 < end && n_bytes <= limit => chunk.n_nodes += 1,
                _ => {
                    if node.0 >= end {
                        let part = owners.book.part_of(node);
                        let Some(part) = part else { unreachable!("{node} is in the graph") };
                        worker = u32::from(part.0) % owners.n_workers;
                        end = owners.book.range(part).end;
                    }
                    n_bytes = bytes_of(node);
                    chunks.push(Self { first: node, n_nodes: 1, number, worker });
                }
            }
        }
        chunks
    }
}

/// Returns the block of `destinations`, which ascend, with all their in-neighbours, and its nodes.
/// The nodes are the destinations, then the other sources in ascending order, as their rows are
/// stored.
pub(super) fn block_of(topology: &Topology, destinations: &[NodeId]) -> (Vec<NodeId>, Block) {
    let (mut sources, mut offsets) = (Vec::new(), Vec::with_capacity(destinations.len() + 1));
    offsets.push(0);
    for &node in destinations {
        sources.extend_from_slice(topology.in_neighbours(node));
        offsets.push(sources.len() as u32);
    }
    let mut others = sources.clone();
    others.sort_unstable();
    others.dedup();
    let place = |source: u32| destinations.binary_search(&NodeId(source));
    others.retain(|&source| place(source).is_err());
    let n_dst = destinations.len();
    for source in &mut sources {
        let at =
            place(*source).unwrap_or_else(|_| n_dst + others.partition_point(|it| it < source));
        *source = at as u32;
    }
    let nodes: Vec<NodeId> =
        destinations.iter().copied().chain(others.into_iter().map(NodeId)).collect();
    let block = Block { n_src: nodes.len() as u32, n_dst: n_dst as u32, offsets, sources };
    (nodes, block)
}

#[cfg(test)]
mod tests {
    use lodestore_graph::sampler::{Fanout, Sampler};

    use super::*;
    use crate::layerwise::tests::{N_NODES, topology};

    #[test]
    fn chunks_are_bounded_and_stay_within_partitions() {
        let topology = topology();
        let book = PartitionBook::from_counts(&[13, 0, 7, N_NODES - 20]).unwrap();
        let owners = Owners { book: &book, n_workers: 3 };
        let bytes_of = |node| 12 * (u64::from(topology.in_degree(node)) + 1) + 20;
        let odd = NodeSet::new(N_NODES, (1..N_NODES).step_by(2).map(NodeId));
        for nodes in [NodeSet::all(N_NODES), odd] {
            for limit in [1, 400, 1 << 20] {
                let chunks = Chunk::split(&nodes, owners, limit, bytes_of);
                let mut seen = Vec::new();
                for chunk in &chunks {
                    let members = chunk.nodes(&nodes);
                    assert_eq!((members[0], members.len()), (chunk.first, chunk.n_nodes));
                    assert_eq!(chunk.number, seen.len());
                    let n_bytes: u64 = members.iter().map(|&node| bytes_of(node)).sum();
                    assert!(n_bytes <= limit || members.len() == 1, "{n_bytes} {chunk:?}");
                    let part = |node: &NodeId| u32::from(book.part_of(*node).unwrap().0);
                    assert!(members.iter().all(|node| part(node) % 3 == chunk.worker));
                    assert!(members.iter().all(|node| part(node) == part(&members[0])));
                    seen.extend(members);
                }
                assert_eq!(seen, nodes.iter().collect::<Vec<_>>());
                assert_eq!(limit > 400, chunks.len() == 3, "{limit}: {chunks:?}");
            }
        }
    }

    #[test]
    fn a_block_has_the_edges_of_whole_lists_in_their_order() {
        let topology = topology();
        for destinations in [&[0, 3, 7, 12, 39][..], &[5], &(0..N_NODES).collect::<Vec<_>>()] {
            let destinations: Vec<NodeId> = destinations.iter().map(|&id| NodeId(id)).collect();
            let (nodes, block) = block_of(&topology, &destinations);
            let n_dst = destinations.len();
            assert_eq!(nodes[..n_dst], destinations);
            assert!(nodes[n_dst..].is_sorted_by(|a, b| a < b));
            let sampled = Sampler::new(&topology, &[Fanout::All]).sample(&destinations, 0);
            let expected = &sampled.blocks[0];
            assert_eq!(block.offsets, expected.offsets);
            assert_eq!([block.n_src, block.n_dst], [expected.n_src, expected.n_dst]);
            let named = |nodes: &[NodeId], sources: &[u32]| -> Vec<NodeId> {
                sources.iter().map(|&source| nodes[source as usize]).collect()
            };
            let expected = named(&sampled.nodes, &expected.sources);
            assert_eq!(named(&nodes, &block.sources), expected);
        }
    }
}
