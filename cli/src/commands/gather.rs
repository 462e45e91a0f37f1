//! `lode gather`: rows of a list of nodes, from files or from servers, into a file or to the screen.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use lodestore_client::source::{PullStats, TensorInfo};
use lodestore_client::{
    Client, ClientConfig, EmbeddedSource, Pin, PullKind, RowSource, VersionTag,
};
use lodestore_graph::npy::NpyWriter;
use lodestore_graph::{NodeId, PartId};
use lodestore_store::{
    Dtype, EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, ReaderKind, View,
};
use serde::Serialize;

use crate::console::Console;
use crate::human;
use crate::ids::{IdsArg, InternalIds};
use crate::local_parts::{check_local, local_parts};
use crate::outputs::NamedFiles;
use crate::rows::{element_text, npy_type};
use crate::security_args::ClientArgs;
use crate::usage::UsageError;

/// Rows are gathered in pieces of about this many bytes: rows of a piece that are neighbours on
/// disk are read together.
const CHUNK_BYTES: usize = 128 << 20;

/// The same from servers, where each piece has its deadline.
const PULL_BYTES: usize = 16 << 20;

/// The most rows that are printed.
const PRINTED_ROWS_MAX: u64 = 1000;

/// Gather rows by node id, from a graph's files or from its servers: print them, or write a .npy file.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode gather --graph my-graph --tensor feat --ids 5,17,19999
  lode gather --graph my-graph --tensor feat --ids ids.npy --out rows.npy
  lode gather --graph my-graph --version 3 --tensor feat --ids ids.npy --out rows.npy
  lode gather --connect 127.0.0.1:7171 --tensor feat --ids ids.npy --f32 --out rows.npy
  lode gather --connect 127.0.0.1:7171 --version 3 --tensor feat --ids ids.npy --out rows.npy

Row i of the output is the row of id i; ids may repeat and come in any order.
--graph has the rows of the partitions that are on this machine; an id of another is an error.")]
#[command(group = clap::ArgGroup::new("from").required(true).args(["graph", "connect"]))]
pub(crate) struct GatherArgs {
    /// Folder of the graph.
    #[arg(long, value_name = "GRAPH")]
    graph: Option<PathBuf>,
    /// Address of a server: HOST:PORT or unix:PATH; repeat for several.
    #[arg(long, value_name = "ADDR")]
    connect: Vec<String>,
    /// With --graph: how rows are read: auto (mapped if they fit in half of the free memory, else
    /// direct), mapped, direct or pread.
    #[arg(long, value_name = "R", default_value_t, conflicts_with = "connect")]
    reader: ReaderKind,
    /// The rows of this committed version; without it those of the newest.
    #[arg(long, value_name = "N")]
    version: Option<u32>,
    /// Name of the tensor.
    #[arg(long, value_name = "T")]
    tensor: String,
    /// Node ids: 5,17,19999, or a .npy of shape (N,), u32, i32, u64 or i64.
    #[arg(long, value_name = "IDS|FILE")]
    ids: IdsArg,
    /// Rows: .npy of shape (N, width), (N,) for width 1; bf16 is written as u16 of its bits. Without
    /// it the rows are printed, 1,000 at most.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write elements as f32, whatever their type in the graph; f64, i32 and i64 are rounded.
    #[arg(long = "f32", requires = "out")]
    as_f32: bool,
    /// The ids are those of the imported files, not those of the stored graph.
    #[arg(long)]
    external_ids: bool,
    /// With --connect: only rows of the version that the servers have committed now, whatever is
    /// committed before the last row has come.
    #[arg(long, conflicts_with_all = ["graph", "version"])]
    pin: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// Output of `--json`.
#[derive(Serialize)]
struct GatherReport {
    tensor: String,
    rows: u64,
    bytes: u64,
    requests: u64,
    seconds: f64,
    out: String,
}

/// Output of `--json` without an output file.
#[derive(Serialize)]
struct PrintedRows {
    tensor: String,
    ids: Vec<u32>,
    /// Elements by row; NaN and infinities are texts.
    rows: Vec<Vec<serde_json::Value>>,
}

impl GatherArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        if self.graph.is_some() {
            self.client.refuse_without_servers(&[])?;
        }
        let files =
            NamedFiles::default().outputs("--out", &self.out).inputs("--ids", self.ids.file());
        self.client.security.name_inputs(files).check()?;
        let (source, here) = self.source()?;
        let info = source.tensor(&self.tensor)?;
        let ids = self.ids.open(source.book().n_nodes())?;
        let n_rows = ids.len();
        if self.out.is_none() && n_rows > PRINTED_ROWS_MAX {
            let message = format!(
                "{n_rows} rows, of which {PRINTED_ROWS_MAX} are printed at most; give --out FILE.npy"
            );
            return Err(UsageError::new(message).into());
        }
        let internal_of = match self.external_ids {
            true => Some(InternalIds::read(&*source, &here)?),
            false => None,
        };
        let Some(out_path) = &self.out else {
            let given = ids.all()?;
            let mut nodes = given.clone();
            if let Some(internal_of) = &internal_of {
                internal_of.translate(&mut nodes, 0)?;
            }
            check_local(source.book(), &here, &nodes, 0)?;
            let rows = printed_rows(&*source, info, &given, &nodes)?;
            return console.report(&rows, text_of_rows);
        };
        let start = Instant::now();
        let mut progress = console.progress("gather");
        let out = Output::begin(out_path, &info, self.as_f32, ids.len())?;
        let chunk_bytes = if self.graph.is_some() { CHUNK_BYTES } else { PULL_BYTES };
        let chunk_rows = (chunk_bytes / info.row_bytes()).max(1);
        let chunks = (0..).step_by(chunk_rows).zip(ids.chunks(chunk_rows)).map(|(first, nodes)| {
            let mut nodes = nodes?;
            if let Some(internal_of) = &internal_of {
                internal_of.translate(&mut nodes, first)?;
            }
            check_local(source.book(), &here, &nodes, first).map(|()| nodes)
        });
        let mut progress = |n_rows| progress(n_rows, ids.len());
        let stats = copy_rows(&*source, &info, chunks, out, &mut progress)?;
        let report = GatherReport {
            tensor: info.name,
            rows: stats.rows,
            bytes: stats.bytes,
            requests: stats.requests,
            seconds: start.elapsed().as_secs_f64(),
            out: out_path.display().to_string(),
        };
        console.report(&report, text)
    }

    /// Returns where rows come from, and the partitions that it has.
    fn source(&self) -> Result<(Box<dyn RowSource>, Vec<PartId>)> {
        if let Some(graph) = &self.graph {
            let (graph, options) = (Graph::open(graph)?, OpenOptions { reader: self.reader });
            let here = local_parts(&graph)?;
            let live = GraphHandle::open(graph, Some(&here), OpenMode::Read, &options)?;
            let view = self.version.map_or(View::Latest, View::At);
            let store = EmbeddedStore::from_handle(Arc::new(live), view)?;
            return Ok((Box::new(EmbeddedSource::new(store)), here));
        }
        let config = self.client.config()?;
        let pin = match self.version {
            Some(version) => Some(Pin::At(VersionTag::any(version))),
            None => self.pin.then_some(Pin::Newest),
        };
        let client = Client::connect(&self.connect, ClientConfig { pin, ..config })?;
        // It says itself which partitions no server has.
        let parts = client.book().parts().collect();
        Ok((Box::new(client), parts))
    }
}

