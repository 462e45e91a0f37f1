//! A model over many nodes with all their neighbours, one layer after the other.
//!
//! Each layer passes once over the nodes whose output is wanted, in bounded chunks; its rows are
//! stored, in memory within a budget, else in a temporary file. So memory does not grow with the
//! edges of the neighbourhoods of several hops.

mod messages;
mod nodes;
mod rows;

use std::{io, iter::Peekable, sync::Arc};

use lodestore_client::{BatchLoader, RowBuffer};
use lodestore_graph::{
    NodeId,
    batch::{Batch, Block},
    sampler::{Fanout, Sampler},
    topology::Topology,
};

use crate::{
    TrainError, conv::Hop, features::FeatureRows, layer::Layer, matrix::Matrix, sparse::Rows,
    workspace::Workspace,
};
pub(crate) use nodes::NodeSet;
use rows::{Budget, RowStore};

/// Bytes that a source of a chunk takes beside its row: its node, places, edge and weight.
const SOURCE_BYTES: u64 = 28;

/// Memory of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassLimits {
    /// Bytes of rows of a chunk: those read, aggregated and made. One node with all its neighbours is
    /// a chunk however many they are.
    pub(crate) chunk_bytes: u64,
    /// Bytes of layers' rows that are kept in memory; others go to a temporary file.
    pub(crate) stored_bytes: u64,
}

impl PassLimits {
    /// Splits `n_bytes`: an eighth is for chunks.
    pub(crate) fn within(n_bytes: u64) -> Self {
        Self { chunk_bytes: n_bytes / 8, stored_bytes: n_bytes - n_bytes / 8 }
    }
}

/// What a pass reads.
///
/// Memory: [`PassLimits`], 4 bytes for each node of the graph, and 12 bytes for each 64 nodes and
/// layer.
pub(crate) struct LayerPass<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) features: FeatureRows,
    pub(crate) loader: BatchLoader,
    pub(crate) limits: PassLimits,
}

/// Takes the rows that a pass makes: nodes in rising order, and their rows.
pub(crate) type RowSink<'s> = dyn FnMut(&[NodeId], &Matrix) -> Result<(), TrainError> + 's;

