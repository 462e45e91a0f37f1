//! Micrographs: the sampled computation graph of one root, and how much of it is at home (HopGNN,
//! section 4).

use serde::Serialize;

use crate::batch::{Batch, Block};
use crate::book::PartitionBook;
use crate::ids::NodeId;

/// A node of the batch that the micrograph does not have.
const ABSENT: u32 = u32::MAX;

/// Takes batches apart; reuses its table, 4 bytes per node of the largest batch.
#[derive(Default)]
pub struct Micrographs {
    /// Local id in the micrograph of each node of the batch.
    local_of: Vec<u32>,
    /// Nodes of the micrograph, as local ids of the batch.
    members: Vec<u32>,
}

impl Micrographs {
    /// Returns the micrograph of root `root` of `batch`. It is exactly the batch that the sampler
    /// draws for this root alone under the same seed. A node's draws in a hop depend on no other
    /// node.
    ///
    /// # Panics
    ///
    /// When there is no such root.
    pub fn of(&mut self, batch: &Batch, root: usize) -> Batch {
        let mut blocks = vec![Block::default(); batch.blocks.len()];
        self.walk(batch, root, &mut |layer, block| blocks[layer] = block);
        let nodes = self.members.iter().map(|&member| batch.nodes[member as usize]).collect();
        Batch { nodes, n_roots: 1, blocks }
    }

    /// Returns how many nodes of the micrograph, the root left out, lie where the root does; and
    /// how many there are.
    fn at_home(&mut self, batch: &Batch, root: usize, homes: &[u32]) -> (u64, u64) {
        self.walk(batch, root, &mut |_, _| {});
        let others = &self.members[1..];
        let at_home = others.iter().filter(|&&member| homes[member as usize] == homes[root]);
        (at_home.count() as u64, others.len() as u64)
    }

    /// Finds the members in the order of first sight, as sampling does; returns each layer's block.
    fn walk(&mut self, batch: &Batch, root: usize, visit: &mut dyn FnMut(usize, Block)) {
        assert!(root < batch.n_roots, "root {root} of {}", batch.n_roots);
        self.members.iter().for_each(|&member| {
            if let Some(local) = self.local_of.get_mut(member as usize) {
                *local = ABSENT;
            }
        });
        self.members.clear();
        if self.local_of.len() < batch.nodes.len() {
            self.local_of.resize(batch.nodes.len(), ABSENT);
        }
        self.admit(root as u32);
        for (layer, block) in batch.blocks.iter().enumerate().rev() {
            let n_dst = self.members.len();
            let (mut offsets, mut sources) = (vec![0], Vec::new());
            for dst in 0..n_dst {
                let drawn = block.sources_of(self.members[dst] as usize);
                sources.extend(drawn.iter().map(|&source| self.admit(source)));
                offsets.push(sources.len() as u32);
            }
            let (n_src, n_dst) = (self.members.len() as u32, n_dst as u32);
            visit(layer, Block { n_src, n_dst, offsets, sources });
        }
    }

    fn admit(&mut self, node: u32) -> u32 {
        let local = &mut self.local_of[node as usize];
        if *local == ABSENT {
            *local = self.members.len() as u32;
            self.members.push(node);
        }
        *local
    }
}

/// Locality of micrographs and of the subgraphs, which are batches, that they come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Locality {
    /// Roots that were looked at and have a neighbour.
    pub roots: u64,
    /// Mean over the roots of R_micro: the share of a micrograph's nodes, its root left out, that
    /// are on the root's home server.
    pub r_micro: f64,
    /// Mean over the roots of R_sub: the same share of the whole batch that the root is in.
    pub r_sub: f64,
}

impl Locality {
    /// Adds the roots of `batch`. Server s of `n_servers` is the home of partitions p with
    /// p mod `n_servers` = s.
    ///
    /// HopGNN (section 4 and Table 1) counts the nodes at home likewise, but divides by all nodes,
    /// the root included. Here a graph on one server has 1.
    ///
    /// # Panics
    ///
    /// When `n_servers` is 0, or the batch has a node that the book does not have.
    pub fn add(
        &mut self,
        batch: &Batch,
        book: &PartitionBook,
        n_servers: u32,
        micrographs: &mut Micrographs,
    ) {
        let homes: Vec<u32> = batch.nodes.iter().map(|&v| home(book, n_servers, v)).collect();
        let mut at_server = vec![0u64; n_servers as usize];
        homes.iter().for_each(|&home| at_server[home as usize] += 1);
        for (root, &home) in homes[..batch.n_roots].iter().enumerate() {
            let (at_home, others) = micrographs.at_home(batch, root, &homes);
            if others > 0 {
                let in_batch = (at_server[home as usize] - 1) as f64;
                self.r_micro += (at_home as f64 / others as f64 - self.r_micro) / self.n_with_one();
                self.r_sub +=
                    (in_batch / (homes.len() - 1) as f64 - self.r_sub) / self.n_with_one();
                self.roots += 1;
            }
        }
    }

    /// Roots, and one more.
    fn n_with_one(&self) -> f64 {
        (self.roots + 1) as f64
    }
}

