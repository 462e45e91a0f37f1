//! `lode import`: from edges and tensors in files to a graph.

mod tensors;
mod text;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use lodestore_graph::order::RowOrder;
use lodestore_graph::partition::Algorithm;
use lodestore_graph::topology::{Direction, EdgePolicy};
use lodestore_import::dataset::Layout;
use lodestore_import::{
    Dataset, EdgeRules, ImportConfig, ImportReport, Observer, RowLayout, add_tensors,
};
use lodestore_server::limits::ROW_BYTES_MAX;
use lodestore_store::Dtype;
use lodestore_store::codec::CodecChoice;

use crate::console::Console;
use crate::flags::{EdgeArgs, Nan, PartitionerArgs};
use crate::interrupt::RemovedOnInterrupt;
use crate::outputs::NamedFiles;
use crate::usage::UsageError;

use tensors::{MaybeNamed, Named};

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

With --from, the edges, the tensors feat, label and split, and the number of nodes are those of a
dataset's folder; flags add to it:
  lode import --from ogb dataset/ogbn_arxiv --undirected --parts 2 --out arxiv

With --into the tensors come to a graph that there is, all of whose partitions are here; rows are in
the order of the input's ids, as at its import:
  lode import --into my-graph --tensor emb=embeddings.npy")]
pub struct ImportArgs {
    #[command(flatten)]
    edges: EdgeArgs,
    #[command(flatten)]
    rules: EdgeRuleArgs,
    /// Folder of a dataset and its layout: `ogb DIR`, as the Open Graph Benchmark's downloads are,
    /// or `graphbolt DIR`, with metadata.yaml.
    #[arg(long, num_args = 2, value_names = ["LAYOUT", "DIR"], conflicts_with_all = ["edges", "edge_format", "ignore_extra_columns", "into"])]
    from: Vec<String>,
    /// A tensor with one row per node: .npy, .npz (CSR, or dense), .safetensors, or packed rows
    /// (see --raw). FILE:ARRAY names one of several arrays in a file. Repeat for several.
    #[arg(long = "tensor", value_name = "NAME=FILE")]
    tensors: Vec<Named<PathBuf>>,
    /// How rows are stored, of all tensors or of one: raw, zstd or auto. With `auto` they are
    /// stored as zstd if a sample of them shrinks enough. Repeat for several.
    #[arg(long = "codec", value_name = "[NAME=]CODEC")]
    codecs: Vec<MaybeNamed<CodecChoice>>,
    /// Type of a tensor's stored elements, such as feat=bf16; that of the file unless given.
    #[arg(long = "dtype", value_name = "NAME=DTYPE")]
    dtypes: Vec<Named<Dtype>>,
    /// Type and width of a tensor whose file is packed little-endian rows and no header, such as
    /// feat=f32x128.
    #[arg(long = "raw", value_name = "NAME=DTYPExWIDTH")]
    raws: Vec<Named<RowLayout>>,
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
    /// The algorithm that assigns nodes to partitions: hash, range, dbh, greedy, hdrf, 2ps-l or
    /// spring; `lode partition --all` compares them.
    #[arg(long, value_name = "A", default_value = "spring")]
    partitioner: Algorithm,
    #[command(flatten)]
    parameters: PartitionerArgs,
    /// Which row of its partition each node gets, so that rows that are sampled together share
    /// pages: input, degree or greedy. Greedy gave the most rows per page on most graphs measured,
    /// and came close to the best on the others.
    #[arg(long, value_name = "O", default_value_t = RowOrder::default())]
    order: RowOrder,
    /// Measure every order on sampled batches, and report rows per page of each.
    #[arg(long)]
    compare_orders: bool,
    /// Treatment of NaN in a tensor.
    #[arg(long, value_enum, default_value_t = Nan::Refuse)]
    nan: Nan,
    /// Folder of the graph; must not exist.
    #[arg(long, value_name = "GRAPH", required_unless_present = "into")]
    out: Option<PathBuf>,
    /// Folder of a graph that gets the tensors as further ones; it has its edges and partitions.
    #[arg(long, value_name = "GRAPH", conflicts_with_all = [
        "out", "edges", "edge_format", "ignore_extra_columns", "self_loops", "duplicates", "edge_ids",
        "edge_weights", "undirected", "nodes", "parts", "partitioner", "refine", "max_balance", "tau",
        "beta", "passes", "order", "compare_orders",
    ])]
    into: Option<PathBuf>,
}

impl ImportArgs {
    /// Opens the dataset of `--from`.
    fn dataset(&self, out: &Path) -> Result<Option<Dataset>> {
        let [layout, dir] = &self.from[..] else { return Ok(None) };
        let layout: Layout = layout.parse().map_err(UsageError::of)?;
        Ok(Some(Dataset::open(layout, Path::new(dir), out)?))
    }

