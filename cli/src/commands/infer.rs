//! `lode infer`: a saved model over all nodes, its rows kept as a tensor of the graph.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use lodestore_client::{EmbeddedSource, RowSource};
use lodestore_graph::process::{peak_anonymous_bytes, watch_memory};
use lodestore_store::codec::SegmentCodec;
use lodestore_store::{Dtype, Graph, GraphHandle, OpenMode, OpenOptions, TensorSpec};
use lodestore_trainer::infer::{InferConfig, InferOutput, Inference};
use lodestore_trainer::report::RowsFrom;
use lodestore_trainer::{ModelKind, TrainGraph, WorkerSources};
use serde::Serialize;

use crate::console::Console;
use crate::flags::parse_size;
use crate::human;

/// Run a saved model over all nodes of a graph, and keep its rows as a new tensor.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode train --graph my-graph --epochs 20 --save-model model.safetensors
  lode infer my-graph --model model.safetensors --out-tensor emb --output embedding
  lode gather --graph my-graph --tensor emb --ids ids.npy --out rows.npy

Each layer passes once over all nodes, with all their neighbours. The tensor is f32, and appears whole or
not at all. Until then the rows of two layers at a time are in a folder beside the graph, GRAPH.infer-NAME:
the same command continues there after it was killed, and makes the same bytes. All partitions of the graph
must be here, and no other process may write to it meanwhile.")]
pub(crate) struct InferArgs {
    /// Folder of the graph.
    graph: PathBuf,
    /// The model, as `lode train --save-model` writes it.
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Name of the new tensor; the graph must have none of this name.
    #[arg(long, value_name = "NAME")]
    out_tensor: String,
    /// Which rows: logits (of the last layer, one value for each class) or embedding (the hidden
    /// rows that the last layer reads).
    #[arg(long, value_name = "O", default_value_t = InferOutput::Logits)]
    output: InferOutput,
    /// Most bytes of rows held in memory. With another size what was begun starts again.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    memory: u64,
}

/// Output of `--json`.
#[derive(Serialize)]
struct InferReport {
    graph: String,
    tensor: String,
    model: ModelKind,
    output: InferOutput,
    parameters: u64,
    nodes: u32,
    dtype: Dtype,
    width: u32,
    /// Bytes of the tensor's rows.
    bytes: u64,
    /// Whether it continued where a process had ended.
    resumed: bool,
    seconds: f64,
    peak_anonymous_bytes: u64,
}

impl InferArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let start = Instant::now();
        watch_memory();
        let graph = Graph::open(&self.graph)?;
        console.stage("topology");
        let topology = graph.open_topology()?;
        let options = OpenOptions::default();
        let live = Arc::new(GraphHandle::open(graph.clone(), None, OpenMode::Write, &options)?);
        let rows: Arc<dyn RowSource> =
            Arc::new(EmbeddedSource::at(Arc::clone(&live), live.version())?);
        let sources = WorkerSources::new(Arc::clone(&rows), rows);
        let (book, uuid) = (graph.book(), *graph.uuid().as_bytes());
        let on = TrainGraph { topology: &topology, book, uuid, rows_from: RowsFrom::Embedded };
        // Its name becomes that of a folder.
        TensorSpec::new(&self.out_tensor, Dtype::F32, 1)?;
        let work_dir = work_dir(&self.graph, &self.out_tensor)?;
        if work_dir.symlink_metadata().is_ok() && !work_dir.is_dir() {
            bail!(
                "{}: expected a folder of layers' rows, or nothing, found another file; move it away, or \
                 give the tensor another name",
                work_dir.display()
            );
        }
        let infer = InferConfig {
            output: self.output,
            memory_bytes: self.memory,
            work_dir,
            version: format!("{:?}", live.part_version_ids()),
        };
        let mut model = Inference::open(&self.model, &on, &sources, &infer)?;
        let spec = TensorSpec::new(&self.out_tensor, Dtype::F32, model.width() as u32)?;
        let (width, row_bytes) = (spec.width, spec.row_bytes() as u64);
        let mut tensor = match live.new_tensor(spec, SegmentCodec::Raw) {
            Ok(tensor) => tensor,
            Err(error) => {
                // Perhaps left by one that ended between its last two steps.
                if graph.tensor(&self.out_tensor).is_ok() {
                    model.remove_work()?;
                }
                return Err(error.into());
            }
        };
        let resumed = model.is_resumed();
        let mut progress = console.progress("inference");
        let mut write = |rows: &[f32]| -> Result<(), Box<dyn Error + Send + Sync>> {
            Ok(tensor.write_rows(bytemuck::cast_slice(rows))?)
        };
        model.run(&mut write, &mut progress)?;
        console.stage("sync");
        tensor.finish()?;
        let report = InferReport {
            graph: self.graph.display().to_string(),
            tensor: self.out_tensor,
            model: model.model(),
            output: self.output,
            parameters: model.parameters(),
            nodes: book.n_nodes(),
            dtype: Dtype::F32,
            width,
            bytes: u64::from(book.n_nodes()) * row_bytes,
            resumed,
            seconds: start.elapsed().as_secs_f64(),
            peak_anonymous_bytes: peak_anonymous_bytes(),
        };
        model.remove_work()?;
        console.report(&report, text)
    }
}

/// Returns the folder of layers' rows, beside that of the graph.
fn work_dir(graph: &Path, tensor: &str) -> Result<PathBuf> {
    let graph = graph.canonicalize()?;
    let mut name = graph.file_name().unwrap_or_default().to_owned();
    name.push(format!(".infer-{tensor}"));
    Ok(graph.with_file_name(name))
}

fn text(report: &InferReport) -> String {
    format!(
        "{}: {} x {} for {}, {} in {}",
        report.tensor,
        report.dtype,
        report.width,
        human::counted(report.nodes.into(), "node"),
        human::bytes(report.bytes),
        human::seconds(report.seconds),
    )
}
