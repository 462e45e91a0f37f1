//! Graphs that refinement works on: all edges or a sample at the bottom, contracted ones above.

use crate::edges::{EdgeError, EdgeStream, for_each_edge};
use crate::ids::PartId;

/// Lists of neighbours without loops. An edge may be in the list of one end only.
pub(super) trait Lists {
    /// Returns the number of nodes.
    fn n_nodes(&self) -> u32;

    /// Returns the length of all lists together, or more.
    fn n_entries(&self) -> usize;

    /// Returns the nodes of the graph in `node`.
    fn size(&self, node: u32) -> u32;

    /// Returns the length of the list of `node`, or a number that grows with it.
    fn degree(&self, node: u32) -> u32;

    /// Returns the neighbours of `node` with the weights of their edges, which are above 0.
    fn edges(&self, node: u32) -> impl Iterator<Item = (u32, u32)>;
}

/// A graph as lists of neighbours of any length.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// Start of each node's neighbours; one more entry than nodes.
    pub(super) offsets: Vec<u32>,
    /// Neighbours of all nodes, node by node.
    pub(super) neighbours: Vec<u32>,
    /// Weight of each of those edges, above 0; empty when all are 1.
    pub(super) weights: Vec<u32>,
    /// Nodes of the graph that each node stands for; empty when it is one each.
    pub(super) sizes: Vec<u32>,
}

impl Level {
    /// Returns the weight between partitions, once for each list that has it.
    pub(super) fn cut(&self, parts: &[PartId]) -> u64 {
        let of_node = |node: u32| {
            let own = parts[node as usize];
            let others = self.edges(node).filter(move |&(v, _)| parts[v as usize] != own);
            others.map(|(_, weight)| u64::from(weight)).sum::<u64>()
        };
        (0..self.n_nodes()).map(of_node).sum()
    }
}

/// Returns all edges as lists of both ends' neighbours, in two passes.
///
/// The stream must have fewer than 2³¹ edges.
pub(super) fn all_edges(edges: &dyn EdgeStream, n_nodes: u32) -> Result<Level, EdgeError> {
    let mut offsets = vec![0u32; n_nodes as usize + 1];
    for_each_edge(edges, |u, v| {
        offsets[u as usize + 1] += 1;
        offsets[v as usize + 1] += 1;
    })?;
    for i in 1..offsets.len() {
        offsets[i] += offsets[i - 1];
    }
    let mut neighbours = vec![0u32; offsets.last().copied().unwrap_or(0) as usize];
    // While the lists are filled, an offset is where the next neighbour goes.
    for_each_edge(edges, |u, v| {
        for (node, neighbour) in [(u, v), (v, u)] {
            let next = &mut offsets[node as usize];
            // A file that changes between passes may have more; that makes worse lists.
            if let Some(place) = neighbours.get_mut(*next as usize) {
                *place = neighbour;
                *next += 1;
            }
        }
    })?;
    // Each offset is where the next list starts by now.
    offsets.rotate_right(1);
    offsets[0] = 0;
    for i in 1..offsets.len() {
        offsets[i] = offsets[i].max(offsets[i - 1]);
    }
    Ok(Level { offsets, neighbours, ..Level::default() })
}

impl Lists for Level {
    fn n_nodes(&self) -> u32 {
        (self.offsets.len() - 1) as u32
    }

    fn n_entries(&self) -> usize {
        self.neighbours.len()
    }

    fn size(&self, node: u32) -> u32 {
        self.sizes.get(node as usize).copied().unwrap_or(1)
    }

    fn degree(&self, node: u32) -> u32 {
        self.offsets[node as usize + 1] - self.offsets[node as usize]
    }

    fn edges(&self, node: u32) -> impl Iterator<Item = (u32, u32)> {
        let range = self.offsets[node as usize] as usize..self.offsets[node as usize + 1] as usize;
        range.map(|i| (self.neighbours[i], self.weights.get(i).copied().unwrap_or(1)))
    }
}

/// Nodes in each partition, and how many it may have.
#[derive(Clone, Debug)]
pub(super) struct LevelLoads {
    loads: Vec<u64>,
    capacity: u64,
}

impl LevelLoads {
    pub(super) fn new(level: &impl Lists, parts: &[PartId], n_parts: u16, capacity: u64) -> Self {
        let sizes = (0..level.n_nodes()).map(|node| level.size(node));
        Self::of(parts.iter().zip(sizes), n_parts, capacity)
    }

    /// Loads of partitions of the nodes themselves.
    pub(super) fn of_nodes(parts: &[PartId], n_parts: u16, capacity: u64) -> Self {
        Self::of(parts.iter().zip(std::iter::repeat(1)), n_parts, capacity)
    }

    fn of<'a>(parts: impl Iterator<Item = (&'a PartId, u32)>, n_parts: u16, capacity: u64) -> Self {
        let mut loads = vec![0; usize::from(n_parts)];
        for (part, size) in parts {
            loads[part.index()] += u64::from(size);
        }
        Self { loads, capacity }
    }

    pub(super) fn n_parts(&self) -> usize {
        self.loads.len()
    }

    pub(super) fn load(&self, part: PartId) -> u64 {
        self.loads[part.index()]
    }

    pub(super) fn has_room(&self, part: PartId, size: u32) -> bool {
        self.loads[part.index()] + u64::from(size) <= self.capacity
    }

    pub(super) fn is_over(&self, part: PartId) -> bool {
        self.loads[part.index()] > self.capacity
    }

    pub(super) fn any_over(&self) -> bool {
        self.loads.iter().any(|&load| load > self.capacity)
    }

    /// Returns the least occupied partition, of several the first.
    pub(super) fn least(&self) -> PartId {
        let least = (0..).zip(&self.loads).min_by_key(|&(_, &load)| load);
        PartId(least.map_or(0, |(part, _)| part))
    }

    pub(super) fn shift(&mut self, from: PartId, to: PartId, size: u32) {
        self.loads[from.index()] -= u64::from(size);
        self.loads[to.index()] += u64::from(size);
    }
}
