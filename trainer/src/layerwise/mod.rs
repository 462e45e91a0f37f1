//! Layer-wise inference: a model over many nodes with all their neighbours.
//!
//! Each layer passes once over the nodes whose output the next layer reads, in bounded chunks. The
//! rows of a layer are stored in memory within a budget, else in a temporary file. So memory does
//! not grow with neighbourhoods of several hops.
//!
//! A chunk does not depend on the process that computes it. A process computes the chunks of its
//! workers' partitions, some concurrently, and sends the rows to all processes. Each process stores
//! the rows that it reads in the next layer. So all bits are the same for any number of workers,
//! processes and threads.

mod chunks;
mod rows;
mod work;

use std::{cmp::Ordering, io, sync::Arc};

use lodestore_client::BatchLoader;
use lodestore_client::buffer::RowBuffer;
use lodestore_graph::node_set::NodeSet;
use lodestore_graph::{NodeId, topology::Topology};
use lodestore_models::conv::Hop;
use lodestore_models::layer::Layer;
use lodestore_models::matrix::Matrix;
use lodestore_models::matrix::sparse::Rows;
use lodestore_models::matrix::workspace::Workspace;
use rayon::{ThreadPool, prelude::*};

use crate::error::TrainError;
use crate::features::FeatureRows;
use crate::process_group::{ProcessGroup, RowsTo};
use crate::worker_thread::thread_pool;
pub(crate) use chunks::Owners;
use chunks::{Chunk, block_of};
use rows::Budget;
pub(crate) use rows::RowStore;
pub(crate) use work::{PassPlace, WorkFolder, remove};

/// Bytes of a chunk's source besides its row: its node twice, its edge, place and weight.
const SOURCE_BYTES: u64 = 28;
/// Chunks in memory at once, in all processes of a run together; at least one per process.
const CHUNKS_TOGETHER: u64 = 8;
/// Most bytes of a chunk, so that the rows of a round fit in one message.
const MAX_CHUNK_BYTES: u64 = 1 << 26;

/// Memory of a pass in one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassLimits {
    /// Bytes of a chunk's rows: read, aggregated and computed. A chunk has at least one node, with
    /// all its neighbours.
    pub(crate) chunk_bytes: u64,
    /// Bytes of stored rows in memory; further rows go to a file.
    pub(crate) stored_bytes: u64,
}

impl PassLimits {
    /// Splits `n_bytes`: a quarter is for chunks, the rest for stored rows.
    pub(crate) fn within(n_bytes: u64) -> Self {
        let chunk_bytes = (n_bytes / 4 / CHUNKS_TOGETHER).min(MAX_CHUNK_BYTES);
        Self { chunk_bytes, stored_bytes: n_bytes - CHUNKS_TOGETHER * chunk_bytes }
    }
}

/// Inputs of a pass.
///
/// Memory: [`PassLimits`], and 12 bytes for each 64 nodes and layer.
pub(crate) struct LayerPass<'a> {
    pub(crate) topology: &'a Topology,
    pub(crate) owners: Owners<'a>,
    pub(crate) features: FeatureRows,
    /// Loaders of the workers of this process, in their order.
    pub(crate) loaders: Vec<BatchLoader>,
    pub(crate) limits: PassLimits,
}

/// Receives the nodes of a chunk in ascending order with their rows, which it may change. With one
/// process the chunks are in ascending order too.
pub(crate) type RowSink<'s> = dyn FnMut(&[NodeId], &mut Matrix) -> Result<(), TrainError> + 's;

/// Receivers of a pass's reports.
pub(crate) struct PassOutput<'s> {
    /// Receives the rows of the last layer, before any activation, in the leader only.
    pub(crate) sink: &'s mut RowSink<'s>,
    /// Receives the number of nodes done and of all nodes, summed over layers.
    pub(crate) progress: &'s mut dyn FnMut(u64, u64),
    /// Folder of the rows of a pass that can be resumed. Needs a single process.
    pub(crate) work: Option<&'s mut WorkFolder>,
}

