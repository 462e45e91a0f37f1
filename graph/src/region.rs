//! The nodes and the list entries that the local model of a partition trains on (SDT-GNN, section
//! III-B).

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ids::NodeId;
use crate::node_set::NodeSet;
use crate::topology::Topology;

/// Depth of a partition's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Layers of the model.
    pub layers: u32,
    /// Hops of the halo that a partition has; those beyond the layers are not needed.
    pub halo_hops: u32,
}

/// A partition with its halo: which entries of in-neighbour lists it has.
///
/// A node fewer than `halo_hops` hops away has its whole list; one at that distance has its
/// neighbours that are nearer. With one hop this is SDT-GNN's rule: an edge between two partitions
/// is in both.
pub struct Region<'a> {
    topology: &'a Topology,
    owned: Range<u32>,
    depth: Depth,
    /// Nodes with whole lists, where not all that a batch meets are among them.
    whole: Option<NodeSet>,
}

/// The nodes that batches of some roots can meet.
#[derive(Debug)]
pub struct Reach {
    /// All of them.
    pub nodes: NodeSet,
    /// Those whose neighbours are drawn: all but the ones that only the last hop meets.
    pub expanded: NodeSet,
}

/// Cost of loading a partition, and the share of its neighbourhoods that it keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartitionPlan {
    /// Nodes.
    pub n_nodes: u64,
    /// Those of other partitions.
    pub n_halo: u64,
    /// Entries of their lists.
    pub n_entries: u64,
    /// Entries of the last hop of the roots' neighbourhoods that are kept, one for each path.
    pub kept: f64,
    /// All entries of that hop.
    pub all: f64,
}

impl<'a> Region<'a> {
    /// Returns the region of the partition that owns the nodes in `owned`.
    #[must_use]
    pub fn new(topology: &'a Topology, owned: Range<u32>, depth: Depth) -> Self {
        let n_nodes = topology.n_nodes();
        let is_cut = depth.halo_hops < depth.layers;
        let whole = (is_cut && depth.halo_hops > 0).then(|| {
            let mut nodes = NodeSet::new(n_nodes, owned.clone().map(NodeId));
            for _ in 1..depth.halo_hops {
                nodes = nodes.with_neighbours(topology);
            }
            nodes
        });
        Self { topology, owned, depth, whole }
    }

    /// Returns the in-neighbours of `node`, which is in the region, that are in the list here.
    pub fn list(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        let list = self.topology.in_neighbours(node).iter().map(|&source| NodeId(source));
        let is_whole = match &self.whole {
            Some(whole) => whole.contains(node),
            None => self.depth.halo_hops >= self.depth.layers,
        };
        list.filter(move |source| {
            is_whole
                || match &self.whole {
                    Some(whole) => whole.contains(*source),
                    None => self.owned.contains(&source.0),
                }
        })
    }

    /// Returns the nodes that batches of `roots`, all of them owned, can meet.
    #[must_use]
    pub fn reach(&self, roots: &[NodeId]) -> Reach {
        let n_nodes = self.topology.n_nodes();
        let mut nodes = NodeSet::new(n_nodes, roots.iter().copied());
        let mut expanded = NodeSet::new(n_nodes, [].into_iter());
        for _ in 0..self.depth.layers {
            expanded = nodes;
            let sources = expanded.iter().flat_map(|node| self.list(node));
            nodes = NodeSet::new(n_nodes, expanded.iter().chain(sources));
        }
        Reach { nodes, expanded }
    }

    /// Returns what it takes to train on `roots`.
    #[must_use]
    pub fn plan(&self, roots: &[NodeId]) -> PartitionPlan {
        let Reach { nodes, expanded } = self.reach(roots);
        let n_halo = nodes.iter().filter(|node| !self.owned.contains(&node.0)).count() as u64;
        let n_entries = expanded.iter().map(|node| self.list(node).count() as u64).sum();
        let [kept, all] = self.paths(roots);
        PartitionPlan { n_nodes: nodes.len() as u64, n_halo, n_entries, kept, all }
    }

    /// Returns how many paths with an edge for each layer lead to the roots, here and in the whole
    /// graph. Returns one each where all are kept.
    fn paths(&self, roots: &[NodeId]) -> [f64; 2] {
        if self.depth.halo_hops >= self.depth.layers {
            return [1.0; 2];
        }
        let count = |is_kept: bool| {
            let mut paths = vec![0.0f64; self.topology.n_nodes() as usize];
            let mut nodes = NodeSet::new(self.topology.n_nodes(), roots.iter().copied());
            roots.iter().for_each(|root| paths[root.index()] += 1.0);
            for _ in 0..self.depth.layers {
                let mut longer = vec![0.0f64; paths.len()];
                for node in nodes.iter() {
                    let mut add = |source: NodeId| longer[source.index()] += paths[node.index()];
                    match is_kept {
                        true => self.list(node).for_each(&mut add),
                        false => {
                            let list = self.topology.in_neighbours(node).iter();
                            list.for_each(|&source| add(NodeId(source)));
                        }
                    }
                }
                let is_met = |node: &NodeId| longer[node.index()] > 0.0;
                nodes = NodeSet::new(
                    self.topology.n_nodes(),
                    (0..self.topology.n_nodes()).map(NodeId).filter(is_met),
                );
                paths = longer;
            }
            paths.iter().sum()
        };
        [count(true), count(false)]
    }
}

