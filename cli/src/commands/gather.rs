//! `lode gather`: rows of a list of nodes, from files or from servers.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use lodestore_client::{
    Client, ClientConfig, EmbeddedSource, PullKind, PullStats, RowSource, TensorInfo,
};
use lodestore_graph::NodeId;
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_store::{Dtype, EXTERNAL_ID_TENSOR, EmbeddedStore, Graph, OpenOptions, ReaderKind};
use serde::Serialize;

use crate::console::Console;
use crate::human;
use crate::ids::IdFile;

/// Rows are gathered in pieces of about this many bytes.
const CHUNK_BYTES: usize = 16 << 20;

/// Gather rows by node id, from a graph's files or from its servers, into a .npy file.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode gather --graph my-graph --tensor feat --ids ids.npy --out rows.npy
  lode gather --connect 127.0.0.1:7171 --tensor feat --ids ids.npy --out rows.npy

Row i of the output is the row of id i; ids may repeat and come in any order.")]
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
    /// Name of the tensor.
    #[arg(long, value_name = "T")]
    tensor: String,
    /// Node ids: .npy of shape (N,), u32, i32, u64 or i64.
    #[arg(long, value_name = "FILE")]
    ids: PathBuf,
    /// Rows: .npy of shape (N, width), (N,) for width 1; bf16 is written as u16 of its bits.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The ids are those of the imported files, not those of the stored graph.
    #[arg(long)]
    external_ids: bool,
    /// With --connect: give up on a pull after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..))]
    deadline: u64,
}

/// What `--json` prints.
#[derive(Serialize)]
struct GatherReport {
    tensor: String,
    rows: u64,
    bytes: u64,
    requests: u64,
    seconds: f64,
    out: String,
}

impl GatherArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let source = self.source()?;
        let info = source.tensor(&self.tensor)?;
        let ids = IdFile::open(&self.ids, source.book().n_nodes())?;
        let internal_of = if self.external_ids { Some(internal_ids(&*source)?) } else { None };
        let start = Instant::now();
        let mut progress = console.progress("gather");
        let out = Output::begin(&self.out, &info, ids.len())?;
        let stats = copy_rows(&*source, &info, &ids, internal_of.as_deref(), out, &mut progress)?;
        let report = GatherReport {
            tensor: info.name,
            rows: stats.rows,
            bytes: stats.bytes,
            requests: stats.requests,
            seconds: start.elapsed().as_secs_f64(),
            out: self.out.display().to_string(),
        };
        console.report(&report, text)
    }

    fn source(&self) -> Result<Box<dyn RowSource>> {
        Ok(match &self.graph {
            Some(graph) => {
                let options = OpenOptions { reader: self.reader };
                let store = EmbeddedStore::with(Graph::open(graph)?, None, &options)?;
                Box::new(EmbeddedSource::new(store))
            }
            None => {
                let deadline = Duration::from_secs(self.deadline);
                let config = ClientConfig { deadline, ..ClientConfig::default() };
                Box::new(Client::connect(&self.connect, config)?)
            }
        })
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

fn copy_rows(
    source: &dyn RowSource,
    info: &TensorInfo,
    ids: &IdFile,
    internal_of: Option<&[NodeId]>,
    mut out: Output,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<PullStats> {
    let chunk_rows = (CHUNK_BYTES / info.row_bytes()).max(1);
    let mut stats = PullStats::default();
    let mut rows = Vec::new();
    for chunk in ids.chunks(chunk_rows) {
        let mut chunk = chunk?;
        if let Some(internal_of) = internal_of {
            chunk.iter_mut().for_each(|id| *id = internal_of[id.index()]);
        }
        rows.resize(chunk.len() * info.row_bytes(), 0);
        stats += source.pull(&info.name, &chunk, &mut rows, PullKind::Vector)?;
        out.write(&rows)?;
        progress(stats.rows, ids.len());
    }
    out.commit()?;
    Ok(stats)
}

/// The internal id of each external one. Memory: 4 bytes per node and a chunk.
fn internal_ids(source: &dyn RowSource) -> Result<Vec<NodeId>> {
    let n_nodes = source.book().n_nodes();
    let mut internal_of = vec![NodeId(0); n_nodes as usize];
    let chunk_rows = (CHUNK_BYTES / size_of::<i64>()) as u32;
    let mut rows = Vec::new();
    for start in (0..n_nodes).step_by(chunk_rows as usize) {
        let end = start.saturating_add(chunk_rows).min(n_nodes);
        let ids: Vec<NodeId> = (start..end).map(NodeId).collect();
        rows.resize(ids.len() * size_of::<i64>(), 0);
        source.pull(EXTERNAL_ID_TENSOR, &ids, &mut rows, PullKind::Vector)?;
        for (&internal, external) in ids.iter().zip(rows.as_chunks::<8>().0) {
            let external = i64::from_le_bytes(*external);
            let slot = usize::try_from(external).ok().and_then(|e| internal_of.get_mut(e));
            *slot.with_context(|| {
                format!("node {internal} has external id {external}; run `lode verify`")
            })? = internal;
        }
    }
    Ok(internal_of)
}

/// The output file: it appears under its name when it is whole.
struct Output {
    writer: NpyWriter,
    temporary: tempfile::TempPath,
    path: PathBuf,
}

impl Output {
    fn begin(path: &Path, info: &TensorInfo, n_rows: u64) -> Result<Self> {
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        let temporary = tempfile::Builder::new()
            .prefix(".lode-")
            .suffix(".npy")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .tempfile_in(parent.unwrap_or(Path::new(".")))
            .with_context(|| format!("{}: cannot create", path.display()))?
            .into_temp_path();
        let shape = [n_rows, u64::from(info.width)];
        let shape = if info.width == 1 { &shape[..1] } else { &shape[..] };
        let writer = NpyWriter::create(&temporary, npy_type(info.dtype), shape)?;
        Ok(Self { writer, temporary, path: path.to_owned() })
    }

    fn write(&mut self, rows: &[u8]) -> Result<()> {
        Ok(self.writer.write_all(rows)?)
    }

    fn commit(self) -> Result<()> {
        self.writer.finish()?;
        let renamed = self.temporary.persist(&self.path);
        renamed.with_context(|| format!("{}: cannot write", self.path.display()))
    }
}

fn npy_type(dtype: Dtype) -> NpyType {
    match dtype {
        Dtype::F32 => NpyType::F32,
        Dtype::F16 => NpyType::F16,
        Dtype::BF16 => NpyType::U16,
        Dtype::F64 => NpyType::F64,
        Dtype::U8 => NpyType::U8,
        Dtype::I8 => NpyType::I8,
        Dtype::I16 => NpyType::I16,
        Dtype::I32 => NpyType::I32,
        Dtype::I64 => NpyType::I64,
    }
}
