//! Uniform k-hop neighbour sampling without replacement, the same bit for bit for any order of
//! visits and any number of threads.

mod choice;
mod fanout;
mod local_ids;
mod roots;
mod stream;

use crate::NodeId;
use crate::batch::{Batch, Block};
use crate::topology::Topology;

use choice::Choice;
use local_ids::LocalIds;
use stream::Stream;

pub(crate) use roots::batches_of;

pub use fanout::{Fanout, FanoutError};
pub use roots::{epoch_order, is_local, worker_batches};
pub use stream::batch_seed;

/// Draws mini-batches from a topology. Each thread has its own, because it reuses its tables: 4
/// bytes per node of the graph.
///
/// The neighbours of a node in one hop depend on the batch's seed, the hop and the node alone
/// (RapidGNN, section 4.1).
pub struct Sampler<'a> {
    topology: &'a Topology,
    fanouts: Vec<Fanout>,
    locals: LocalIds,
    choice: Choice,
}

impl<'a> Sampler<'a> {
    /// A sampler with one fan-out per hop; `fanouts[0]` is that of the hop next to the roots.
    #[must_use]
    pub fn new(topology: &'a Topology, fanouts: &[Fanout]) -> Self {
        let locals = LocalIds::new(topology.n_nodes());
        Self { topology, fanouts: fanouts.to_vec(), locals, choice: Choice::default() }
    }

    /// The batch of `roots` under `seed`, one block per fan-out, the input layer first. A root
    /// that repeats counts once. Every hop draws neighbours for all nodes met so far.
    ///
    /// # Panics
    ///
    /// When a root is not a node of the graph, or a block would have 2³² edges.
    pub fn sample(&mut self, roots: &[NodeId], seed: u64) -> Batch {
        self.locals.clear();
        let mut nodes = Vec::new();
        let mut ids: Vec<u32> = roots.iter().map(|root| root.0).collect();
        self.locals.translate(&mut ids, &mut nodes);
        let n_roots = nodes.len();
        let mut blocks = vec![Block::default(); self.fanouts.len()];
        for (hop, block) in blocks.iter_mut().rev().enumerate() {
            let n_dst = nodes.len() as u32;
            let stream = Stream::new(seed).child(hop as u64);
            let (offsets, mut sources) = self.draw(stream, self.fanouts[hop], &nodes);
            self.locals.translate(&mut sources, &mut nodes);
            *block = Block { n_src: nodes.len() as u32, n_dst, offsets, sources };
        }
        // Translation makes room for more nodes than it meets, and batches may wait in a queue.
        nodes.shrink_to_fit();
        Batch { nodes, n_roots, blocks }
    }

    /// The neighbours drawn for each of `nodes`, as offsets and ids.
    fn draw(&mut self, hop: Stream, fanout: Fanout, nodes: &[NodeId]) -> (Vec<u32>, Vec<u32>) {
        let mut offsets = Vec::with_capacity(nodes.len() + 1);
        let mut n_edges = 0u32;
        offsets.push(0);
        for &node in nodes {
            let n_drawn = fanout.of(self.topology.in_degree(node));
            n_edges = n_edges.checked_add(n_drawn).expect("a block has fewer than 2^32 edges");
            offsets.push(n_edges);
        }
        let mut sources = Vec::with_capacity(n_edges as usize);
        for &node in nodes {
            let neighbours = self.topology.in_neighbours(node);
            let n_drawn = fanout.of(neighbours.len() as u32);
            if n_drawn as usize == neighbours.len() {
                sources.extend_from_slice(neighbours);
            } else {
                let stream = hop.child(node.0.into());
                self.choice.extend(&mut sources, neighbours, n_drawn, stream);
            }
        }
        (offsets, sources)
    }
}

#[cfg(test)]
mod tests;
