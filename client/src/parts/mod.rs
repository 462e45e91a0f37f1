//! Partitions with their halos in memory: neighbour lists, degrees and rows, by local id (SDT-GNN,
//! section III-B). [`turns`] loads them one after the other, ahead of their use.

mod residents;
pub mod turns;

use std::ops::Range;
use std::thread;
use std::time::Instant;

use lodestore_graph::node_set::NodeSet;
use lodestore_graph::region::{Depth, PartitionPlan, Reach, Region};
use lodestore_graph::topology::Topology;
use lodestore_graph::{NodeId, PartId, PartitionBook};
use serde::{Deserialize, Serialize};

use crate::buffer::RowBuffer;
use crate::error::ClientError;
use crate::load_stats::LoadStats;
use crate::source::{PullKind, RowSource};

/// A partition as its local model sees it.
#[derive(Debug)]
pub struct LocalPartition {
    /// The partition.
    pub part: u32,
    /// The nodes by local id.
    pub nodes: Vec<NodeId>,
    /// In-neighbours by local id, in the order of global ids.
    pub topology: Topology,
    /// In-degrees in the whole graph, by local id.
    degrees: Vec<u32>,
    numbers: Numbers,
    rows: RowBuffer,
    row_bytes: usize,
    /// VectorPulls of rows of other workers' partitions.
    pub pulled: LoadStats,
    /// Time and bytes of loading it; rows of the halo are whichever worker's.
    pub loaded: PartitionTraffic,
}

/// Bytes moved to load a partition; zero where it was in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartitionTraffic {
    /// Rows of its halo.
    pub halo_rows: u64,
    /// Bytes of them.
    pub halo_bytes: u64,
    /// Bytes of all its rows.
    pub loaded_bytes: u64,
    /// Seconds of loading, concurrent with the use of the previous partition.
    pub load_seconds: f64,
}

/// The partitions of a graph, and where the rows of one worker come from.
pub struct PartitionSource<'run> {
    /// In-neighbours of all nodes.
    pub topology: &'run Topology,
    /// Which partition owns which node.
    pub book: &'run PartitionBook,
    /// Rows of the worker's own partitions.
    pub local: &'run dyn RowSource,
    /// All other rows.
    pub remote: &'run dyn RowSource,
    /// The tensor of the rows.
    pub tensor: &'run str,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Depth of a partition's view.
    pub depth: Depth,
    /// Partition p belongs to worker p mod workers.
    pub worker: u32,
    /// Workers of the run.
    pub n_workers: u32,
}

/// Local ids: other workers' nodes first, each kind in ascending order, so that pulled rows are
/// contiguous.
#[derive(Debug)]
struct Numbers {
    set: NodeSet,
    /// For each partition: its first node, and the offset of the rank of a node of it.
    parts: Vec<(u32, i64)>,
}

impl Numbers {
    fn new(set: NodeSet, book: &PartitionBook, is_remote: impl Fn(PartId) -> bool) -> (Self, u32) {
        let mut counts = Vec::new();
        let mut nodes = set.iter().peekable();
        for part in book.parts() {
            let range = book.range(part);
            let mut n_nodes = 0u32;
            while nodes.next_if(|node| range.contains(&node.0)).is_some() {
                n_nodes += 1;
            }
            counts.push((range.start, n_nodes, is_remote(part)));
        }
        drop(nodes);
        let n_remote: u32 = counts.iter().filter(|(.., is)| *is).map(|(_, n, _)| n).sum();
        let (mut rank, mut next) = (0i64, [0i64, n_remote.into()]);
        let parts = counts.into_iter().map(|(first, n_nodes, is_remote)| {
            let next = &mut next[usize::from(!is_remote)];
            let shift = *next - rank;
            *next += i64::from(n_nodes);
            rank += i64::from(n_nodes);
            (first, shift)
        });
        let parts = parts.collect();
        (Self { set, parts }, n_remote)
    }

    /// Returns the local id of `node`.
    fn local(&self, node: NodeId) -> u32 {
        let part = self.parts.partition_point(|(first, _)| *first <= node.0) - 1;
        (i64::from(self.set.index(node)) + self.parts[part].1) as u32
    }
}