fn text(report: &GatherReport) -> String {
    format!(
        "{}: {} rows of `{}`, {} in {} ({} rows/s)",
        report.out,
        human::count(report.rows),
        report.tensor,
        human::bytes(report.bytes),
        human::seconds(report.seconds),
        human::count((report.rows as f64 / report.seconds.max(1e-9)) as u64),
    )
}

/// Pulls the rows of `nodes`, which the user calls `given`.
fn printed_rows(
    source: &dyn RowSource,
    info: TensorInfo,
    given: &[NodeId],
    nodes: &[NodeId],
) -> Result<PrintedRows> {
    let mut bytes = vec![0; nodes.len() * info.row_bytes()];
    source.pull(&info.name, nodes, &mut bytes, PullKind::Vector)?;
    let mut rows = Vec::with_capacity(nodes.len());
    for row in bytes.chunks(info.row_bytes()) {
        let elements = row.chunks(info.dtype.size_bytes());
        rows.push(elements.map(|bytes| json_element(info.dtype, bytes)).collect());
    }
    Ok(PrintedRows { ids: given.iter().map(|id| id.0).collect(), rows, tensor: info.name })
}

/// Returns an element as a number, or as a text where JSON has no such number.
fn json_element(dtype: Dtype, bytes: &[u8]) -> serde_json::Value {
    let text = element_text(dtype, bytes);
    match text.parse::<serde_json::Number>() {
        Ok(number) => number.into(),
        Err(_) => text.into(),
    }
}

fn text_of_rows(printed: &PrintedRows) -> String {
    let widest = printed.ids.iter().max().map_or(0, |id| id.to_string().len());
    let mut lines = Vec::with_capacity(printed.rows.len());
    for (id, row) in printed.ids.iter().zip(&printed.rows) {
        let mut line = format!("{id:>widest$} ");
        for element in row {
            line.push(' ');
            match element {
                serde_json::Value::String(text) => line.push_str(text),
                number => line.push_str(&number.to_string()),
            }
        }
        lines.push(line);
    }
    lines.join("\n")
}

fn copy_rows(
    source: &dyn RowSource,
    info: &TensorInfo,
    chunks: impl Iterator<Item = Result<Vec<NodeId>>>,
    mut out: Output,
    progress: &mut dyn FnMut(u64),
) -> Result<PullStats> {
    let mut stats = PullStats::default();
    let mut rows = Vec::new();
    for chunk in chunks {
        let chunk = chunk?;
        rows.resize(chunk.len() * info.row_bytes(), 0);
        stats += source.pull(&info.name, &chunk, &mut rows, PullKind::Vector)?;
        out.write(&rows)?;
        progress(stats.rows);
    }
    out.commit()?;
    Ok(stats)
}

/// The rows of the output file.
struct Output {
    writer: NpyWriter,
    /// Where elements of this type become f32.
    converted: Option<(Dtype, Vec<f32>)>,
}

impl Output {
    fn begin(path: &Path, info: &TensorInfo, as_f32: bool, n_rows: u64) -> Result<Self> {
        let shape = [n_rows, u64::from(info.width)];
        let shape = if info.width == 1 { &shape[..1] } else { &shape[..] };
        let dtype = if as_f32 { Dtype::F32 } else { info.dtype };
        let converted = (dtype != info.dtype).then_some((info.dtype, Vec::new()));
        let writer = NpyWriter::create(path, npy_type(dtype), shape)?;
        Ok(Self { writer, converted })
    }

    fn write(&mut self, rows: &[u8]) -> Result<()> {
        let Some((dtype, converted)) = &mut self.converted else {
            return Ok(self.writer.write_all(rows)?);
        };
        converted.resize(rows.len() / dtype.size_bytes(), 0.0);
        dtype.widen(rows, converted);
        Ok(self.writer.write_all(bytemuck::cast_slice(converted))?)
    }

    fn commit(self) -> Result<()> {
        Ok(self.writer.finish()?)
    }
}
