//! One mini-batch as message-flow blocks over one list of nodes.

use thiserror::Error;

use crate::ids::NodeId;

/// The sampled computation graph of some roots.
///
/// Invariant: the destination nodes of every block are a prefix of its source nodes. The source
/// nodes of `blocks[i + 1]` are the destination nodes of `blocks[i]`. So all layers index into the
/// one list `nodes`: block `i` reads rows `0..n_src` and produces rows `0..n_dst`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The input nodes, distinct: the roots first, then in the order in which sampling met them.
    pub nodes: Vec<NodeId>,
    /// How many of `nodes`, from the front, are roots.
    pub n_roots: usize,
    /// One block per layer; `blocks[0]` reads all of `nodes`, the last produces the roots.
    pub blocks: Vec<Block>,
}

/// The edges of one layer, grouped by destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Number of source nodes, at least `n_dst`.
    pub n_src: u32,
    /// Number of destination nodes.
    pub n_dst: u32,
    /// `n_dst + 1` positions in `sources`: destination `d` has `offsets[d]..offsets[d + 1]`.
    pub offsets: Vec<u32>,
    /// Local index of the source of each edge, below `n_src`.
    pub sources: Vec<u32>,
}

/// Which invariant of a [`Batch`] or [`Block`] does not hold.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BatchError {
    /// More roots than nodes.
    #[error("the batch names {n_roots} roots but only {n_nodes} nodes")]
    Roots {
        /// Roots promised.
        n_roots: usize,
        /// Nodes found.
        n_nodes: usize,
    },
    /// A node that the graph does not have.
    #[error("node {node} at position {position} is not below the graph's {n_nodes} nodes")]
    Node {
        /// Position in the node list.
        position: usize,
        /// The id found there.
        node: NodeId,
        /// Number of nodes of the graph.
        n_nodes: u32,
    },
    /// Neighbouring blocks, or the ends of the chain, disagree on a number of nodes.
    #[error("block {block}: expected {expected} {side} nodes, found {found}")]
    Chain {
        /// Position in the list of blocks; the number of blocks stands for the roots.
        block: usize,
        /// `source` or `destination`.
        side: &'static str,
        /// Number that the neighbour needs.
        expected: u64,
        /// Number found.
        found: u64,
    },
    /// Offsets that do not describe `n_dst` runs over `sources`.
    #[error(
        "block {block}: offsets must be {n_dst} + 1 values that rise from 0 to {n_edges} edges"
    )]
    Offsets {
        /// Position in the list of blocks.
        block: usize,
        /// Destinations of the block.
        n_dst: u32,
        /// Edges of the block.
        n_edges: usize,
    },
    /// A source index outside the block.
    #[error("block {block}: edge {edge} has source {found}, but there are {n_src} source nodes")]
    Source {
        /// Position in the list of blocks.
        block: usize,
        /// Position of the edge.
        edge: usize,
        /// Local index found.
        found: u32,
        /// Sources of the block.
        n_src: u32,
    },
}

impl Batch {
    /// Returns the nodes that the batch predicts.
    #[must_use]
    pub fn roots(&self) -> &[NodeId] {
        &self.nodes[..self.n_roots]
    }

    /// Returns the number of edges over all blocks.
    #[must_use]
    pub fn n_edges(&self) -> u64 {
        self.blocks.iter().map(|block| block.sources.len() as u64).sum()
    }

    /// Checks every invariant but the distinctness of `nodes`, which costs a table and which no
    /// reader relies on for safety.
    pub fn check(&self, n_nodes: u32) -> Result<(), BatchError> {
        if self.n_roots > self.nodes.len() {
            return Err(BatchError::Roots { n_roots: self.n_roots, n_nodes: self.nodes.len() });
        }
        if let Some(position) = self.nodes.iter().position(|node| node.0 >= n_nodes) {
            return Err(BatchError::Node { position, node: self.nodes[position], n_nodes });
        }
        let mut expected = self.nodes.len() as u64;
        for (i, block) in self.blocks.iter().enumerate() {
            let found = u64::from(block.n_src);
            if found != expected {
                return Err(BatchError::Chain { block: i, side: "source", expected, found });
            }
            block.check(i)?;
            expected = u64::from(block.n_dst);
        }
        let found = self.n_roots as u64;
        if found != expected {
            let block = self.blocks.len();
            return Err(BatchError::Chain { block, side: "destination", expected, found });
        }
        Ok(())
    }
}

