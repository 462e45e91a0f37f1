//! `lode import`: from edges and tensors in files to a graph.

mod input;
mod into;
mod kept;
mod leftovers;
mod order;
mod report;
mod tensors;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use lodestore_graph::edges::EdgeFiles;
use lodestore_graph::halo::write_halos;
use lodestore_graph::order::RowOrder;
use lodestore_graph::partition::{Algorithm, PartitionConfig, partition};
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::{Topology, write_topologies_with};
use lodestore_store::{CodecChoice, Dtype, Importer, NanPolicy, TensorOptions};

use crate::console::Console;
use crate::edges::EdgeArgs;
use crate::interrupt::RemovedOnInterrupt;
use crate::nan::Nan;
use crate::partitioner::{PartitionerArgs, check_memory};

use input::Input;
pub(crate) use kept::KeptEdges;
use order::Ordering;
pub(crate) use report::ImportReport;
pub(crate) use tensors::ImportTensor;
use tensors::{MaybeNamed, Named, RawRows};

/// Import edges and tensors into a partitioned graph.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode import --edges edges.npy --undirected --tensor feat=features_csr.npz \\
      --tensor label=labels.npy --tensor split=split.npy \\
      --parts 2 --partitioner spring --out my-graph

Text of edges is parsed twice, then kept beside the graph until the topology is written: 8 bytes
an edge.

The graph appears whole or not at all. Nodes get new ids, one contiguous range per partition;
tensor `external_id` keeps those of the input.

With --into the tensors come to a graph that there is, all of whose partitions are here; rows are in
the order of the input's ids, as at its import:
  lode import --into my-graph --tensor emb=embeddings.npy")]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    edges: EdgeArgs,
    #[command(flatten)]
    kept: KeptEdges,
    /// A tensor with one row per node: dense .npy, CSR .npz, or packed rows (see --raw); repeat for
    /// several.
    #[arg(long = "tensor", value_name = "NAME=FILE")]
    tensors: Vec<Named<PathBuf>>,
    /// How rows are stored, of all tensors or of one: raw, zstd, or auto, which takes zstd for
    /// rows that a sample of shows to shrink enough; repeat for several.
    #[arg(long = "codec", value_name = "[NAME=]CODEC")]
    codecs: Vec<MaybeNamed<CodecChoice>>,
    /// Type of a tensor's stored elements, such as feat=bf16; that of the file unless given.
    #[arg(long = "dtype", value_name = "NAME=DTYPE")]
    dtypes: Vec<Named<Dtype>>,
    /// Type and width of a tensor whose file is packed little-endian rows and no header, such as
    /// feat=f32x128.
    #[arg(long = "raw", value_name = "NAME=DTYPExWIDTH")]
    raws: Vec<Named<RawRows>>,
    /// Store each edge in both directions.
    #[arg(long)]
    undirected: bool,
    /// Number of nodes; found from the tensors' rows, or from the largest id in the edges.
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Number of partitions.
    #[arg(long, value_name = "P", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    parts: u16,
    /// Who decides which partition owns a node: hash, range, dbh, greedy, hdrf, 2ps-l or spring;
    /// `lode partition --all` compares them.
    #[arg(long, value_name = "A", default_value = "spring")]
    partitioner: Algorithm,
    #[command(flatten)]
    parameters: PartitionerArgs,
    /// Which row of its partition each node gets, so that rows that are sampled together share
    /// pages: input, degree, bfs, rcm, cluster or greedy. Greedy gave the most rows per page on
    /// most graphs measured, and came close to the best on the others.
    #[arg(long, value_name = "O", default_value_t = RowOrder::default())]
    order: RowOrder,
    /// Measure every order on sampled batches, and report rows per page of each.
    #[arg(long)]
    compare_orders: bool,
    /// What to do with NaN in a tensor.
    #[arg(long, value_enum, default_value_t = Nan::Refuse)]
    nan: Nan,
    /// Folder of the graph; must not exist.
    #[arg(long, value_name = "GRAPH", required_unless_present = "into")]
    out: Option<PathBuf>,
    /// Folder of a graph that gets the tensors as further ones; it has its edges and partitions.
    #[arg(long, value_name = "GRAPH", conflicts_with_all = ["out", "edges", "compare_orders"])]
    into: Option<PathBuf>,
}

