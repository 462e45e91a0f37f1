//! k-hop sampling by frontiers: each hop draws for the nodes that the previous hop discovered.
//!
//! [`super::Sampler`] draws again for all known nodes in each hop, as blocks of message passing
//! need it. Here a node draws once, in the hop after its discovery. All edges form one list over
//! one list of nodes (GraphSAGE, algorithm 2, in the layout of PyG's loaders).

use crate::ids::NodeId;
use crate::prefetch::{prefetch, prefetch_all};
use crate::topology::Topology;

use super::choice::Choice;
use super::lists::NeighbourLists;
use super::local_ids::LocalIds;
use super::stream::RandomStream;
use super::{Fanout, TooManyEdges};

/// Distance in nodes between the prefetch of a list and its use.
const AHEAD: usize = 16;

/// A sample of some roots: nodes, and edges between positions in their list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontierBatch {
    /// Distinct nodes: the roots first, then the others in the order of their discovery.
    pub nodes: Vec<NodeId>,
    /// The source of each edge, a position in `nodes`.
    pub sources: Vec<u32>,
    /// The destination of each edge, a position in `nodes`; ascending.
    pub destinations: Vec<u32>,
    /// The position of each edge among all in-edges of the graph, in the order of destinations.
    pub edges: Vec<u64>,
    /// Number of roots, then the number of nodes that each hop discovered.
    pub nodes_of_hop: Vec<u32>,
    /// Number of edges that each hop drew.
    pub edges_of_hop: Vec<u32>,
}

/// A sampler by frontiers. Each thread needs its own: it reuses tables of 4 bytes per node.
///
/// The neighbours of a node depend on the seed, the hop that draws them and the node alone.
pub struct FrontierSampler {
    fanouts: Vec<Fanout>,
    locals: LocalIds,
    choice: Choice,
}

/// The nodes that a hop draws for.
struct Frontier<'a> {
    /// Their lists of in-neighbours.
    lists: &'a [&'a [u32]],
    fanout: Fanout,
    stream: RandomStream,
    /// Position of the first one in the batch.
    first: usize,
}

impl FrontierSampler {
    /// Creates a sampler for graphs of `n_nodes`; `fanouts[0]` is that of the hop next to the
    /// roots.
    #[must_use]
    pub fn new(n_nodes: u32, fanouts: &[Fanout]) -> Self {
        let fanouts = fanouts.to_vec();
        let locals = LocalIds::new(n_nodes);
        Self { fanouts, locals, choice: Choice::default() }
    }

    /// Draws the sample of `roots` under `seed`; a repeated root counts once.
    ///
    /// # Errors
    /// [`TooManyEdges`] when a hop would bring the sample above `max_edges`.
    ///
    /// # Panics
    ///
    /// When a root is not a node of the graph, or the graph has more nodes than the sampler is for.
    pub fn sample(
        &mut self,
        topology: &Topology,
        roots: &[NodeId],
        seed: u64,
        max_edges: u32,
    ) -> Result<FrontierBatch, TooManyEdges> {
        let lists = NeighbourLists::of(topology);
        let mut batch = FrontierBatch::default();
        self.locals.clear();
        let mut ids: Vec<u32> = roots.iter().map(|root| root.0).collect();
        self.locals.translate(&mut ids, &mut batch.nodes);
        batch.nodes_of_hop.push(batch.nodes.len() as u32);
        let mut first = 0;
        let mut frontier_lists = Vec::new();
        for hop in 0..self.fanouts.len() {
            let fanout = self.fanouts[hop];
            frontier_lists.clear();
            lists.extend(&mut frontier_lists, &batch.nodes[first..]);
            let n_drawn = frontier_lists
                .iter()
                .map(|list| u64::from(fanout.of(list.len() as u32)))
                .sum::<u64>();
            let found = batch.sources.len() as u64 + n_drawn;
            if found > max_edges.into() {
                return Err(TooManyEdges { found });
            }
            let n_before = batch.sources.len();
            let stream = RandomStream::new(seed).child(hop as u64);
            let frontier = Frontier { lists: &frontier_lists, fanout, stream, first };
            first = batch.nodes.len();
            self.draw(&lists, &frontier, &mut batch);
            let discovered = &mut batch.sources[n_before..];
            self.locals.translate(discovered, &mut batch.nodes);
            batch.nodes_of_hop.push((batch.nodes.len() - first) as u32);
            batch.edges_of_hop.push((batch.sources.len() - n_before) as u32);
        }
        batch.nodes.shrink_to_fit();
        Ok(batch)
    }