/// Layers of a pass, and the nodes of each stage. Stage 0 computes the messages of features, stage
/// n the rows of layer n - 1.
struct Stages<'a> {
    layers: &'a [Layer],
    sets: Vec<NodeSet>,
    /// For each stage but the last, the nodes whose rows this process reads in the next stage. None
    /// for a single process, which reads all.
    read_here: Option<Vec<NodeSet>>,
    /// Widths of the rows that each layer reads, then of the last layer's output.
    widths: Vec<usize>,
    n_ranks: u32,
}

impl Stages<'_> {
    /// Returns the width of a stage's output: messages, except for the last stage.
    fn width_after(&self, stage: usize) -> usize {
        let width = self.widths[stage];
        self.layers.get(stage).map_or(width, |layer| layer.conv.message_width(width))
    }

    fn is_last(&self, stage: usize) -> bool {
        stage == self.layers.len()
    }

    /// Returns the nodes of a stage whose rows are stored in this process.
    fn stored(&self, stage: usize) -> &NodeSet {
        let here = self.read_here.as_ref().and_then(|sets| sets.get(stage));
        here.unwrap_or(&self.sets[stage])
    }
}

/// State of a running pass.
struct Running<'p, 's> {
    pass: &'p LayerPass<'p>,
    stages: Stages<'p>,
    output: PassOutput<'s>,
    pool: ThreadPool,
    budget: Budget,
    /// Nodes done, summed over stages.
    done: u64,
    total: u64,
}