impl PartitionSource<'_> {
    fn owned(&self, part: u32) -> Range<u32> {
        self.book.range(PartId(part as u16))
    }

    /// Returns the cost of loading `part` to train on `roots`.
    #[must_use]
    pub fn plan(&self, part: u32, roots: &[NodeId]) -> PartitionPlan {
        Region::new(self.topology, self.owned(part), self.depth).plan(roots)
    }

    /// Loads `part` with its halo, to train on `roots`. Rows of other workers' partitions are one
    /// VectorPull, while own rows are read.
    ///
    /// # Errors
    /// Those of both pulls, and [`ClientError::Topology`] for more entries than lists can number.
    pub fn load(&self, part: u32, roots: &[NodeId]) -> Result<LocalPartition, ClientError> {
        let region = Region::new(self.topology, self.owned(part), self.depth);
        let Reach { nodes: set, expanded } = region.reach(roots);
        let is_remote = |of: PartId| u32::from(of.0) % self.n_workers != self.worker;
        let (numbers, n_remote) = Numbers::new(set, self.book, is_remote);
        let mut nodes = vec![NodeId(0); numbers.set.len()];
        numbers.set.iter().for_each(|node| nodes[numbers.local(node) as usize] = node);
        let topology = lists(&region, &expanded, &nodes, &numbers)?;
        let degrees = nodes.iter().map(|&node| self.topology.in_degree(node)).collect();
        let mut rows = RowBuffer::default();
        rows.resize(nodes.len() * self.row_bytes);
        let start = Instant::now();
        let pulled = self.pull(&nodes, n_remote as usize, rows.bytes_mut())?;
        let load_seconds = start.elapsed().as_secs_f64();
        let owned = self.owned(part);
        let halo_rows = nodes.iter().filter(|node| !owned.contains(&node.0)).count() as u64;
        let row_bytes = self.row_bytes;
        let (halo_bytes, loaded_bytes) = (halo_rows * row_bytes as u64, rows.bytes().len() as u64);
        let loaded = PartitionTraffic { halo_rows, halo_bytes, loaded_bytes, load_seconds };
        Ok(LocalPartition {
            part,
            nodes,
            topology,
            degrees,
            numbers,
            rows,
            row_bytes,
            pulled,
            loaded,
        })
    }

    /// Loads the rows of `nodes`. The first `n_remote` are other workers'; they are pulled while
    /// own rows are read.
    fn pull(
        &self,
        nodes: &[NodeId],
        n_remote: usize,
        out: &mut [u8],
    ) -> Result<LoadStats, ClientError> {
        let (remote, own) = nodes.split_at(n_remote);
        let (of_remote, of_own) = out.split_at_mut(n_remote * self.row_bytes);
        let kind = PullKind::Vector;
        let mut pull_own = || self.local.pull(self.tensor, own, of_own, kind);
        if remote.is_empty() {
            pull_own()?;
            return Ok(LoadStats::default());
        }
        let pull_remote = || self.remote.pull(self.tensor, remote, of_remote, kind);
        let (own, remote) = thread::scope(|scope| {
            let travelling = scope.spawn(pull_remote);
            (pull_own(), travelling.join())
        });
        own?;
        let thread = "VectorPull of a halo";
        Ok(LoadStats::from_pull(remote.map_err(|_| ClientError::Panicked { thread })??))
    }
}

/// Returns the lists of `expanded`, and empty ones of all other nodes.
fn lists(
    region: &Region<'_>,
    expanded: &NodeSet,
    nodes: &[NodeId],
    numbers: &Numbers,
) -> Result<Topology, ClientError> {
    let len = |&node: &NodeId| match expanded.contains(node) {
        true => region.list(node).count() as u64,
        false => 0,
    };
    let mut offsets = Vec::with_capacity(nodes.len() + 1);
    offsets.push(0);
    let mut n_entries = 0;
    offsets.extend(nodes.iter().map(len).map(|n| {
        n_entries += n;
        n_entries
    }));
    let mut sources = Vec::with_capacity(n_entries as usize);
    for &node in nodes.iter().filter(|node| expanded.contains(**node)) {
        sources.extend(region.list(node).map(|source| numbers.local(source)));
    }
    Ok(Topology::from_lists(offsets, sources)?)
}

impl LocalPartition {
    /// Returns the bytes that it has in memory, with the places that its batches need.
    #[must_use]
    pub fn n_bytes(&self) -> u64 {
        let n_entries = self.topology.n_edges();
        let lists = 8 * (self.nodes.len() as u64 + 1) + 4 * n_entries;
        let of_nodes = size_of_val(&self.nodes[..]) + size_of_val(&self.degrees[..]);
        let places = 4 * self.nodes.len() as u64 + self.numbers.set.bytes();
        self.rows.bytes().len() as u64 + lists + of_nodes as u64 + places
    }

    /// Returns the in-degree of `node` in the whole graph.
    #[must_use]
    pub fn degree(&self, node: NodeId) -> u32 {
        self.degrees[self.numbers.local(node) as usize]
    }