/// What to import.
pub(crate) struct ImportConfig {
    pub(crate) edges: EdgeFiles,
    pub(crate) kept: KeptEdges,
    pub(crate) tensors: Vec<ImportTensor>,
    pub(crate) nodes: Option<u32>,
    /// Also says whether edges stand for both directions.
    pub(crate) partition: PartitionConfig,
    pub(crate) order: RowOrder,
    pub(crate) compare_orders: bool,
    pub(crate) nan: NanPolicy,
    pub(crate) out: PathBuf,
}

impl ImportArgs {
    fn check(self) -> Result<ImportConfig> {
        let (algorithm, n_parts) = (self.partitioner, self.parts);
        Ok(ImportConfig {
            edges: self.edges.files()?,
            kept: self.kept,
            tensors: tensors::tensors(self.tensors, &self.codecs, &self.dtypes, &self.raws)?,
            nodes: self.nodes,
            partition: self.parameters.config(algorithm, n_parts, self.undirected)?,
            order: self.order,
            compare_orders: self.compare_orders,
            nan: self.nan.into(),
            out: self.out.unwrap_or_default(),
        })
    }

    pub(crate) fn run(self, console: &Console) -> Result<()> {
        if let Some(graph) = &self.into {
            let files = tensors::tensors(self.tensors, &self.codecs, &self.dtypes, &self.raws)?;
            let report = into::add(graph, &files, self.nan.into(), console)?;
            return console.report(&report, into::text);
        }
        let report = import(&self.check()?, console)?;
        console.report(&report, ImportReport::text)
    }
}

/// Edges → partitions → row order → topology and halos → tensors → one rename.
///
/// Every input is opened and checked before anything is written; a failure on the way removes
/// what was written.
pub(crate) fn import(config: &ImportConfig, console: &Console) -> Result<ImportReport> {
    let start = Instant::now();
    console.stage("edges");
    let mut input = Input::open(config)?;
    check_memory(&config.partition, input.n_nodes, input.edges.n_edges())?;
    leftovers::warn(&config.out);
    let not_served = input.warn_of_long_rows(config);
    let mut importer = Importer::begin(&config.out)?;
    let staging = importer.staging_dir().to_owned();
    let _interrupt = RemovedOnInterrupt::watch(&staging)?;
    let PartitionConfig { n_parts, undirected, .. } = config.partition;
    input.keep_parsed(&config.edges, &staging)?;

    console.stage("partition");
    let (edges, n_nodes) = (&*input.edges, input.n_nodes);
    let partitioning = partition(edges, n_nodes, &config.partition)?;
    let by_input = Relabelling::new(&partitioning.assignment, n_parts)?;
    drop(partitioning.assignment);
    for part in by_input.book.parts() {
        importer.part_dir(part)?;
    }
    console.stage("row order");
    let ordering = Ordering::find(config.order, config.compare_orders, edges, by_input, &staging)?;

    console.stage("topology");
    let uuid = *importer.uuid().as_bytes();
    let (relabelling, book) = (&ordering.relabelling, &ordering.relabelling.book);
    let topology_path = |part| importer.topology_path(part);
    let options = config.kept.options(undirected, input.weights.as_ref());
    let written = write_topologies_with(edges, relabelling, &options, uuid, &topology_path)?;
    // As readers will open it.
    let paths: Vec<PathBuf> = book.parts().map(topology_path).collect();
    let topology = Topology::open(&paths, book, uuid)?;
    let halos = write_halos(&topology, book, uuid, &|part| importer.halo_path(part))?;
    console.stage("rows per page");
    let order = ordering.measure(&topology, input.widest_row_bytes())?;
    drop(topology);
    let relabelling = ordering.done()?;
    input.remove_parsed()?;

    let (external_of, book) = (&relabelling.external_of, &relabelling.book);
    for (tensor, source) in config.tensors.iter().zip(&input.tensors) {
        let name = &tensor.name;
        let mut progress = console.progress(name);
        let options = TensorOptions { nan: config.nan, codec: tensor.codec };
        importer.add_tensor(name, &**source, options, external_of, book, &mut progress)?;
    }
    console.stage("sync");
    let n_edges = written.n_edges_directed;
    let graph = importer.commit(external_of, book, n_edges, undirected)?;
    let partitioned = &partitioning.report;
    let report =
        ImportReport::new(&graph, partitioned, &written, &config.kept, &halos, order, start)?;
    Ok(ImportReport { not_served, ..report })
}