impl LayerPass<'_> {
    /// Runs `layers` for the nodes in `wanted`. With a folder, returns the rows of the last layer
    /// after the sink changed them.
    pub(crate) fn run(
        &self,
        layers: &[Layer],
        wanted: NodeSet,
        group: &mut ProcessGroup<'_>,
        output: PassOutput<'_>,
    ) -> Result<Option<RowStore>, TrainError> {
        let mut widths = vec![self.features.width];
        widths.extend(layers.iter().map(|layer| layer.conv.out_width()));
        let (sets, n_ranks) = (self.sets(layers.len(), wanted), group.n_ranks());
        let read_here = (n_ranks > 1).then(|| self.read_by(group.rank(), n_ranks, &sets));
        let running = Running {
            pass: self,
            total: sets.iter().map(|set| set.len() as u64).sum(),
            stages: Stages { layers, sets, read_here, widths, n_ranks },
            output,
            pool: thread_pool(group.n_local() as usize)?,
            budget: Budget::new(self.limits.stored_bytes),
            done: 0,
        };
        running.run(group)
    }

    /// Returns the nodes whose rows each layer needs: features first, `wanted` last.
    fn sets(&self, n_layers: usize, wanted: NodeSet) -> Vec<NodeSet> {
        let mut sets = vec![wanted];
        for layer in 0..n_layers {
            let sources = sets[layer].with_neighbours(self.topology);
            sets.push(sources);
        }
        sets.reverse();
        sets
    }

    /// Returns the nodes of each stage but the last whose rows process `rank` reads in the next
    /// stage. These are the nodes of the next stage that its workers own, and their in-neighbours.
    fn read_by(&self, rank: u32, n_ranks: u32, sets: &[NodeSet]) -> Vec<NodeSet> {
        let of_next = |next: &NodeSet| {
            let own = self.owners.of_rank(next, rank, n_ranks);
            own.with_neighbours(self.topology)
        };
        sets[1..].iter().map(of_next).collect()
    }

    /// Computes the rows of a stage's chunks concurrently, from features or from the messages of
    /// the previous stage.
    fn make(
        &self,
        stages: &Stages<'_>,
        stage: usize,
        messages: Option<&RowStore>,
        chunks: &[Chunk],
    ) -> Result<Vec<Matrix>, TrainError> {
        let make = |chunk: &Chunk| match (stage.checked_sub(1), messages) {
            (Some(layer), Some(messages)) => self.rows_of(stages, layer, messages, chunk),
            _ => {
                let loader = &self.loaders[(chunk.worker / stages.n_ranks) as usize];
                self.messages_of(&stages.layers[0], &chunk.nodes(&stages.sets[0]), loader)
            }
        };
        chunks.par_iter().with_max_len(1).map(make).collect()
    }

    /// Returns the chunks of a stage, bounded by the rows read, aggregated and computed.
    fn chunks(&self, stages: &Stages<'_>, stage: usize) -> Vec<Chunk> {
        let (nodes, limit) = (&stages.sets[stage], self.limits.chunk_bytes);
        let Some(layer) = stage.checked_sub(1) else {
            // As bytes, as f32, and as messages.
            let width = stages.widths[0] + stages.width_after(0);
            let row_bytes = (self.row_bytes() + 4 * width) as u64;
            return Chunk::split(nodes, self.owners, limit, |_| row_bytes);
        };
        let (read, made) = (stages.width_after(layer), stages.widths[stage]);
        let [of_source, of_destination] = [read, 2 * read + 2 * made].map(|n| 4 * n as u64);
        Chunk::split(nodes, self.owners, limit, |node| {
            let n_sources = u64::from(self.topology.in_degree(node)) + 1;
            n_sources * (of_source + SOURCE_BYTES) + of_destination
        })
    }

    /// Reads the features of `nodes`, and returns their messages for `layer`.
    fn messages_of(
        &self,
        layer: &Layer,
        nodes: &[NodeId],
        loader: &BatchLoader,
    ) -> Result<Matrix, TrainError> {
        if let Some((rows, _)) = self.features.load_sparse(loader, nodes)? {
            return Ok(layer.conv.messages(Rows::Sparse(rows)));
        }
        let (mut features, mut buffer) = (self.features.clone(), RowBuffer::default());
        buffer.resize(nodes.len() * loader.row_bytes());
        loader.clone().load(nodes, buffer.bytes_mut())?;
        let rows = match features.sparse(buffer.bytes()) {
            Some(rows) => Rows::Sparse(rows),
            None => {
                let (rows, width) = (features.view(buffer.bytes()).to_vec(), features.width);
                Rows::Dense(Matrix::new(rows, width))
            }
        };
        Ok(layer.conv.messages(rows))
    }

    /// Returns the output of layer `at` for `chunk`, from the messages of its nodes' neighbours. If
    /// there is a next layer, the result is its messages.
    fn rows_of(
        &self,
        stages: &Stages<'_>,
        at: usize,
        messages: &RowStore,
        chunk: &Chunk,
    ) -> Result<Matrix, TrainError> {
        let (sources, destinations) = (stages.stored(at), &stages.sets[at + 1]);
        let (nodes, block) = block_of(self.topology, &chunk.nodes(destinations));
        let numbers: Vec<u32> = nodes.iter().map(|&node| sources.index(node)).collect();
        let rows = messages.gather(&numbers).map_err(|source| {
            let folder = std::env::temp_dir();
            TrainError::Spill { folder, source }
        })?;
        let rows = Matrix::new(rows, messages.width);
        let degree = |node| self.topology.in_degree(node);
        let hop = Hop { block: &Arc::new(block), nodes: &nodes, degree: &degree };
        let out = stages.layers[at].combine(hop, rows, stages.widths[at]);
        let Some(next) = stages.layers.get(at + 1) else { return Ok(out) };
        let active = next.conv.activation().forward(out.values(), None, &Workspace::default());
        Ok(next.conv.messages(Rows::Dense(Matrix::new(active, out.width()))))
    }

    fn row_bytes(&self) -> usize {
        self.loaders.first().map_or(0, BatchLoader::row_bytes)
    }
}