fn home(book: &PartitionBook, n_servers: u32, node: NodeId) -> u32 {
    let part = book.part_of(node).expect("a node of the graph");
    u32::from(part.0) % n_servers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::MemoryEdges;
    use crate::relabel::Relabelling;
    use crate::sampler::{Fanout, Sampler};
    use crate::topology::Direction;
    use crate::topology::Topology;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn graph() -> impl Strategy<Value = (u32, Vec<[u32; 2]>)> {
        (1u32..30).prop_flat_map(|n_nodes| {
            let edge = (0..n_nodes, 0..n_nodes).prop_map(|(source, dst)| [source, dst]);
            (Just(n_nodes), prop::collection::vec(edge, 0..200))
        })
    }

    /// Returns both shares of every root, by sets of node ids.
    fn naive(batches: &[Batch], home: &dyn Fn(NodeId) -> u32) -> Locality {
        let (mut micro, mut sub) = (Vec::new(), Vec::new());
        let share = |nodes: &HashSet<NodeId>, root: NodeId| {
            let others: Vec<_> = nodes.iter().filter(|&&node| node != root).collect();
            let at_home = others.iter().filter(|&&&node| home(node) == home(root)).count();
            (!others.is_empty()).then(|| at_home as f64 / others.len() as f64)
        };
        for batch in batches {
            for root in 0..batch.n_roots {
                let mut members = HashSet::from([root]);
                for block in batch.blocks.iter().rev() {
                    let met = members.iter().flat_map(|&dst| block.sources_of(dst));
                    let met: Vec<usize> = met.map(|&source| source as usize).collect();
                    members.extend(met);
                }
                let nodes = members.into_iter().map(|member| batch.nodes[member]).collect();
                if let Some(found) = share(&nodes, batch.nodes[root]) {
                    micro.push(found);
                    sub.push(share(&batch.nodes.iter().copied().collect(), batch.nodes[root]));
                }
            }
        }
        let roots = micro.len() as f64;
        Locality {
            roots: micro.len() as u64,
            r_micro: micro.iter().sum::<f64>() / roots.max(1.0),
            r_sub: sub.iter().flatten().sum::<f64>() / roots.max(1.0),
        }
    }

    proptest! {
        #[test]
        fn a_micrograph_is_what_the_sampler_draws_for_its_root_alone(
            (n_nodes, edges) in graph(),
            fanouts in prop::collection::vec(0u32..4, 0..4),
            n_servers in 1u32..4,
            seed: u64,
        ) {
            let edges = MemoryEdges::new(edges).unwrap();
            let topology =
                Topology::from_edges(&edges, &Relabelling::identity(n_nodes), Direction::Directed).unwrap();
            let fanouts: Vec<_> =
                fanouts.iter().map(|&n| Fanout::at_most(n).unwrap_or(Fanout::All)).collect();
            let mut sampler = Sampler::new(&topology, &fanouts);
            let third = n_nodes / 3;
            let book = PartitionBook::new(vec![0, third, third, 2 * third, n_nodes]).unwrap();
            let (mut micrographs, mut locality) = (Micrographs::default(), Locality::default());
            let mut batches = Vec::new();
            for first in 0..2.min(n_nodes) {
                let roots: Vec<NodeId> = (first..n_nodes).step_by(2).map(NodeId).collect();
                let batch = sampler.sample(&roots, seed);
                for (i, &root) in roots.iter().enumerate() {
                    let alone = sampler.sample(&[root], seed);
                    prop_assert_eq!(micrographs.of(&batch, i), alone);
                }
                locality.add(&batch, &book, n_servers, &mut micrographs);
                batches.push(batch);
            }
            let expected = naive(&batches, &|node| home(&book, n_servers, node));
            prop_assert_eq!(locality.roots, expected.roots);
            prop_assert!((locality.r_micro - expected.r_micro).abs() < 1e-9);
            prop_assert!((locality.r_sub - expected.r_sub).abs() < 1e-9);
            if n_servers == 1 && locality.roots > 0 {
                prop_assert!((locality.r_micro - 1.0).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn two_pairs_on_two_servers_are_at_home_in_micrographs_and_half_so_in_batches() {
        // 0 ↔ 1 on server 0, 2 ↔ 3 on server 1.
        let edges = MemoryEdges::new(vec![[0, 1], [2, 3]]).unwrap();
        let topology =
            Topology::from_edges(&edges, &Relabelling::identity(4), Direction::Undirected).unwrap();
        let batch = Sampler::new(&topology, &[Fanout::All]).sample(&[0, 2].map(NodeId), 1);
        let book = PartitionBook::new(vec![0, 2, 4]).unwrap();
        let mut locality = Locality::default();
        locality.add(&batch, &book, 2, &mut Micrographs::default());
        assert_eq!(locality, Locality { roots: 2, r_micro: 1.0, r_sub: 1.0 / 3.0 });
        let mut none = Locality::default();
        none.add(&Batch::default(), &book, 2, &mut Micrographs::default());
        assert_eq!(none, Locality::default());
    }
}
