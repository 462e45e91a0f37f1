//! Where copies of nodes are, and how many edges each partition has.

use std::ops::Range;

use super::VertexCutReport;
use crate::PartId;
use crate::partition::loads::Loads;

/// A node's partition by vote, while its edges are placed.
#[derive(Clone, Copy)]
struct Vote {
    part: PartId,
    lead: u32,
}

/// What is kept while edges are placed: a bit per node and partition, a vote per node, a count per
/// partition.
pub(super) struct State {
    n_parts: u16,
    /// Words of each node's set of partitions.
    n_words: usize,
    copies: Vec<u64>,
    votes: Vec<Vote>,
    n_edges: Vec<u64>,
}

impl State {
    /// No edges yet; `n_parts` is at least 1.
    pub(super) fn new(n_nodes: u32, n_parts: u16) -> Self {
        let n_words = usize::from(n_parts).div_ceil(64);
        Self {
            n_parts,
            n_words,
            copies: vec![0; n_words * n_nodes as usize],
            votes: vec![Vote { part: PartId(0), lead: 0 }; n_nodes as usize],
            n_edges: vec![0; usize::from(n_parts)],
        }
    }

    pub(super) fn n_parts(&self) -> u16 {
        self.n_parts
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = PartId> + use<> {
        (0..self.n_parts).map(PartId)
    }

    /// Edges of `part`.
    pub(super) fn n_edges(&self, part: PartId) -> u64 {
        self.n_edges[part.index()]
    }

    /// Edges of the emptiest and of the fullest partition.
    pub(super) fn fewest_and_most(&self) -> (u64, u64) {
        self.n_edges.iter().fold((u64::MAX, 0), |(min, max), &n| (min.min(n), max.max(n)))
    }

    /// Whether `node` has an edge in `part`.
    pub(super) fn has_copy(&self, node: u32, part: PartId) -> bool {
        let words = &self.copies[self.words(node)];
        words[part.index() / 64] >> (part.index() % 64) & 1 == 1
    }

    pub(super) fn has_copies(&self, node: u32) -> bool {
        self.copies[self.words(node)].iter().any(|&word| word != 0)
    }

    fn words(&self, node: u32) -> Range<usize> {
        let first = node as usize * self.n_words;
        first..first + self.n_words
    }

    /// The partition of `among` with the fewest edges, of several the first.
    pub(super) fn emptiest(&self, among: impl Fn(PartId) -> bool) -> Option<PartId> {
        self.parts().filter(|&part| among(part)).min_by_key(|&part| (self.n_edges(part), part))
    }

    /// Gives edge (u, v) to `part`.
    pub(super) fn place(&mut self, u: u32, v: u32, part: PartId) {
        self.n_edges[part.index()] += 1;
        for node in [u, v] {
            let word = node as usize * self.n_words + part.index() / 64;
            self.copies[word] |= 1 << (part.index() % 64);
            let vote = &mut self.votes[node as usize];
            if vote.part == part {
                vote.lead = vote.lead.saturating_add(1);
            } else if vote.lead > 0 {
                vote.lead -= 1;
            } else {
                *vote = Vote { part, lead: 1 };
            }
        }
    }

    /// Owners of all nodes, and what the copies cost. Nodes without edges fill up the partitions
    /// that own least.
    pub(super) fn finish(self) -> (Vec<PartId>, VertexCutReport) {
        let mut loads = Loads::new(self.n_parts);
        let n_nodes = self.votes.len() as u32;
        let owned = (0..n_nodes).filter(|&node| self.has_copies(node));
        for node in owned {
            loads.add(self.votes[node as usize].part);
        }
        let owners = (0..n_nodes).map(|node| match self.has_copies(node) {
            true => self.votes[node as usize].part,
            false => loads.add_to_least(1),
        });
        let owners = owners.collect();
        let copies = |node: u32| {
            let words = &self.copies[self.words(node)];
            words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>().max(1)
        };
        let n_copies: u64 = (0..n_nodes).map(copies).sum();
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
