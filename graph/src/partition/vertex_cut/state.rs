//! How many edges each node has in each partition, and how many each partition has.

use super::VertexCutReport;
use crate::ids::PartId;
use crate::partition::loads::Loads;

/// State while edges are placed: a byte per node and partition, a count per partition.
pub(super) struct State {
    n_parts: u16,
    /// Edges of each node in each partition. When one would pass 255, all of the node's are halved,
    /// upwards, so that none overtakes another and none becomes 0.
    counts: Vec<u8>,
    n_edges: Vec<u64>,
}

impl State {
    /// Returns a state without edges; `n_parts` is at least 1.
    pub(super) fn new(n_nodes: u32, n_parts: u16) -> Self {
        Self {
            n_parts,
            counts: vec![0; usize::from(n_parts) * n_nodes as usize],
            n_edges: vec![0; usize::from(n_parts)],
        }
    }

    pub(super) fn n_parts(&self) -> u16 {
        self.n_parts
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = PartId> + use<> {
        (0..self.n_parts).map(PartId)
    }

    /// Returns the number of edges of `part`.
    pub(super) fn n_edges(&self, part: PartId) -> u64 {
        self.n_edges[part.index()]
    }

    /// Returns the numbers of edges of the emptiest and of the fullest partition.
    pub(super) fn fewest_and_most(&self) -> (u64, u64) {
        self.n_edges.iter().fold((u64::MAX, 0), |(min, max), &n| (min.min(n), max.max(n)))
    }

    /// Returns whether `node` has an edge in `part`.
    pub(super) fn has_copy(&self, node: u32, part: PartId) -> bool {
        self.of_node(node)[part.index()] > 0
    }

    pub(super) fn has_copies(&self, node: u32) -> bool {
        self.of_node(node).iter().any(|&count| count > 0)
    }

    fn of_node(&self, node: u32) -> &[u8] {
        let n_parts = usize::from(self.n_parts);
        &self.counts[node as usize * n_parts..][..n_parts]
    }

    /// Returns the partition of `among` with the fewest edges, of several the first.
    pub(super) fn emptiest(&self, among: impl Fn(PartId) -> bool) -> Option<PartId> {
        self.parts().filter(|&part| among(part)).min_by_key(|&part| (self.n_edges(part), part))
    }

    /// Places edge (u, v) in `part`.
    pub(super) fn place(&mut self, u: u32, v: u32, part: PartId) {
        self.n_edges[part.index()] += 1;
        let n_parts = usize::from(self.n_parts);
        for node in [u, v] {
            let counts = &mut self.counts[node as usize * n_parts..][..n_parts];
            if counts[part.index()] == u8::MAX {
                counts.iter_mut().for_each(|count| *count = count.div_ceil(2));
            }
            counts[part.index()] += 1;
        }
    }

    /// Returns the owners of all nodes and the cost of the copies. A node's owner is the partition
    /// with most of its edges, among equals the one that owns least so far. Nodes without edges
    /// come last and fill up those that own least.
    pub(super) fn finish(self) -> (Vec<PartId>, VertexCutReport) {
        let mut loads = Loads::new(self.n_parts);
        let n_nodes = (self.counts.len() / usize::from(self.n_parts)) as u32;
        let (mut n_copies, mut owners) = (0, vec![PartId(0); n_nodes as usize]);
        for (node, owner) in (0..).zip(&mut owners) {
            let counts = self.of_node(node);
            n_copies += counts.iter().filter(|&&count| count > 0).count().max(1) as u64;
            let Some(most) = counts.iter().max().copied().filter(|&most| most > 0) else {
                continue;
            };
            let of_most = self.parts().filter(|part| counts[part.index()] == most);
            *owner = of_most.min_by_key(|&part| (loads.of(part), part)).unwrap_or(PartId(0));
            loads.add(*owner);
        }
        for (node, owner) in (0..).zip(&mut owners) {
            if !self.has_copies(node) {
                *owner = loads.add_to_least(1);
            }
        }
        let n_edges: u64 = self.n_edges.iter().sum();
        let mean_edges = n_edges as f64 / f64::from(self.n_parts);
        let (_, most) = self.fewest_and_most();
        let report = VertexCutReport {
            replication_factor: n_copies.max(1) as f64 / f64::from(n_nodes.max(1)),
            edge_balance: if n_edges == 0 { 1.0 } else { most as f64 / mean_edges },
        };
        (owners, report)
    }
}
