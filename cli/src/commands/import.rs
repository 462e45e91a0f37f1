//! `lode import`: from edges and tensors in files to a graph.

mod input;
mod report;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};
use lodestore_graph::halo::write_halos;
use lodestore_graph::partition::{Algorithm, partition};
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::{Topology, write_topologies};
use lodestore_graph::{PartId, PartitionBook};
use lodestore_store::{CodecChoice, Importer, NanPolicy, TensorOptions};

use crate::console::Console;
use crate::interrupt::RemovedOnInterrupt;
use crate::usage::UsageError;

use input::Input;
pub(crate) use report::ImportReport;

/// Import edges and tensors into a partitioned graph.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode import --edges edges.npy --undirected --tensor feat=features_csr.npz \\
      --tensor label=labels.npy --tensor split=split.npy \\
      --parts 2 --partitioner spring --out my-graph

The graph appears whole or not at all. Nodes get new ids, one contiguous range per partition;
tensor `external_id` keeps those of the input.")]
pub(crate) struct ImportArgs {
    /// Edges: .npy of shape (E, 2), source and destination, u32, i32, u64 or i64.
    #[arg(long, value_name = "FILE")]
    edges: PathBuf,
    /// A tensor with one row per node: dense .npy or CSR .npz; repeat for several.
    #[arg(long = "tensor", value_name = "NAME=FILE")]
    tensors: Vec<NamedFile>,
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
    /// Who decides which partition owns a node: hash, range or spring.
    #[arg(long, value_name = "A", default_value = "spring")]
    partitioner: Algorithm,
    /// What to do with NaN in a tensor.
    #[arg(long, value_enum, default_value_t = Nan::Refuse)]
    nan: Nan,
    /// Folder of the graph; must not exist.
    #[arg(long, value_name = "GRAPH")]
    out: PathBuf,
}

/// A tensor's name and its file.
#[derive(Clone, Debug)]
pub(crate) struct NamedFile {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
}

/// Policies for NaN.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Nan {
    /// End the import, naming the row.
    Refuse,
    /// Store every row byte for byte.
    Keep,
}

/// What to import.
pub(crate) struct ImportConfig {
    pub(crate) edges: PathBuf,
    pub(crate) tensors: Vec<NamedFile>,
    pub(crate) undirected: bool,
    pub(crate) nodes: Option<u32>,
    pub(crate) n_parts: u16,
    pub(crate) partitioner: Algorithm,
    pub(crate) nan: NanPolicy,
    pub(crate) out: PathBuf,
}

impl FromStr for NamedFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, file)) if !name.is_empty() && !file.is_empty() => {
                Ok(Self { name: name.to_owned(), file: file.into() })
            }
            _ => Err("expected NAME=FILE, such as feat=features.npy".to_owned()),
        }
    }
}

impl ImportArgs {
    fn check(self) -> Result<ImportConfig, UsageError> {
        for (i, tensor) in self.tensors.iter().enumerate() {
            if self.tensors[..i].iter().any(|other| other.name == tensor.name) {
                return Err(UsageError::new(format!("--tensor {} is given twice", tensor.name)));
            }
        }
        Ok(ImportConfig {
            edges: self.edges,
            tensors: self.tensors,
            undirected: self.undirected,
            nodes: self.nodes,
            n_parts: self.parts,
            partitioner: self.partitioner,
            nan: match self.nan {
                Nan::Refuse => NanPolicy::Refuse,
                Nan::Keep => NanPolicy::Keep,
            },
            out: self.out,
        })
    }

    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let report = import(&self.check()?, console)?;
        console.report(&report, ImportReport::text)
    }
}

/// Edges → partitions → relabelling → topology and halos → tensors → one rename.
///
/// Every input is opened and checked before anything is written; a failure on the way removes
/// what was written.
pub(crate) fn import(config: &ImportConfig, console: &Console) -> Result<ImportReport> {
    let start = Instant::now();
    let input = Input::open(config)?;
    let mut importer = Importer::begin(&config.out)?;
    console.stage("partition");
    let (n_parts, undirected) = (config.n_parts, config.undirected);
    let partitioning =
        partition(&input.edges, input.n_nodes, n_parts, undirected, &config.partitioner)?;
    let relabelling = Relabelling::new(&partitioning.assignment, n_parts)?;
    let book = &relabelling.book;
    for part in book.parts() {
        importer.part_dir(part)?;
    }
    let staged = importer.part_dir(PartId(0))?;
    let _interrupt = RemovedOnInterrupt::watch(staged.parent().unwrap_or(&staged))?;

    console.stage("topology");
    let uuid = *importer.uuid().as_bytes();
    let topology_path = |part| importer.topology_path(part);
    let edges = write_topologies(&input.edges, &relabelling, undirected, uuid, &topology_path)?;
    let halos = write_all_halos(&importer, book, uuid)?;
    for (name, source) in &input.tensors {
        let mut progress = console.progress(name);
        let external_of = &relabelling.external_of;
        let options = TensorOptions { nan: config.nan, codec: CodecChoice::Auto };
        importer.add_tensor(name, &**source, options, external_of, book, &mut progress)?;
    }
    console.stage("sync");
    let n_edges = edges.n_edges_directed;
    let graph = importer.commit(&relabelling.external_of, book, n_edges, undirected)?;
    ImportReport::new(&graph, &partitioning.report, &edges, &halos, start)
}

/// Halos come from the staged topology, opened as readers will open it.
fn write_all_halos(importer: &Importer, book: &PartitionBook, uuid: [u8; 16]) -> Result<Vec<u64>> {
    let paths: Vec<PathBuf> = book.parts().map(|part| importer.topology_path(part)).collect();
    let topology = Topology::open(&paths, book, uuid)?;
    Ok(write_halos(&topology, book, uuid, &|part| importer.halo_path(part))?)
}