impl Block {
    /// Returns the number of edges.
    #[must_use]
    pub fn n_edges(&self) -> usize {
        self.sources.len()
    }

    /// Returns the local indices of the sampled in-neighbours of destination `dst`.
    ///
    /// # Panics
    ///
    /// When `dst >= n_dst`.
    #[must_use]
    pub fn sources_of(&self, dst: usize) -> &[u32] {
        &self.sources[self.offsets[dst] as usize..self.offsets[dst + 1] as usize]
    }

    fn check(&self, block: usize) -> Result<(), BatchError> {
        if self.n_dst > self.n_src {
            let (expected, found) = (u64::from(self.n_src), u64::from(self.n_dst));
            return Err(BatchError::Chain { block, side: "destination", expected, found });
        }
        let n_edges = self.sources.len();
        let well_formed = self.offsets.len() as u64 == u64::from(self.n_dst) + 1
            && self.offsets.first() == Some(&0)
            && self.offsets.last().is_some_and(|&end| end as usize == n_edges)
            && self.offsets.is_sorted();
        if !well_formed {
            return Err(BatchError::Offsets { block, n_dst: self.n_dst, n_edges });
        }
        match self.sources.iter().position(|&source| source >= self.n_src) {
            None => Ok(()),
            Some(edge) => {
                let found = self.sources[edge];
                Err(BatchError::Source { block, edge, found, n_src: self.n_src })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Roots 7 and 3; 7 receives an answer from 3 and 9, 3 from none; then 9 receives an answer
    /// from 7.
    fn two_layers() -> Batch {
        Batch {
            nodes: [7, 3, 9].map(NodeId).to_vec(),
            n_roots: 2,
            blocks: vec![
                Block { n_src: 3, n_dst: 3, offsets: vec![0, 0, 0, 1], sources: vec![0] },
                Block { n_src: 3, n_dst: 2, offsets: vec![0, 2, 2], sources: vec![1, 2] },
            ],
        }
    }

    #[test]
    fn a_good_batch_passes() {
        let batch = two_layers();
        assert_eq!(batch.check(10), Ok(()));
        assert_eq!(batch.roots(), [NodeId(7), NodeId(3)]);
        assert_eq!(batch.n_edges(), 3);
        assert_eq!(batch.blocks[1].sources_of(0), [1, 2]);
        assert!(batch.blocks[1].sources_of(1).is_empty());
        assert_eq!(Batch::default().check(0), Ok(()));
    }

    #[test]
    fn every_broken_invariant_is_named() {
        let broken = |change: fn(&mut Batch)| {
            let mut batch = two_layers();
            change(&mut batch);
            batch.check(10).unwrap_err()
        };
        let error = broken(|batch| batch.n_roots = 4);
        assert_eq!(error, BatchError::Roots { n_roots: 4, n_nodes: 3 });
        let error = broken(|batch| batch.nodes[1] = NodeId(10));
        assert_eq!(error, BatchError::Node { position: 1, node: NodeId(10), n_nodes: 10 });
        let error = broken(|batch| batch.n_roots = 1);
        assert!(matches!(error, BatchError::Chain { block: 2, .. }));
        let error = broken(|batch| batch.blocks[1].n_src = 2);
        assert!(matches!(error, BatchError::Chain { block: 1, side: "source", .. }));
        let error = broken(|batch| batch.blocks[0].n_dst = 4);
        assert!(matches!(error, BatchError::Chain { block: 0, side: "destination", .. }));
        for offsets in [vec![0, 2], vec![1, 2, 2], vec![0, 2, 1], vec![0, 3, 2], vec![]] {
            let mut batch = two_layers();
            batch.blocks[1].offsets = offsets;
            let error = batch.check(10).unwrap_err();
            assert_eq!(error, BatchError::Offsets { block: 1, n_dst: 2, n_edges: 2 });
        }
        let error = broken(|batch| batch.blocks[0].sources[0] = 3);
        assert_eq!(error, BatchError::Source { block: 0, edge: 0, found: 3, n_src: 3 });
    }
}
