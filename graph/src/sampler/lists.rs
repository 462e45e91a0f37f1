//! Where the neighbours of nodes lie, found for many nodes at a time.

use crate::ids::NodeId;
use crate::prefetch::prefetch;
use crate::topology::{Slab, Topology};

/// Nodes between asking for the place of a list and using it.
const AHEAD: usize = 24;

/// The in-neighbour lists of a topology, ready for look-ups.
pub(super) struct NeighbourLists<'a> {
    slabs: Vec<Slab<'a>>,
    /// Edges before the first of each slab.
    edges_before: Vec<u64>,
}

impl<'a> NeighbourLists<'a> {
    pub(super) fn of(topology: &'a Topology) -> Self {
        let slabs = topology.slabs();
        let mut before = 0;
        let edges_before = slabs.iter().map(|slab| {
            let first = before;
            before += slab.neighbours.len() as u64;
            first
        });
        Self { edges_before: edges_before.collect(), slabs }
    }

    /// Returns the position of the first edge into `node` among all edges, in the order of nodes.
    #[inline]
    pub(super) fn first_edge(&self, node: NodeId) -> u64 {
        let at = self.slab_at(node);
        let slab = &self.slabs[at];
        self.edges_before[at] + slab.offsets[(node.0 - slab.first) as usize]
    }

    /// Appends the list of each of `nodes`, all of which must be nodes of the graph.
    pub(super) fn extend(&self, lists: &mut Vec<&'a [u32]>, nodes: &[NodeId]) {
        lists.reserve(nodes.len());
        for (i, &node) in nodes.iter().enumerate() {
            if let Some(&later) = nodes.get(i + AHEAD) {
                let (slab, row) = self.slab_of(later);
                prefetch(&slab.offsets[row]);
            }
            let (slab, row) = self.slab_of(node);
            let (start, end) = (slab.offsets[row] as usize, slab.offsets[row + 1] as usize);
            lists.push(&slab.neighbours[start..end]);
        }
    }

    /// Returns the slab of `node`, and the position of the node in it.
    #[inline]
    fn slab_of(&self, node: NodeId) -> (&Slab<'a>, usize) {
        let slab = &self.slabs[self.slab_at(node)];
        (slab, (node.0 - slab.first) as usize)
    }

    /// Returns the position of the slab of `node`.
    #[inline]
    fn slab_at(&self, node: NodeId) -> usize {
        match self.slabs.len() {
            1 => 0,
            _ => self.slabs.partition_point(|slab| slab.first <= node.0) - 1,
        }
    }
}