impl PartitionPlan {
    /// Returns the bytes that the partition takes in memory with rows of `row_bytes`, in a graph of
    /// `n_graph` nodes.
    #[must_use]
    pub fn bytes(&self, row_bytes: usize, n_graph: u32) -> u64 {
        // Place of the list, the node, its degree, and its place in a batch.
        let of_node = row_bytes as u64 + 8 + 4 + 4 + 4;
        8 + self.n_nodes * of_node + 4 * self.n_entries + u64::from(n_graph.div_ceil(64)) * 12
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::edges::MemoryEdges;
    use crate::ids::PartId;
    use crate::relabel::Relabelling;
    use crate::topology::Direction;

    /// Returns the distance of each node to the owned ones against the edges, found one by one.
    fn distances(topology: &Topology, owned: &Range<u32>) -> BTreeMap<u32, u32> {
        let mut found: BTreeMap<u32, u32> = owned.clone().map(|node| (node, 0)).collect();
        for distance in 1..=topology.n_nodes() {
            let last = found.iter().filter(|(_, at)| **at == distance - 1).map(|(&node, _)| node);
            for node in last.collect::<Vec<_>>() {
                for &source in topology.in_neighbours(NodeId(node)) {
                    found.entry(source).or_insert(distance);
                }
            }
        }
        found
    }

    proptest! {
        /// The naive twin: each path from a root, entry by entry, by distances.
        #[test]
        fn a_region_has_the_entries_within_its_halo(
            edges in prop::collection::vec((0u32..14, 0u32..14), 1..50),
            direction in any::<bool>().prop_map(Direction::from),
            first in 0u32..10,
            layers in 1u32..4,
            halo_hops in 0u32..5,
        ) {
            let edges: Vec<[u32; 2]> = edges.into_iter().map(|(a, b)| [a, b]).chain([[13, 13]]).collect();
            let relabelling = Relabelling::new(&[PartId(0); 14], 1).unwrap();
            let edges = MemoryEdges::new(edges).unwrap();
            let topology = Topology::from_edges(&edges, &relabelling, direction).unwrap();
            let owned = first..first + 4;
            let roots: Vec<NodeId> = owned.clone().filter(|id| id % 3 != 1).map(NodeId).collect();
            let depth = Depth { layers, halo_hops };
            let region = Region::new(&topology, owned.clone(), depth);

            let distance = distances(&topology, &owned);
            let far = |node: u32| distance.get(&node).copied().unwrap_or(u32::MAX);
            let keeps = |node: u32, source: u32| match halo_hops {
                0 => far(node) == 0 && far(source) == 0,
                _ => far(node) < halo_hops
                    || (far(node) == halo_hops && far(source) < halo_hops),
            };
            let mut nodes: BTreeSet<u32> = roots.iter().map(|node| node.0).collect();
            let mut entries = BTreeSet::new();
            let (mut kept, mut all) = (0u64, 0u64);
            let mut paths: Vec<(u32, bool)> = roots.iter().map(|node| (node.0, true)).collect();
            for _ in 0..layers {
                let mut longer = Vec::new();
                for (node, is_kept) in paths {
                    for &source in topology.in_neighbours(NodeId(node)) {
                        let is_kept = is_kept && keeps(node, source);
                        if is_kept {
                            entries.insert((node, source));
                            nodes.insert(source);
                        }
                        longer.push((source, is_kept));
                    }
                }
                paths = longer;
            }
            all += paths.len() as u64;
            kept += paths.iter().filter(|(_, is_kept)| *is_kept).count() as u64;

            let reach = region.reach(&roots);
            prop_assert_eq!(reach.nodes.iter().map(|node| node.0).collect::<BTreeSet<_>>(), nodes.clone());
            let listed: BTreeSet<(u32, u32)> = reach
                .expanded
                .iter()
                .flat_map(|node| region.list(node).map(move |source| (node.0, source.0)))
                .collect();
            prop_assert_eq!(&listed, &entries);
            let plan = region.plan(&roots);
            prop_assert_eq!(plan.n_nodes, nodes.len() as u64);
            prop_assert_eq!(plan.n_halo, nodes.iter().filter(|id| !owned.contains(id)).count() as u64);
            prop_assert_eq!(plan.n_entries, entries.len() as u64);
            match halo_hops < layers {
                true => prop_assert_eq!([plan.kept, plan.all], [kept as f64, all as f64]),
                false => prop_assert_eq!(kept, all),
            }
        }
    }
}
