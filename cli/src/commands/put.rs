//! `lode put`: rows in the place of those that a graph has.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use lodestore_graph::{NodeId, PartId};
use serde::Serialize;

use crate::console::Console;
use crate::flags::Nan;
use crate::human;
use crate::ids::IdFile;
use crate::local_parts::line_of;
use crate::rows::RowFile;
use crate::security_args::ClientArgs;
use crate::target::Place;

/// Rows are put in pieces of about this many bytes, each durable before the next.
const CHUNK_BYTES: usize = 16 << 20;

/// Put rows in the place of those that a graph or its servers have, from .npy files.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode put --graph my-graph --tensor feat --ids ids.npy --rows rows.npy --commit
  lode gather --graph my-graph --tensor feat --ids ids.npy --out rows.npy
  lode serve my-graph --writable --unix rows.sock &
  lode put --connect unix:rows.sock --tensor feat --ids ids.npy --rows rows.npy --commit

What was put is durable, and readers see it from the next commit on. With --commit it becomes a
version now, which stays readable by its number until its files are folded with later
ones, and to readers that have pinned it after that. One process at a time may write a graph's
files, a server with --writable included; readers need not stop. Rows go to the server that writes
their partition; its followers fetch the version by themselves.

Of a graph whose partitions are on several machines --graph takes rows of the partitions that are
here; an id of another is an error before anything is put. --commit makes a version here alone, and
wants the partitions named, so that none is left out because its disk is not mounted: run it on every
machine, so that all of them count alike.")]
#[command(group = clap::ArgGroup::new("to").required(true).args(["graph", "connect"]))]
pub(crate) struct PutArgs {
    /// Folder of the graph.
    #[arg(long, value_name = "GRAPH")]
    graph: Option<PathBuf>,
    /// Address of a server: HOST:PORT or unix:PATH; repeat for several.
    #[arg(long, value_name = "ADDR")]
    connect: Vec<String>,
    /// Name of the tensor.
    #[arg(long, value_name = "T")]
    tensor: String,
    /// Node ids: .npy of shape (N,), u32, i32, u64 or i64; of an id that repeats the last row
    /// stays.
    #[arg(long, value_name = "FILE")]
    ids: PathBuf,
    /// Rows: .npy of shape (N, width), (N,) for width 1, with the tensor's type; bf16 as u16 of its
    /// bits.
    #[arg(long, value_name = "FILE")]
    rows: PathBuf,
    /// With --graph: the partitions to put into and to commit, all of which must be here; without
    /// it all that are here. --commit wants it where partitions are not here.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',', conflicts_with = "connect")]
    parts: Vec<u16>,
    /// Treatment of NaN in the rows.
    #[arg(long, value_enum, default_value_t = Nan::Refuse)]
    nan: Nan,
    /// Make a version of all that was put so far.
    #[arg(long)]
    commit: bool,
    /// With --connect and --commit: return when N followers of each partition have the version.
    #[arg(long, value_name = "N", requires = "commit")]
    wait_followers: Option<usize>,
    /// The ids are those of the imported files, not those of the stored graph.
    #[arg(long)]
    external_ids: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// Output of `--json`.
#[derive(Serialize)]
struct PutReport {
    tensor: String,
    rows: u64,
    bytes: u64,
    seconds: f64,
    /// The graph's committed version: the one made here with `--commit`.
    version: u32,
    committed: bool,
    /// Partitions that are not here or were not named: they stay as they are.
    absent: Vec<u16>,
}

impl PutArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        if self.graph.is_some() {
            let waits = [("--wait-followers", self.wait_followers.is_some())];
            self.client.refuse_without_servers(&waits)?;
        }
        let config = self.client.config()?;
        let place = Place::find(self.graph.as_deref(), &self.connect, config)?;
        // Files are looked at, to the last id, before the graph is locked.
        let tensor = place.tensor(&self.tensor)?;
        let ids = IdFile::open(&self.ids, place.n_nodes())?;
        let rows = RowFile::open(&self.rows, &tensor, ids.len())?;
        let chunk_rows = (CHUNK_BYTES / tensor.row_bytes()).max(1);
        ids.chunks(chunk_rows).try_for_each(|chunk| chunk.map(drop))?;
        if self.nan == Nan::Refuse {
            rows.refuse_nan(&tensor)?;
        }
        let parts: Vec<PartId> = self.parts.iter().copied().map(PartId).collect();
        let target = place.open(&parts, self.commit)?;
        let internal_of = if self.external_ids { Some(target.internal_ids()?) } else { None };
        let nodes_of = |(first, nodes): (u64, Result<Vec<NodeId>>)| {
            let mut nodes = nodes?;
            if let Some(internal_of) = &internal_of {
                internal_of.translate(&mut nodes, first)?;
            }
            target.check(&nodes, first).map(|()| nodes)
        };
        let chunks = || (0..).step_by(chunk_rows).zip(ids.chunks(chunk_rows)).map(nodes_of);
        // To the last id before the first row is put.
        chunks().try_for_each(|nodes| nodes.map(drop))?;
        let start = Instant::now();
        let mut progress = console.progress("put");
        let (mut n_rows, mut n_bytes) = (0, 0);
        for (nodes, rows) in chunks().zip(rows.chunks(chunk_rows)) {
            let nodes = nodes?;
            target.put(&tensor.name, &nodes, rows)?;
            n_rows += nodes.len() as u64;
            n_bytes += rows.len() as u64;
            progress(n_rows, ids.len());
        }
        let version = if self.commit { target.commit()? } else { target.version()? };
        if let Some(wanted) = self.wait_followers {
            target.wait_for_followers(version, wanted)?;
        }
        let report = PutReport {
            tensor: tensor.name,
            rows: n_rows,
            bytes: n_bytes,
            seconds: start.elapsed().as_secs_f64(),
            version,
            committed: self.commit,
            absent: target.absent(),
        };
        console.report(&report, text)
    }
}

fn text(report: &PutReport) -> String {
    let end = if report.committed {
        format!("committed as version {}", report.version)
    } else {
        format!("pending over version {}; --commit makes a version of it", report.version)
    };
    let absent = line_of(
        "not opened here, and left as they are",
        &report.absent,
        "; put and commit there too",
    );
    format!(
        "{} rows of `{}`, {} in {}; {end}{absent}",
        human::count(report.rows),
        report.tensor,
        human::bytes(report.bytes),
        human::seconds(report.seconds),
    )
}
