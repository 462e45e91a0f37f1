//! `lode compact`: what was put and committed goes into the graph's files.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use lodestore_client::{Client, ClientConfig};
use lodestore_graph::PartId;
use lodestore_store::compact::Compacted;
use lodestore_store::update::{Folding, KeepRule};
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions};
use serde::Serialize;

use crate::console::Console;
use crate::flags::parse_time;
use crate::human;
use crate::local_parts::{line_of, local_parts, remote_parts};
use crate::security_args::SecurityArgs;
use crate::table::Table;

/// Fold the deltas that commits have written into one file per tensor; reading needs fewer files,
/// and older versions can no longer be read, but for those that are kept.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode compact my-graph
  lode compact my-graph --tensor feat --part 0
  lode compact my-graph --keep-versions 8
  lode compact --connect 127.0.0.1:7171

Writes each file beside the old ones, which needs room for the largest once more, and removes these
when no process reads from them. Rows that were put and not committed stay as they are. Servers
continue to serve meanwhile; a server also compacts by itself, where it pays. A graph that an older
release has changed is brought forward.")]
#[command(group = clap::ArgGroup::new("of").required(true).args(["graph", "connect"]))]
pub(crate) struct CompactArgs {
    /// Folder of the graph.
    graph: Option<PathBuf>,
    /// Address of a server: HOST:PORT or unix:PATH; repeat for several.
    #[arg(long, value_name = "ADDR")]
    connect: Vec<String>,
    /// Only this tensor.
    #[arg(long, value_name = "T", conflicts_with = "connect")]
    tensor: Option<String>,
    /// Only this partition.
    #[arg(long, value_name = "P", conflicts_with = "connect")]
    part: Option<u16>,
    /// Keep the newest N versions readable by their number; all are folded into the newest unless
    /// given. A server keeps what its own settings say.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "connect",
          value_parser = clap::value_parser!(u32).range(1..))]
    keep_versions: u32,
    /// Keep every version readable for this long after the next one was committed, such as 30s, 10m,
    /// 12h or 7d.
    #[arg(long, value_name = "TIME", default_value = "0", conflicts_with = "connect",
          value_parser = parse_time)]
    keep_for: Duration,
    /// With --connect: do not wait for the end; `lode stat` reports it.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    security: SecurityArgs,
}

/// Output of `--json`.
#[derive(Serialize)]
struct CompactReport {
    graph: String,
    /// Committed version of the graph.
    version: u32,
    /// Rows of deltas that were folded.
    rows: u64,
    /// Bytes of the files written.
    bytes: u64,
    seconds: f64,
    /// Old files that are still read from; the next compaction removes them.
    waiting: usize,
    /// Partitions that are not on this machine.
    absent: Vec<u16>,
    tensors: Vec<Compacted>,
}

/// Output of `--connect --json`.
#[derive(Serialize)]
struct ServersReport {
    servers: Vec<ServerReport>,
    seconds: f64,
    /// Whether it was waited for, and is done.
    done: bool,
}

#[derive(Serialize)]
struct ServerReport {
    address: String,
    /// Committed version.
    version: u32,
    /// Rows of deltas that there were.
    rows: u64,
}

impl CompactArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        match &self.graph {
            Some(folder) => {
                self.security.refuse_without_servers(&[("--no-wait", self.no_wait)])?;
                self.compact_files(folder, console)
            }
            None => self.compact_servers(console),
        }
    }

    fn compact_files(&self, folder: &Path, console: &Console) -> Result<()> {
        let (graph, options) = (Graph::open(folder)?, OpenOptions::default());
        let parts = self.part.map_or_else(|| local_parts(&graph), |part| Ok(vec![PartId(part)]))?;
        let absent = remote_parts(graph.book(), &graph.local_parts());
        let live = GraphHandle::open(graph, Some(&parts), OpenMode::Write, &options)?;
        live.set_keep_rule(KeepRule { n_versions: self.keep_versions, age: self.keep_for });
        let start = Instant::now();
        let mut progress = console.progress("compact");
        let mut advance = |done, total| {
            progress(done, total);
            ControlFlow::Continue(())
        };
        let tensors = live.compact(None, self.tensor.as_deref(), Folding::All, &mut advance)?;
        let report = CompactReport {
            graph: folder.display().to_string(),
            version: live.version(),
            rows: tensors.iter().map(|tensor| tensor.rows).sum(),
            bytes: tensors.iter().map(|tensor| tensor.bytes).sum(),
            seconds: start.elapsed().as_secs_f64(),
            waiting: live.sweep()?,
            absent,
            tensors,
        };
        console.report(&report, text)
    }

    /// Has servers compact, and waits for them by default.
    fn compact_servers(&self, console: &Console) -> Result<()> {
        let (security, etcd) = (self.security.read()?, self.security.etcd.read()?);
        let config = ClientConfig { security, etcd, ..ClientConfig::default() };
        let client = Client::connect(&self.connect, config)?;
        let start = Instant::now();
        let before = client.stats()?;
        let runs = client.compact()?;
        if !self.no_wait {
            client.wait_for_compactions(&runs, &mut console.progress("compact"))?;
        }
        let servers = before.into_iter().map(|(address, stats)| ServerReport {
            address: address.to_string(),
            version: stats.updates.version,
            rows: stats.updates.committed_rows,
        });
        let report = ServersReport {
            servers: servers.collect(),
            seconds: start.elapsed().as_secs_f64(),
            done: !self.no_wait,
        };
        console.report(&report, text_of_servers)
    }
}

fn text(report: &CompactReport) -> String {
    let absent = line_of("not on this machine", &report.absent, "");
    if report.rows == 0 {
        return format!("{}: nothing to fold at version {}{absent}", report.graph, report.version);
    }
    let mut table = Table::new(["partition", "tensor", "rows", "size", "time"]);
    for t in report.tensors.iter().filter(|tensor| tensor.rows > 0) {
        table.row([
            t.part.to_string(),
            t.tensor.clone(),
            human::count(t.rows),
            human::bytes(t.bytes),
            human::seconds(t.seconds),
        ]);
    }
    let waiting = match report.waiting {
        0 => String::new(),
        n => format!(
            "\n{} still read from; the next compaction removes them",
            human::counted(n as u64, "old file")
        ),
    };
    format!(
        "{}: {} folded in {}, version {}\n\n{table}{waiting}{absent}",
        report.graph,
        human::counted(report.rows, "row"),
        human::seconds(report.seconds),
        report.version,
    )
}

fn text_of_servers(report: &ServersReport) -> String {
    let lines = report.servers.iter().map(|server| {
        let rows = human::counted(server.rows, "row");
        let (address, version) = (&server.address, server.version);
        if report.done {
            let time = human::seconds(report.seconds);
            format!("{address}: {rows} folded in {time}, version {version}")
        } else {
            format!("{address}: folds {rows}, version {version}; `lode stat {address}` reports it")
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}
