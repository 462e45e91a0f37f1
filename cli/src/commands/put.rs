//! `lode put`: rows in the place of those that a graph has.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use lodestore_client::EmbeddedSource;
use lodestore_graph::NodeId;
use lodestore_store::{EmbeddedStore, Graph, LiveGraph, LiveMode, OpenOptions, View};
use serde::Serialize;

use crate::console::Console;
use crate::human;
use crate::ids::{IdFile, internal_ids};
use crate::rows::RowFile;

/// Rows are put in pieces of about this many bytes, each durable before the next.
const CHUNK_BYTES: usize = 16 << 20;

/// Put rows in the place of those that a graph has, from .npy files.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode put --graph my-graph --tensor feat --ids ids.npy --rows rows.npy --commit
  lode gather --graph my-graph --tensor feat --ids ids.npy --out rows.npy

What was put is durable, and readers that open the graph after it see it. With --commit it becomes a
version that stays readable by its number until `lode compact` folds later ones into the graph's
files. One process at a time may write; readers need not stop.")]
pub(crate) struct PutArgs {
    /// Folder of the graph.
    #[arg(long, value_name = "GRAPH")]
    graph: PathBuf,
    /// Name of the tensor.
    #[arg(long, value_name = "T")]
    tensor: String,
    /// Node ids: .npy of shape (N,), u32, i32, u64 or i64; of an id that repeats the last row stays.
    #[arg(long, value_name = "FILE")]
    ids: PathBuf,
    /// Rows: .npy of shape (N, width), (N,) for width 1, with the tensor's type; bf16 as u16 of its
    /// bits.
    #[arg(long, value_name = "FILE")]
    rows: PathBuf,
    /// Make a version of all that was put so far.
    #[arg(long)]
    commit: bool,
    /// The ids are those of the imported files, not those of the stored graph.
    #[arg(long)]
    external_ids: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct PutReport {
    tensor: String,
    rows: u64,
    bytes: u64,
    seconds: f64,
    /// The graph's committed version: the one made here with `--commit`.
    version: u32,
    committed: bool,
}

impl PutArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let graph = Graph::open(&self.graph)?;
        // Files are looked at, to the last id, before the graph is locked.
        let tensor = graph.tensor(&self.tensor)?.clone();
        let ids = IdFile::open(&self.ids, graph.book().n_nodes())?;
        let rows = RowFile::open(&self.rows, &tensor, ids.len())?;
        let chunk_rows = (CHUNK_BYTES / tensor.row_bytes()).max(1);
        ids.chunks(chunk_rows).try_for_each(|chunk| chunk.map(drop))?;
        let live = LiveGraph::open(graph, None, LiveMode::Write, &OpenOptions::default())?;
        let live = Arc::new(live);
        let internal_of = if self.external_ids { Some(internal_ids_of(&live)?) } else { None };
        let start = Instant::now();
        let mut progress = console.progress("put");
        let (mut n_rows, mut n_bytes) = (0, 0);
        for (ids_of_chunk, rows) in ids.chunks(chunk_rows).zip(rows.chunks(chunk_rows)) {
            let mut nodes = ids_of_chunk?;
            if let Some(internal_of) = &internal_of {
                nodes.iter_mut().for_each(|id| *id = internal_of[id.index()]);
            }
            live.put_rows(&tensor.name, &nodes, rows)?;
            n_rows += nodes.len() as u64;
            n_bytes += rows.len() as u64;
            progress(n_rows, ids.len());
        }
        let version = if self.commit { live.commit_version()? } else { live.version() };
        let report = PutReport {
            tensor: tensor.name,
            rows: n_rows,
            bytes: n_bytes,
            seconds: start.elapsed().as_secs_f64(),
            version,
            committed: self.commit,
        };
        console.report(&report, text)
    }
}

fn internal_ids_of(live: &Arc<LiveGraph>) -> Result<Vec<NodeId>> {
    let store = EmbeddedStore::over(Arc::clone(live), View::Latest)?;
    internal_ids(&EmbeddedSource::new(store))
}

fn text(report: &PutReport) -> String {
    let end = if report.committed {
        format!("committed as version {}", report.version)
    } else {
        format!("pending over version {}; --commit makes a version of it", report.version)
    };
    format!(
        "{} rows of `{}`, {} in {}; {end}",
        human::count(report.rows),
        report.tensor,
        human::bytes(report.bytes),
        human::seconds(report.seconds),
    )
}