impl Running<'_, '_> {
    /// Computes all stages; with a folder, those that it lacks.
    fn run(mut self, group: &mut ProcessGroup<'_>) -> Result<Option<RowStore>, TrainError> {
        let work = self.output.work.as_deref();
        let place = work.map_or_else(PassPlace::default, |work| work.place);
        let mut messages = None;
        for stage in 0..self.stages.sets.len() {
            let n_nodes = self.stages.sets[stage].len() as u64;
            if stage + 1 < place.stage {
                self.done += n_nodes;
                continue;
            }
            let chunks = self.pass.chunks(&self.stages, stage);
            let n_before = match stage.cmp(&place.stage) {
                Ordering::Less => chunks.len(),
                Ordering::Equal => place.n_chunks,
                Ordering::Greater => 0,
            };
            let made = self.run_stage(stage, &chunks, n_before, messages.as_ref(), group)?;
            if let Some(read) = std::mem::replace(&mut messages, made) {
                read.drop_into(&self.budget);
            }
        }
        Ok(messages)
    }

    /// Computes the chunks of a stage except the first `n_before`, which are on disk. Returns the
    /// rows if they are stored.
    fn run_stage(
        &mut self,
        stage: usize,
        chunks: &[Chunk],
        n_before: usize,
        messages: Option<&RowStore>,
        group: &mut ProcessGroup<'_>,
    ) -> Result<Option<RowStore>, TrainError> {
        let (n_nodes, is_last) = (self.stages.sets[stage].len(), self.stages.is_last(stage));
        let n_rows = chunks.get(n_before).map_or(n_nodes, |chunk| chunk.number);
        let mut stored = self.open_rows(stage, n_rows)?;
        self.progress(n_rows);
        let (mut n_chunks, to) = (n_before, if is_last { RowsTo::Leader } else { RowsTo::All });
        for round in rounds(&chunks[n_before..], group.n_ranks()) {
            let mine = &round[group.rank() as usize];
            let make = || self.pass.make(&self.stages, stage, messages, mine);
            let made = self.pool.install(make)?;
            let width = self.stages.width_after(stage);
            for (chunk, mut rows) in share(group, &round, made, width, to)? {
                if is_last {
                    (self.output.sink)(&chunk.nodes(&self.stages.sets[stage]), &mut rows)?;
                }
                if let Some(stored) = &mut stored {
                    let written = self.write(stage, chunk, &rows, stored);
                    written.map_err(|error| self.spill(error))?;
                }
            }
            n_chunks += round.iter().map(Vec::len).sum::<usize>();
            self.progress(round.iter().flatten().map(|chunk| chunk.n_nodes).sum());
            if let (Some(work), Some(stored)) = (&mut self.output.work, &stored) {
                let saved = work.save_if_due(PassPlace { stage, n_chunks }, stored);
                saved.map_err(|error| self.spill(error))?;
            }
        }
        if let (Some(work), Some(stored)) = (&mut self.output.work, &stored)
            && work.place.stage == stage
        {
            let saved = work.save(PassPlace { stage: stage + 1, n_chunks: 0 }, stored);
            saved.map_err(|error| self.spill(error))?;
        }
        Ok(stored)
    }

    /// Stores the rows of `chunk` that this process reads in the next stage.
    fn write(
        &self,
        stage: usize,
        chunk: &Chunk,
        rows: &Matrix,
        stored: &mut RowStore,
    ) -> io::Result<()> {
        if self.stages.read_here.is_none() {
            return stored.write(chunk.number, rows.values());
        }
        let (of_stage, here) = (&self.stages.sets[stage], self.stages.stored(stage));
        let nodes = chunk.nodes(of_stage);
        let is_here = |node: &NodeId| here.contains(*node);
        let Some(&first) = nodes.iter().find(|node| is_here(node)) else { return Ok(()) };
        // Both sets ascend, so the nodes of a chunk have consecutive numbers.
        let all = nodes.iter().zip(rows.values().chunks_exact(rows.width()));
        let kept: Vec<f32> =
            all.filter(|(node, _)| is_here(node)).flat_map(|(_, row)| row).copied().collect();
        stored.write(here.index(first) as usize, &kept)
    }

