//! An imported graph, cut into other partitions in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use lodestore_client::source::{PullStats, TensorInfo, VersionTag};
use lodestore_client::{ClientError, EmbeddedSource, PullKind, RowSource};
use lodestore_graph::edges::MemoryEdges;
use lodestore_graph::partition::{PartitionConfig, PartitionReport, partition};
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::Topology;
use lodestore_graph::{NodeId, PartId, PartitionBook, splitmix64};
use lodestore_store::{Dtype, Graph, GraphHandle, OpenMode, OpenOptions};
use lodestore_trainer::report::RowsFrom;
use lodestore_trainer::{Metric, TrainConfig, TrainGraph, WorkerSources};
use serde::Serialize;

use crate::link_emulation::parse_delay;

/// Flags of figures on other cuts of imported graphs.
#[derive(Args)]
pub(super) struct CutArgs {
    /// Folder of an imported graph with tensors feat, label and split; repeat for several.
    #[arg(long, value_name = "DIR", required = true)]
    pub(super) graph: Vec<PathBuf>,
    /// Folder of the report, which must not exist.
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Partitions that are trained on.
    #[arg(long, value_name = "P", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(2..=256))]
    pub(super) trained_parts: u16,
    /// Runs of each way, each with first parameters, batches and dropout of its own.
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) seeds: u32,
    /// The optimiser's learning rate.
    #[arg(long = "lr", value_name = "X", default_value_t = 0.01)]
    pub(super) learning_rate: f64,
    /// Divide each feature row by the sum of its absolute values.
    #[arg(long)]
    pub(super) normalize: bool,
    /// Metric of test nodes: accuracy, f1-micro or roc-auc.
    #[arg(long, value_name = "M", default_value_t = Metric::Accuracy)]
    pub(super) metric: Metric,
    /// Delay of links.
    #[arg(long, default_value = "100us", value_name = "TIME", value_parser = parse_delay)]
    pub(super) delay: Duration,
}

/// Fixes which nodes train under [`Splits::Random`].
const SPLIT_SEED: u64 = 0x6c6f_6465;

/// A graph by the ids that it is stored under.
pub(super) struct Source {
    pub(super) name: String,
    pub(super) n_nodes: u32,
    pub(super) undirected: bool,
    /// Ascending; an edge of both directions once.
    pub(super) edges: MemoryEdges,
    /// In-edges of all nodes.
    pub(super) n_edges: u64,
    /// Bytes of a row of features.
    pub(super) row_bytes: u64,
    rows: Arc<dyn RowSource>,
    /// Whether each node has a label.
    labelled: Arc<[bool]>,
    uuid: [u8; 16],
}

/// A graph in partitions of its own.
pub(super) struct Cut {
    pub(super) report: PartitionReport,
    topology: Arc<Topology>,
    book: PartitionBook,
    /// Id in the store of each node.
    stored_of: Arc<[u32]>,
    uuid: [u8; 16],
}

/// Split into nodes that train and nodes that measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Splits {
    /// As the graph has them.
    Stored,
    /// The same, but for training nodes outside of a partition, which are in no split.
    #[value(skip)]
    TrainedPart(PartId),
    /// Nodes with a label by the ids that they are stored under: the first 60 % train, the next 20
    /// % validate.
    Ids,
    /// The same shares, each such node by a number of its own.
    Random,
}

/// The rows of a graph under the ids of a cut.
struct Relabelled {
    rows: Arc<dyn RowSource>,
    book: PartitionBook,
    stored_of: Arc<[u32]>,
    labelled: Arc<[bool]>,
    splits: Splits,
}

impl Source {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let graph = Graph::open(dir)?;
        let undirected = graph.meta().undirected;
        let topology = graph.open_topology()?;
        let n_nodes = topology.n_nodes();
        let options = OpenOptions::default();
        let live = GraphHandle::open(graph.clone(), None, OpenMode::Read, &options)?;
        let version = live.version();
        let rows: Arc<dyn RowSource> = Arc::new(EmbeddedSource::at(Arc::new(live), version)?);
        let row_bytes = rows.tensor(&TrainConfig::default().feature_tensor)?.row_bytes() as u64;
        Ok(Self {
            name: folder_name(dir)?,
            n_nodes,
            undirected,
            n_edges: topology.n_edges(),
            edges: MemoryEdges::new(edges_of(&topology, undirected, |node| node))?,
            row_bytes,
            labelled: labelled(&*rows)?,
            rows,
            uuid: *graph.uuid().as_bytes(),
        })
    }

    /// Cuts the graph as `config` says.
    pub(super) fn cut(&self, config: &PartitionConfig) -> Result<Cut> {
        let config = PartitionConfig { direction: self.undirected.into(), ..config.clone() };
        let (report, relabelling, topology) = cut_edges(&self.edges, self.n_nodes, &config)?;
        Ok(Cut {
            report,
            topology: Arc::new(topology),
            stored_of: relabelling.external_of.into(),
            book: relabelling.book,
            uuid: self.uuid,
        })
    }
}

