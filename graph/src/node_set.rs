//! A set of nodes whose members are numbered.

use crate::ids::NodeId;
use crate::topology::Topology;

/// Nodes of a graph, numbered in rising order.
///
/// Memory: 12 bytes for each 64 nodes of the graph.
#[derive(Clone, Debug)]
pub struct NodeSet {
    words: Vec<u64>,
    /// Number of members in all earlier words.
    before: Vec<u32>,
}

impl NodeSet {
    /// Makes a set of `nodes` of a graph of `n_nodes`.
    #[must_use]
    pub fn new(n_nodes: u32, nodes: impl Iterator<Item = NodeId>) -> Self {
        let mut words = vec![0; n_nodes.div_ceil(64) as usize];
        nodes.for_each(|node| words[node.index() / 64] |= 1 << (node.index() % 64));
        Self::numbered(words)
    }

    /// Makes the set of all nodes of a graph of `n_nodes`.
    #[must_use]
    pub fn all(n_nodes: u32) -> Self {
        Self::new(n_nodes, (0..n_nodes).map(NodeId))
    }

    /// Returns the members and their in-neighbours.
    #[must_use]
    pub fn with_neighbours(&self, topology: &Topology) -> Self {
        let mut words = self.words.clone();
        for node in self.iter() {
            for &source in topology.in_neighbours(node) {
                words[source as usize / 64] |= 1 << (source % 64);
            }
        }
        Self::numbered(words)
    }

    /// Returns whether `node` is a member.
    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        self.words[node.index() / 64] & (1 << (node.index() % 64)) != 0
    }

    /// Returns the number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        let last = self.words.last().map_or(0, |word| word.count_ones());
        self.before.last().map_or(0, |before| (before + last) as usize)
    }

    /// Returns whether there are no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the members in rising order.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> {
        self.iter_from(NodeId(0))
    }

    /// Returns the members from `first` on, in rising order.
    pub fn iter_from(&self, first: NodeId) -> impl Iterator<Item = NodeId> {
        let at = (first.index() / 64).min(self.words.len());
        let below = (1 << (first.index() % 64)) - 1;
        let members = move |(mut word, first_of): (u64, u32)| {
            if first_of as usize == 64 * at {
                word &= !below;
            }
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                Some(NodeId(first_of + bit))
            })
        };
        self.words[at..].iter().copied().zip((64 * at as u32..).step_by(64)).flat_map(members)
    }

    /// Returns the number of the member `node`: how many members are before it.
    #[must_use]
    pub fn index(&self, node: NodeId) -> u32 {
        let (word, bit) = (node.index() / 64, node.index() % 64);
        debug_assert!(self.contains(node), "{node} is no member");
        self.before[word] + (self.words[word] & ((1 << bit) - 1)).count_ones()
    }

    /// Returns the memory of the set, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.words[..]) + size_of_val(&self.before[..])) as u64
    }

    fn numbered(words: Vec<u64>) -> Self {
        let mut n_members = 0;
        let before = words.iter().map(|word| {
            let before = n_members;
            n_members += word.count_ones();
            before
        });
        let before = before.collect();
        Self { words, before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_numbered_in_rising_order() {
        let members = [0, 5, 63, 64, 127, 128, 199];
        let set = NodeSet::new(200, members.iter().rev().map(|&id| NodeId(id)));
        assert_eq!(set.iter().map(|node| node.0).collect::<Vec<_>>(), members);
        assert_eq!(set.len(), members.len());
        for (index, id) in (0..).zip(members) {
            assert_eq!(set.index(NodeId(id)), index);
        }
        for first in 0..260 {
            let from = set.iter_from(NodeId(first)).map(|node| node.0);
            assert!(from.eq(members.into_iter().filter(|&id| id >= first)), "{first}");
        }
        assert_eq!(NodeSet::all(200).len(), 200);
        assert_eq!(NodeSet::all(64).iter().last(), Some(NodeId(63)));
        assert_eq!(NodeSet::all(0).len(), 0);
    }

    #[test]
    fn neighbours_are_added() {
        let topology = Topology::from_lists(vec![0, 2, 2, 3], vec![1, 2, 0]).unwrap();
        let members = |ids: &[u32]| {
            let set = NodeSet::new(3, ids.iter().map(|&id| NodeId(id)));
            set.with_neighbours(&topology).iter().map(|node| node.0).collect::<Vec<_>>()
        };
        assert_eq!(members(&[0]), [0, 1, 2]);
        assert_eq!(members(&[1]), [1]);
        assert_eq!(members(&[2]), [0, 2]);
    }
}
