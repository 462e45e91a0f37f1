//! Uniform k-hop neighbour sampling without replacement, the same bit for bit for any order of
//! visits and any number of threads.

mod choice;
mod fanout;
mod frontier;
mod lists;
mod local_ids;
mod roots;
mod stream;

use std::ops::Range;

use thiserror::Error;

use crate::batch::{Batch, Block};
use crate::ids::NodeId;
use crate::prefetch::{prefetch, prefetch_all};
use crate::topology::Topology;

use choice::Choice;
use lists::NeighbourLists;
use local_ids::LocalIds;
use stream::RandomStream;

pub use fanout::{Fanout, FanoutError};
pub use frontier::{FrontierBatch, FrontierSampler};
pub use roots::{Deal, RootPlan, RootShare, epoch_order, is_local};
pub use stream::batch_seed;

/// Nodes whose neighbours are drawn, read and numbered together: enough for memory to answer
/// between these steps, few enough to stay in a core's cache.
const GROUP: usize = 32;

/// A batch would have more edges than it may.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "the first blocks of the batch have {found} edges already; use smaller batches or fan-outs"
)]
pub struct TooManyEdges {
    /// Edges of the blocks up to the one that was too many.
    pub found: u64,
}

/// Draws mini-batches from a topology. Each thread has its own, because it reuses its tables: 4
/// bytes per node of the graph.
///
/// The neighbours of a node in one hop depend on the batch's seed, the hop and the node alone
/// (RapidGNN, section 4.1).
pub struct Sampler<'a> {
    lists: NeighbourLists<'a>,
    fanouts: Vec<Fanout>,
    locals: LocalIds,
    choice: Choice,
    /// The list of each node of the batch.
    known: Vec<&'a [u32]>,
    /// In a part of a graph: the id of each node in the graph, by which it draws.
    names: Option<&'a [NodeId]>,
}

impl<'a> Sampler<'a> {
    /// Returns a sampler with one fan-out per hop; `fanouts[0]` is that of the hop next to the
    /// roots.
    #[must_use]
    pub fn new(topology: &'a Topology, fanouts: &[Fanout]) -> Self {
        Self {
            lists: NeighbourLists::of(topology),
            fanouts: fanouts.to_vec(),
            locals: LocalIds::new(topology.n_nodes()),
            choice: Choice::default(),
            known: Vec::new(),
            names: None,
        }
    }

    /// Returns a sampler of a part of a graph, whose node i is `names[i]` of the graph. A node with
    /// the same list draws the same neighbours as there. Roots and batches have ids of the part.
    ///
    /// # Panics
    ///
    /// Unless there is a name for each node.
    #[must_use]
    pub fn named(topology: &'a Topology, fanouts: &[Fanout], names: &'a [NodeId]) -> Self {
        assert_eq!(names.len(), topology.n_nodes() as usize, "a name for each node");
        Self { names: Some(names), ..Self::new(topology, fanouts) }
    }

    /// Returns the batch of `roots` under `seed`, one block per fan-out, the input layer first. A
    /// root that repeats counts once. Every hop draws neighbours for all nodes met so far.
    ///
    /// # Panics
    ///
    /// When a root is not a node of the graph, or the blocks would have 2³² edges.
    pub fn sample(&mut self, roots: &[NodeId], seed: u64) -> Batch {
        self.sample_at_most(roots, seed, u32::MAX).expect("a batch has fewer than 2^32 edges")
    }