/// Returns the name of the folder of a graph.
pub(super) fn folder_name(dir: &Path) -> Result<String> {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let name = dir.file_name().context("--graph: expected a folder")?;
    Ok(name.to_string_lossy().into_owned())
}

/// Returns the edges by the ids that `id_of` maps nodes to, ascending; of an undirected graph each
/// once.
pub(super) fn edges_of(
    topology: &Topology,
    undirected: bool,
    id_of: impl Fn(u32) -> u32,
) -> Vec<[u32; 2]> {
    let mut edges = Vec::with_capacity(topology.n_edges() as usize);
    for node in 0..topology.n_nodes() {
        let sources = topology.in_neighbours(NodeId(node)).iter();
        let all = sources.map(|&source| [id_of(source), id_of(node)]);
        edges.extend(all.filter(|[source, destination]| !undirected || source <= destination));
    }
    edges.sort_unstable();
    edges
}

/// Cuts edges as `config` says; returns the topology under the ids of the cut.
pub(super) fn cut_edges(
    edges: &MemoryEdges,
    n_nodes: u32,
    config: &PartitionConfig,
) -> Result<(PartitionReport, Relabelling, Topology)> {
    let cut = partition(edges, n_nodes, config)?;
    let relabelling = Relabelling::new(&cut.assignment, config.n_parts)?;
    let topology = Topology::from_edges(edges, &relabelling, config.direction)?;
    Ok((cut.report, relabelling, topology))
}

/// Returns whether each node has a label: all have, where nodes have several.
fn labelled(rows: &dyn RowSource) -> Result<Arc<[bool]>> {
    let label = &TrainConfig::default().label_tensor;
    let (info, n_nodes) = (rows.tensor(label)?, rows.book().n_nodes());
    if (info.dtype, info.width) != (Dtype::I64, 1) {
        return Ok(vec![true; n_nodes as usize].into());
    }
    let ids: Vec<NodeId> = (0..n_nodes).map(NodeId).collect();
    let mut labels = vec![0i64; ids.len()];
    rows.pull(label, &ids, bytemuck::cast_slice_mut(&mut labels), PullKind::Vector)?;
    Ok(labels.into_iter().map(|label| label >= 0).collect())
}

impl Cut {
    pub(super) fn graph(&self) -> TrainGraph<'_> {
        let (topology, book) = (&self.topology, &self.book);
        TrainGraph { topology, book, uuid: self.uuid, rows_from: RowsFrom::Embedded }
    }

    /// Returns the same graph in one partition, each node under the id that it has here: so dropout
    /// is the same.
    pub(super) fn joined(&self) -> Result<Self> {
        let book = PartitionBook::from_counts(&[self.book.n_nodes()]);
        Ok(Self {
            report: self.report.clone(),
            topology: Arc::clone(&self.topology),
            stored_of: Arc::clone(&self.stored_of),
            book: book.context("a partition has too many nodes")?,
            uuid: self.uuid,
        })
    }

    /// Returns the rows of each of `n_workers`, of a graph with these splits.
    pub(super) fn sources(
        &self,
        source: &Source,
        n_workers: u32,
        splits: Splits,
    ) -> Vec<WorkerSources> {
        let rows: Arc<dyn RowSource> = Arc::new(Relabelled {
            rows: Arc::clone(&source.rows),
            book: self.book.clone(),
            stored_of: Arc::clone(&self.stored_of),
            labelled: Arc::clone(&source.labelled),
            splits,
        });
        let of_worker = |_| WorkerSources::new(Arc::clone(&rows), Arc::clone(&rows));
        (0..n_workers).map(of_worker).collect()
    }
}

impl RowSource for Relabelled {
    fn book(&self) -> &PartitionBook {
        &self.book
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        self.rows.tensor(name)
    }

    fn pinned_version(&self) -> Option<VersionTag> {
        self.rows.pinned_version()
    }

    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        _work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        let stored: Vec<NodeId> = ids.iter().map(|id| NodeId(self.stored_of[id.index()])).collect();
        let stats = self.rows.pull(tensor, &stored, out, kind)?;
        if tensor == TrainConfig::default().split_tensor {
            let rows = ids.iter().zip(&stored).zip(out);
            rows.for_each(|((id, stored), split)| *split = self.split_of(*id, *stored, *split));
        }
        Ok(stats)
    }
}

impl Relabelled {
    /// Returns the split of a node that is in `split` as stored.
    fn split_of(&self, id: NodeId, stored: NodeId, split: u8) -> u8 {
        let n_nodes = u64::from(self.book.n_nodes());
        // Nodes are in five parts: three train, one validates and one tests.
        let fifth = |place: u64, n: u64| match self.labelled[stored.index()] {
            true => [0, 0, 0, 1, 2][(5 * place / n.max(1)) as usize],
            false => u8::MAX,
        };
        match self.splits {
            Splits::Stored => split,
            Splits::TrainedPart(part) => match self.book.range(part).contains(&id.0) {
                false if split == 0 => u8::MAX,
                _ => split,
            },
            Splits::Ids => fifth(stored.0.into(), n_nodes),
            Splits::Random => fifth(splitmix64(u64::from(stored.0) ^ SPLIT_SEED) >> 32, 1 << 32),
        }
    }
}