    /// Opens the row store of a stage, with the first `n_rows` from the folder. None if only the
    /// sink receives the rows.
    fn open_rows(&self, stage: usize, n_rows: usize) -> Result<Option<RowStore>, TrainError> {
        let width = self.stages.width_after(stage);
        let work = self.output.work.as_deref();
        if self.stages.is_last(stage) && work.is_none() {
            return Ok(None);
        }
        let open = || {
            let n_bytes = 4 * (n_rows * width) as u64;
            let file = work.map(|work| work.rows_file(stage, n_bytes)).transpose()?;
            let n_nodes = self.stages.stored(stage).len();
            let mut rows = RowStore::new(n_nodes, width, &self.budget, file)?;
            rows.load(n_rows)?;
            Ok(rows)
        };
        open().map(Some).map_err(|error| self.spill(error))
    }

    fn progress(&mut self, n_nodes: usize) {
        self.done += n_nodes as u64;
        (self.output.progress)(self.done, self.total);
    }

    fn spill(&self, source: io::Error) -> TrainError {
        let work = self.output.work.as_deref();
        let folder = work.map_or_else(std::env::temp_dir, |work| work.dir.clone());
        TrainError::Spill { folder, source }
    }
}

/// Returns rounds of chunks that processes compute concurrently, by rank.
fn rounds(chunks: &[Chunk], n_ranks: u32) -> impl Iterator<Item = Vec<Vec<Chunk>>> {
    let together = (CHUNKS_TOGETHER / u64::from(n_ranks)).max(1) as usize;
    let of_rank = |rank| chunks.iter().filter(move |chunk| chunk.worker % n_ranks == rank).cloned();
    let of_ranks: Vec<Vec<Chunk>> = (0..n_ranks).map(|rank| of_rank(rank).collect()).collect();
    let n_rounds = of_ranks.iter().map(|of| of.len().div_ceil(together)).max().unwrap_or(0);
    (0..n_rounds).map(move |round| {
        let of_round = |of: &Vec<Chunk>| {
            let first = (round * together).min(of.len());
            of[first..(first + together).min(of.len())].to_vec()
        };
        of_ranks.iter().map(of_round).collect()
    })
}

/// Sends the rows of a round that this process computed, of `width`, to the others. Returns the
/// chunks whose rows this process has afterwards.
fn share<'r>(
    group: &mut ProcessGroup<'_>,
    round: &'r [Vec<Chunk>],
    made: Vec<Matrix>,
    width: usize,
    to: RowsTo,
) -> Result<Vec<(&'r Chunk, Matrix)>, TrainError> {
    if group.n_ranks() == 1 {
        return Ok(round.iter().flatten().zip(made).collect());
    }
    let rows: Vec<u8> =
        made.iter().flat_map(|rows| bytemuck::cast_slice(rows.values())).copied().collect();
    drop(made);
    let n_bytes = |chunk: &Chunk| 4 * chunk.n_nodes * width;
    let lengths: Vec<usize> = round.iter().map(|of| of.iter().map(n_bytes).sum()).collect();
    let all = group.share_rows(&rows, &lengths, to)?;
    let mut shared = Vec::new();
    for (of_rank, bytes) in round.iter().zip(all).filter(|(_, bytes)| !bytes.is_empty()) {
        let mut bytes = &bytes[..];
        for chunk in of_rank {
            let (of_chunk, rest) = bytes.split_at(n_bytes(chunk));
            let values = of_chunk.as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value));
            shared.push((chunk, Matrix::new(values.collect(), width)));
            bytes = rest;
        }
    }
    Ok(shared)
}

/// Fails if a row of `out` is not finite, and names its node.
pub(crate) fn check_finite(nodes: &[NodeId], out: &Matrix) -> Result<(), TrainError> {
    let is_finite = |row: &[f32]| row.iter().all(|value| value.is_finite());
    let mut rows = nodes.iter().zip(out.values().chunks_exact(out.width()));
    match rows.find(|(_, row)| !is_finite(row)) {
        Some((&node, _)) => Err(TrainError::NotFinite { node }),
        None => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