impl LayerPass<'_> {
    /// Runs `layers` for the nodes in `wanted`, and passes the last one's rows to `sink`, before
    /// any activation. `progress` gets nodes done, and how many there are, summed over layers.
    pub(crate) fn run(
        &mut self,
        layers: &[Layer],
        wanted: NodeSet,
        sink: &mut RowSink<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), TrainError> {
        let sets = self.sets(layers.len(), wanted);
        let total = sets.iter().map(|set| set.len() as u64).sum();
        let mut done = 0;
        let mut made = |n: usize| {
            done += n as u64;
            progress(done, total);
        };
        let budget = Budget::new(self.limits.stored_bytes);
        let mut width = self.features.width();
        let mut sampler = Sampler::new(self.topology, &[Fanout::All]);
        let mut messages = self.read_features(&layers[0], &sets[0], &budget, &mut made)?;
        for (index, layer) in layers.iter().enumerate() {
            let (sources, destinations) = (&sets[index], &sets[index + 1]);
            let out_width = layer.out_width()?;
            let next = layers.get(index + 1);
            let mut stored = match next {
                Some(next) => {
                    let width = next.message_width(out_width)?;
                    Some(RowStore::new(destinations.len(), width, &budget).map_err(spill)?)
                }
                None => None,
            };
            // Rows read, aggregated and made.
            let widths = [messages.width(), 2 * messages.width() + 2 * out_width];
            let mut nodes = destinations.iter().peekable();
            while let Some(chunk) = self.chunk(&mut nodes, widths) {
                let (nodes, block) = sorted(sampler.sample(&chunk, 0));
                let numbers: Vec<u32> = nodes.iter().map(|&node| sources.index(node)).collect();
                let rows = Matrix::new(messages.gather(&numbers).map_err(spill)?, messages.width());
                let degree = |node| self.topology.in_degree(node);
                let hop = Hop { block: &Arc::new(block), nodes: &nodes, degree: &degree };
                let out = layer.combine(hop, rows, width)?;
                match (next, &mut stored) {
                    (Some(next), Some(stored)) => {
                        let active =
                            next.activation().forward(out.values(), None, &Workspace::default());
                        let rows = next.messages(Rows::Dense(Matrix::new(active, out_width)))?;
                        stored.append(rows.values()).map_err(spill)?;
                    }
                    _ => sink(&chunk, &out)?,
                }
                made(chunk.len());
            }
            if let Some(stored) = stored {
                std::mem::replace(&mut messages, stored).drop_into(&budget);
            }
            width = out_width;
        }
        Ok(())
    }

    /// Returns the nodes whose rows are needed: those of the features first, `wanted` last.
    fn sets(&self, n_layers: usize, wanted: NodeSet) -> Vec<NodeSet> {
        let mut sets = vec![wanted];
        for layer in 0..n_layers {
            let sources = sets[layer].with_neighbours(self.topology);
            sets.push(sources);
        }
        sets.reverse();
        sets
    }

    /// Reads the features of `nodes` once, and returns the messages that `layer` makes of them.
    fn read_features(
        &mut self,
        layer: &Layer,
        nodes: &NodeSet,
        budget: &Budget,
        made: &mut dyn FnMut(usize),
    ) -> Result<RowStore, TrainError> {
        let width = self.features.width();
        let message_width = layer.message_width(width)?;
        let mut store = RowStore::new(nodes.len(), message_width, budget).map_err(spill)?;
        // As bytes, as f32, and as messages.
        let row_bytes = self.loader.row_bytes() + 4 * (width + message_width);
        let per_chunk = (self.limits.chunk_bytes as usize / row_bytes).max(1);
        let mut nodes = nodes.iter().peekable();
        let mut buffer = RowBuffer::default();
        while nodes.peek().is_some() {
            let chunk: Vec<NodeId> = nodes.by_ref().take(per_chunk).collect();
            buffer.resize(chunk.len() * self.loader.row_bytes());
            self.loader.load(&chunk, buffer.bytes_mut())?;
            let rows = match self.features.sparse(buffer.bytes()) {
                Some(rows) => Rows::Sparse(rows),
                None => {
                    let rows = self.features.view(buffer.bytes()).to_vec();
                    Rows::Dense(Matrix::new(rows, width))
                }
            };
            store.append(layer.messages(rows)?.values()).map_err(spill)?;
            made(chunk.len());
        }
        Ok(store)
    }

    /// Takes nodes while the rows of their chunk are within the limit, at least one; `widths` are
    /// those of a source and of a destination. None when there is no node left.
    fn chunk(
        &self,
        nodes: &mut Peekable<impl Iterator<Item = NodeId>>,
        widths: [usize; 2],
    ) -> Option<Vec<NodeId>> {
        let [of_source, of_destination] = widths.map(|width| 4 * width as u64);
        let bytes_of = |node: NodeId| {
            let n_sources = u64::from(self.topology.in_degree(node)) + 1;
            n_sources * (of_source + SOURCE_BYTES) + of_destination
        };
        let first = nodes.next()?;
        let mut n_bytes = bytes_of(first);
        let mut chunk = vec![first];
        while let Some(&node) = nodes.peek() {
            n_bytes += bytes_of(node);
            if n_bytes > self.limits.chunk_bytes {
                break;
            }
            chunk.extend(nodes.next());
        }
        Some(chunk)
    }
}

/// Returns the nodes and the block of a batch of one hop, with those that are no destinations in
/// rising order, so that their rows are read in the order in which they are stored.
fn sorted(batch: Batch) -> (Vec<NodeId>, Block) {
    let Batch { mut nodes, mut blocks, .. } = batch;
    let mut block = blocks.pop().unwrap_or_default();
    let n_dst = block.n_dst as usize;
    let mut order: Vec<u32> = (block.n_dst..block.n_src).collect();
    order.sort_unstable_by_key(|&source| nodes[source as usize]);
    let mut place: Vec<u32> = (0..block.n_src).collect();
    for (to, &from) in (block.n_dst..).zip(&order) {
        place[from as usize] = to;
    }
    let others: Vec<NodeId> = order.iter().map(|&from| nodes[from as usize]).collect();
    nodes[n_dst..].copy_from_slice(&others);
    block.sources.iter_mut().for_each(|source| *source = place[*source as usize]);
    (nodes, block)
}

/// Fails where a row of `out` is not finite, and names its node.
pub(crate) fn check_finite(nodes: &[NodeId], out: &Matrix) -> Result<(), TrainError> {
    let is_finite = |row: &[f32]| row.iter().all(|value| value.is_finite());
    let mut rows = nodes.iter().zip(out.values().chunks_exact(out.width()));
    match rows.find(|(_, row)| !is_finite(row)) {
        Some((&node, _)) => Err(TrainError::NotFinite { node }),
        None => Ok(()),
    }
}

fn spill(source: io::Error) -> TrainError {
    TrainError::Spill { folder: std::env::temp_dir(), source }
}

#[cfg(test)]
pub(crate) mod tests;