    /// Does the same, as long as all blocks together have at most `max_edges` edges. Nothing is
    /// drawn for a block with which they would have more.
    ///
    /// # Panics
    ///
    /// When a root is not a node of the graph.
    pub fn sample_at_most(
        &mut self,
        roots: &[NodeId],
        seed: u64,
        max_edges: u32,
    ) -> Result<Batch, TooManyEdges> {
        self.locals.clear();
        self.known.clear();
        let mut nodes = Vec::new();
        let mut ids: Vec<u32> = roots.iter().map(|root| root.0).collect();
        self.locals.translate(&mut ids, &mut nodes);
        let n_roots = nodes.len();
        let mut blocks = vec![Block::default(); self.fanouts.len()];
        let mut n_edges = 0u64;
        for (hop, block) in blocks.iter_mut().rev().enumerate() {
            let n_dst = nodes.len() as u32;
            let stream = RandomStream::new(seed).child(hop as u64);
            let n_known = self.known.len();
            self.lists.extend(&mut self.known, &nodes[n_known..]);
            let n_drawn = self.known.iter().map(|list| self.fanouts[hop].of(list.len() as u32));
            n_edges += n_drawn.map(u64::from).sum::<u64>();
            if n_edges > max_edges.into() {
                return Err(TooManyEdges { found: n_edges });
            }
            let offsets = self.offsets(self.fanouts[hop]);
            let sources = self.draw(stream, &offsets, &mut nodes);
            *block = Block { n_src: nodes.len() as u32, n_dst, offsets, sources };
        }
        // Translation makes room for more nodes than it meets, and batches may wait in a queue.
        nodes.shrink_to_fit();
        Ok(Batch { nodes, n_roots, blocks })
    }

    /// Returns where the neighbours drawn for each known node start; they are fewer than 2³².
    fn offsets(&self, fanout: Fanout) -> Vec<u32> {
        let mut offsets = Vec::with_capacity(self.known.len() + 1);
        let mut n_edges = 0u32;
        offsets.push(0);
        for list in &self.known {
            n_edges += fanout.of(list.len() as u32);
            offsets.push(n_edges);
        }
        offsets
    }

    /// Returns the neighbours drawn for each known node, as local ids; appends those met first to
    /// `nodes`.
    ///
    /// Three steps, each a group behind the one before, so that each finds in the cache what the
    /// one before has asked for.
    fn draw(&mut self, hop: RandomStream, offsets: &[u32], nodes: &mut Vec<NodeId>) -> Vec<u32> {
        let n_dst = self.known.len();
        let mut sources = vec![0; offsets[n_dst] as usize];
        let group = |g: usize| (g * GROUP).min(n_dst)..((g + 1) * GROUP).min(n_dst);
        let n_groups = n_dst.div_ceil(GROUP);
        for g in 0..n_groups + 2 {
            self.choose(hop, group(g), offsets, nodes, &mut sources);
            if let Some(g) = g.checked_sub(1) {
                self.read(group(g), offsets, &mut sources);
            }
            if let Some(g) = g.checked_sub(2) {
                let edges = edges_of(&group(g), offsets);
                self.locals.translate(&mut sources[edges], nodes);
            }
        }
        sources
    }

    /// Puts the positions drawn from each list of a group, where it is longer than its draw, into
    /// `sources`, and asks for what they name.
    fn choose(
        &mut self,
        hop: RandomStream,
        group: Range<usize>,
        offsets: &[u32],
        nodes: &[NodeId],
        sources: &mut [u32],
    ) {
        for dst in group {
            let (list, drawn) = (self.known[dst], &mut sources[edges_of(&(dst..dst + 1), offsets)]);
            if drawn.len() == list.len() {
                prefetch_all(list);
                continue;
            }
            let name = self.names.map_or(nodes[dst], |names| names[nodes[dst].index()]);
            let stream = hop.child(name.0.into());
            self.choice.fill(drawn, list.len() as u32, stream);
            drawn.iter().for_each(|&position| prefetch(&list[position as usize]));
        }
    }

    /// Replaces positions by the neighbours there, and asks for their local ids.
    fn read(&self, group: Range<usize>, offsets: &[u32], sources: &mut [u32]) {
        for dst in group.clone() {
            let (list, drawn) = (self.known[dst], &mut sources[edges_of(&(dst..dst + 1), offsets)]);
            if drawn.len() == list.len() {
                drawn.copy_from_slice(list);
            } else {
                drawn.iter_mut().for_each(|position| *position = list[*position as usize]);
            }
        }
        self.locals.prefetch(&sources[edges_of(&group, offsets)]);
    }
}

/// Returns the edges of consecutive destinations.
#[inline]
fn edges_of(dsts: &Range<usize>, offsets: &[u32]) -> Range<usize> {
    offsets[dsts.start] as usize..offsets[dsts.end] as usize
}

#[cfg(test)]
mod tests;