    /// Returns the local ids of `nodes`.
    #[must_use]
    pub fn local_ids(&self, nodes: &[NodeId]) -> Vec<NodeId> {
        nodes.iter().map(|&node| NodeId(self.numbers.local(node))).collect()
    }

    /// Returns the row of the node with this local id.
    #[must_use]
    pub fn row(&self, local: NodeId) -> &[u8] {
        &self.rows.bytes()[local.index() * self.row_bytes..][..self.row_bytes]
    }

    /// Copies the rows of nodes with these local ids to `out`.
    pub fn gather(&self, locals: &[NodeId], out: &mut RowBuffer) {
        out.resize(locals.len() * self.row_bytes);
        let places = out.bytes_mut().chunks_exact_mut(self.row_bytes.max(1));
        for (place, &local) in places.zip(locals) {
            place.copy_from_slice(self.row(local));
        }
    }
}

#[cfg(test)]
mod tests {
    use lodestore_graph::edges::MemoryEdges;
    use lodestore_graph::relabel::Relabelling;
    use lodestore_graph::sampler::{Fanout, Sampler};
    use lodestore_graph::topology::Direction;
    use lodestore_store::Dtype;
    use proptest::prelude::*;

    use super::*;
    use crate::source::memory::MemorySource;

    fn source_of(book: &PartitionBook) -> MemorySource {
        let mut rows = MemorySource::new(book.clone());
        let values = (0..book.n_nodes()).flat_map(|id| (id as f32).to_le_bytes()).collect();
        rows.add("feat", Dtype::F32, 1, values).unwrap();
        rows
    }

    proptest! {
        /// The naive twin samples the whole graph.
        #[test]
        fn batches_of_a_partition_with_its_whole_halo_are_those_of_the_graph(
            edges in prop::collection::vec((0u32..40, 0u32..40), 1..200),
            n_parts in 1u16..5,
            n_workers in 1u32..4,
            layers in 1u32..4,
            fanout in prop::sample::select(vec![Fanout::All, Fanout::at_most(2).unwrap()]),
        ) {
            let edges: Vec<[u32; 2]> = edges.into_iter().map(|(a, b)| [a, b]).chain([[39, 39]]).collect();
            let owners: Vec<PartId> = (0..40u16).map(|id| PartId(id * 7 % n_parts)).collect();
            let relabelling = Relabelling::new(&owners, n_parts).unwrap();
            let edges = MemoryEdges::new(edges).unwrap();
            let topology = Topology::from_edges(&edges, &relabelling, Direction::Directed).unwrap();
            let book = &relabelling.book;
            let rows_of_all = source_of(book);
            let fanouts = vec![fanout; layers as usize];
            let mut whole = Sampler::new(&topology, &fanouts);
            for part in 0..u32::from(n_parts) {
                let source = PartitionSource {
                    topology: &topology,
                    book,
                    local: &rows_of_all,
                    remote: &rows_of_all,
                    tensor: "feat",
                    row_bytes: 4,
                    depth: Depth { layers, halo_hops: layers },
                    worker: part % n_workers,
                    n_workers,
                };
                let roots: Vec<NodeId> =
                    book.range(PartId(part as u16)).filter(|id| id % 2 == 0).map(NodeId).collect();
                let local = source.load(part, &roots).unwrap();
                let plan = source.plan(part, &roots);
                prop_assert_eq!(local.loaded.halo_rows, plan.n_halo);
                prop_assert_eq!(local.n_bytes(), plan.bytes(4, 40));
                let remote = |node: &&NodeId| {
                    let part = book.part_of(**node).unwrap();
                    u32::from(part.0) % n_workers != source.worker
                };
                let n_remote = local.nodes.iter().filter(remote).count() as u64;
                prop_assert_eq!(local.pulled.remote_rows, n_remote);

                let mut sampler = Sampler::named(&local.topology, &fanouts, &local.nodes);
                let mut found = sampler.sample(&local.local_ids(&roots), 5);
                let mut rows = RowBuffer::default();
                local.gather(&found.nodes, &mut rows);
                found.nodes = found.nodes.iter().map(|id| local.nodes[id.index()]).collect();
                prop_assert_eq!(&found, &whole.sample(&roots, 5));
                for (row, &node) in rows.elements::<f32>().iter().zip(&found.nodes) {
                    prop_assert_eq!(*row, node.0 as f32);
                    prop_assert_eq!(local.degree(node), topology.in_degree(node));
                }
            }
        }
    }
}