    /// Appends the edges drawn for the nodes of a frontier; their sources are ids of the graph.
    fn draw(
        &mut self,
        lists: &NeighbourLists<'_>,
        frontier: &Frontier<'_>,
        batch: &mut FrontierBatch,
    ) {
        let Frontier { fanout, first, .. } = *frontier;
        for (i, list) in frontier.lists.iter().enumerate() {
            if let Some(later) = frontier.lists.get(i + AHEAD) {
                match fanout.of(later.len() as u32) == later.len() as u32 {
                    true => prefetch_all(later),
                    false => later.first().into_iter().for_each(prefetch),
                }
            }
            let node = batch.nodes[first + i];
            let n_before = batch.sources.len();
            let n_drawn = fanout.of(list.len() as u32) as usize;
            let start = lists.first_edge(node);
            batch.sources.resize(n_before + n_drawn, 0);
            let drawn = &mut batch.sources[n_before..];
            if n_drawn == list.len() {
                batch.edges.extend((start..).take(n_drawn));
                drawn.copy_from_slice(list);
            } else {
                self.choice.fill(drawn, list.len() as u32, frontier.stream.child(node.0.into()));
                batch.edges.extend(drawn.iter().map(|&position| start + u64::from(position)));
                drawn.iter_mut().for_each(|position| *position = list[*position as usize]);
            }
            batch.destinations.resize(n_before + n_drawn, (first + i) as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::edges::MemoryEdges;
    use crate::relabel::Relabelling;
    use crate::topology::Direction;

    fn topology_of(edges: &[[u32; 2]], n_nodes: u32) -> Topology {
        let edges = MemoryEdges::new(edges.to_vec()).unwrap();
        Topology::from_edges(&edges, &Relabelling::identity(n_nodes), Direction::Directed).unwrap()
    }

    fn fanouts_of(numbers: &[u32]) -> Vec<Fanout> {
        numbers.iter().map(|&n| Fanout::at_most(n).unwrap_or(Fanout::All)).collect()
    }

    /// Samples node by node, with lists that are searched.
    fn naive(
        topology: &Topology,
        fanouts: &[Fanout],
        roots: &[NodeId],
        seed: u64,
    ) -> FrontierBatch {
        let mut batch = FrontierBatch::default();
        for root in roots {
            if !batch.nodes.contains(root) {
                batch.nodes.push(*root);
            }
        }
        batch.nodes_of_hop.push(batch.nodes.len() as u32);
        let degree = |node: u32| u64::from(topology.in_degree(NodeId(node)));
        let mut first = 0;
        for (hop, fanout) in fanouts.iter().enumerate() {
            let end = batch.nodes.len();
            let n_edges = batch.edges.len();
            for at in first..end {
                let node = batch.nodes[at];
                let list = topology.in_neighbours(node);
                let n = fanout.of(list.len() as u32);
                let mut positions: Vec<u32> = (0..n).collect();
                if (n as usize) < list.len() {
                    let stream = RandomStream::new(seed).child(hop as u64).child(node.0.into());
                    Choice::default().fill(&mut positions, list.len() as u32, stream);
                }
                for position in positions {
                    let source = NodeId(list[position as usize]);
                    let known = batch.nodes.iter().position(|other| *other == source);
                    let local = known.unwrap_or(batch.nodes.len());
                    if known.is_none() {
                        batch.nodes.push(source);
                    }
                    batch.sources.push(local as u32);
                    batch.destinations.push(at as u32);
                    let before: u64 = (0..node.0).map(degree).sum();
                    batch.edges.push(before + u64::from(position));
                }
            }
            first = end;
            batch.nodes_of_hop.push((batch.nodes.len() - end) as u32);
            batch.edges_of_hop.push((batch.edges.len() - n_edges) as u32);
        }
        batch
    }

    #[test]
    fn each_node_draws_once_in_the_hop_after_it_was_met() {
        // 4 → 3 → 2 → 0, 3 → 1, and 5 alone.
        let topology = topology_of(&[[4, 3], [3, 2], [2, 0], [3, 1]], 6);
        let mut sampler = FrontierSampler::new(6, &[Fanout::All; 2]);
        let batch = sampler.sample(&topology, &[0, 1, 5, 0].map(NodeId), 1, u32::MAX).unwrap();
        assert_eq!(batch.nodes, [0, 1, 5, 2, 3, 4].map(NodeId));
        assert_eq!(batch.sources, [3, 4, 4, 5]);
        assert_eq!(batch.destinations, [0, 1, 3, 4]);
        // In the order of destinations: 2 → 0, 3 → 1, 3 → 2, 4 → 3.
        assert_eq!(batch.edges, [0, 1, 2, 3]);
        assert_eq!((&*batch.nodes_of_hop, &*batch.edges_of_hop), (&[3, 2, 1][..], &[2, 2][..]));
        let refused = sampler.sample(&topology, &[NodeId(0), NodeId(1)], 1, 3);
        assert_eq!(refused, Err(TooManyEdges { found: 4 }));
    }

    #[test]
    fn no_roots_and_no_hops_work() {
        let topology = topology_of(&[[0, 1]], 2);
        let empty = FrontierSampler::new(2, &fanouts_of(&[2, 2]));
        let batch = { empty }.sample(&topology, &[], 1, 0).unwrap();
        assert_eq!((batch.nodes.len(), &*batch.nodes_of_hop), (0, &[0, 0, 0][..]));
        let batch = FrontierSampler::new(2, &[]).sample(&topology, &[NodeId(1)], 1, 0).unwrap();
        assert_eq!((&*batch.nodes, &*batch.nodes_of_hop), (&[NodeId(1)][..], &[1][..]));
    }

    proptest! {
        #[test]
        fn samples_are_those_of_the_naive_twin(
            n_nodes in 1u32..40,
            raw in prop::collection::vec((any::<u32>(), any::<u32>()), 0..300),
            roots in prop::collection::vec(any::<u32>(), 0..12),
            numbers in prop::collection::vec(0u32..6, 0..4),
            seed: u64,
        ) {
            let edges: Vec<_> = raw.iter().map(|&(a, b)| [a % n_nodes, b % n_nodes]).collect();
            let topology = topology_of(&edges, n_nodes);
            let roots: Vec<NodeId> = roots.iter().map(|&root| NodeId(root % n_nodes)).collect();
            let fanouts = fanouts_of(&numbers);
            let mut sampler = FrontierSampler::new(n_nodes, &fanouts);
            // Tables left by another sample must not show.
            sampler.sample(&topology, &[NodeId(n_nodes - 1)], !seed, u32::MAX).unwrap();
            let batch = sampler.sample(&topology, &roots, seed, u32::MAX).unwrap();
            prop_assert_eq!(&batch, &naive(&topology, &fanouts, &roots, seed));
            // Edges are edges of the graph, each drawn once.
            let sources = |dst| topology.in_neighbours(NodeId(dst)).iter();
            let ends: Vec<[u32; 2]> =
                (0..n_nodes).flat_map(|dst| sources(dst).map(move |&src| [src, dst])).collect();
            for (i, &edge) in batch.edges.iter().enumerate() {
                let id = |local: u32| batch.nodes[local as usize].0;
                let found = [id(batch.sources[i]), id(batch.destinations[i])];
                prop_assert_eq!(found, ends[edge as usize]);
            }
            let distinct: HashSet<_> = batch.edges.iter().collect();
            prop_assert_eq!(distinct.len(), batch.edges.len());
            let n_nodes_found: u32 = batch.nodes_of_hop.iter().sum();
            prop_assert_eq!(n_nodes_found as usize, batch.nodes.len());
        }
    }

    #[test]
    fn edges_are_numbered_by_destination() {
        let edges: Vec<[u32; 2]> = (0u32..400).map(|i| [i * 37 % 61, i * 11 % 59]).collect();
        let topology = topology_of(&edges, 61);
        let lists = NeighbourLists::of(&topology);
        let mut first = 0;
        for node in (0..61).map(NodeId) {
            assert_eq!(lists.first_edge(node), first);
            first += u64::from(topology.in_degree(node));
        }
        assert_eq!(first, topology.n_edges());
    }
}