    fn import(self, console: &Console) -> Result<ImportReport> {
        let out = self.out.clone().unwrap_or_default();
        console.stage("dataset");
        let mut dataset = self.dataset(&out)?;
        let _interrupt = match &dataset {
            Some(dataset) => Some(RemovedOnInterrupt::watch(dataset.scratch())?),
            None => None,
        };
        let (mut of_dataset, mut nodes) = (Vec::new(), self.nodes);
        let mut direction = Direction::from(self.undirected);
        if let Some(dataset) = &mut dataset {
            dataset.warnings.iter().for_each(|warning| eprintln!("lode: warning: {warning}"));
            dataset.notes.iter().for_each(|note| eprintln!("lode: {note}"));
            of_dataset = std::mem::take(&mut dataset.tensors);
            // Undirected where either says so.
            direction = direction.max(dataset.direction);
            nodes = nodes.or(Some(dataset.nodes));
        }
        let edges = match &dataset {
            Some(dataset) => dataset.edges.clone(),
            None => self.edges.files()?,
        };
        let (algorithm, n_parts) = (self.partitioner, self.parts);
        let tensors =
            tensors::tensors(of_dataset, self.tensors, &self.codecs, &self.dtypes, &self.raws)?;
        if self.compare_orders && tensors.is_empty() {
            let message = "--compare-orders is for rows of a tensor: give --tensor NAME=FILE";
            return Err(UsageError::new(message).into());
        }
        let config = ImportConfig {
            edges,
            rules: self.rules.into(),
            tensors,
            nodes,
            partition: self.parameters.config(algorithm, n_parts, direction)?,
            order: self.order,
            compare_orders: self.compare_orders,
            nan: self.nan.into(),
            max_served_row_bytes: Some(ROW_BYTES_MAX as u64),
            out,
        };
        import(&config, console)
    }

    pub fn run(self, console: &Console) -> Result<()> {
        if let Some(graph) = &self.into {
            let files =
                tensors::tensors(Vec::new(), self.tensors, &self.codecs, &self.dtypes, &self.raws)?;
            if files.is_empty() {
                let message = "--into adds tensors: give --tensor NAME=FILE";
                return Err(UsageError::new(message).into());
            }
            let mut observer = Watching { console, interrupt: None };
            let report = add_tensors(graph, &files, self.nan.into(), &mut observer)?;
            return console.report(&report, text::added);
        }
        NamedFiles::default().outputs("--out", &self.out).check()?;
        let report = self.import(console)?;
        console.report(&report, text::imported)
    }
}

/// Imports a graph, with progress on the console. An interrupt removes what is half-made.
pub fn import(config: &ImportConfig, console: &Console) -> Result<ImportReport> {
    let mut observer = Watching { console, interrupt: None };
    Ok(lodestore_import::import(config, &mut observer)?)
}

/// An import's progress on the console.
struct Watching<'a> {
    console: &'a Console,
    interrupt: Option<RemovedOnInterrupt>,
}

impl Observer for Watching<'_> {
    fn stage(&mut self, name: &str) {
        self.console.stage(name);
    }

    fn progress(&mut self, stage: &str, done: u64, total: u64) {
        self.console.at(stage, done, total);
    }

    fn staged(&mut self, dir: &Path) -> io::Result<()> {
        self.interrupt = Some(RemovedOnInterrupt::watch(dir)?);
        Ok(())
    }

    fn warn(&mut self, message: &str) {
        eprintln!("lode: warning: {message}");
    }
}

/// Rules for the edges that an import keeps, and for their columns.
#[derive(Args, Clone, Debug)]
struct EdgeRuleArgs {
    /// Treatment of edges from a node to itself.
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = EdgePolicyArg::Keep)]
    self_loops: EdgePolicyArg,
    /// Treatment of edges that are in the input more than once; where they are kept, each can be
    /// sampled.
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = EdgePolicyArg::Drop)]
    duplicates: EdgePolicyArg,
    /// Keep the position of each edge in the input beside the topology: 8 bytes an edge.
    #[arg(long)]
    edge_ids: bool,
    /// Keep a weight of each edge beside the topology: .npy of shape (E,), f32, in the order of the
    /// edges. Where repeated edges are dropped, the weight of the first is kept.
    #[arg(long, value_name = "FILE")]
    edge_weights: Option<PathBuf>,
}

/// Treatment of some edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EdgePolicyArg {
    Keep,
    Drop,
}

impl From<EdgePolicyArg> for EdgePolicy {
    fn from(policy: EdgePolicyArg) -> Self {
        match policy {
            EdgePolicyArg::Keep => Self::Keep,
            EdgePolicyArg::Drop => Self::Drop,
        }
    }
}

impl From<EdgeRuleArgs> for EdgeRules {
    fn from(args: EdgeRuleArgs) -> Self {
        Self {
            self_loops: args.self_loops.into(),
            duplicates: args.duplicates.into(),
            edge_ids: args.edge_ids,
            edge_weights: args.edge_weights,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags that add tensors to a graph.
    const OF_TENSORS: [&str; 6] = ["into", "tensors", "codecs", "dtypes", "raws", "nan"];

    #[test]
    fn each_flag_of_a_new_graph_is_refused_with_into() {
        let mut command = ImportArgs::augment_args(clap::Command::new("import"));
        command.build();
        let conflicts = |id: &str| -> Vec<String> {
            let flag = command.get_arguments().find(|flag| flag.get_id() == id).unwrap();
            let others = command.get_arg_conflicts_with(flag);
            others.into_iter().map(|other| other.get_id().to_string()).collect()
        };
        let refused = conflicts("into");
        for flag in command.get_arguments() {
            let id = flag.get_id().as_str();
            let is_refused = refused.iter().any(|other| other == id)
                || conflicts(id).iter().any(|other| other == "into");
            assert!(is_refused || id == "help" || OF_TENSORS.contains(&id), "--{id}");
        }
    }
}
