//! `lode pull`: fetch a graph from object storage.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use lodestore_bucket::{Bucket, PullOptions, PullReport};
use lodestore_graph::PartId;

use crate::console::{Console, TimedReport};
use crate::human;

/// Fetch partitions of a graph from object storage, or what a folder lacks of a later version.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode pull s3://bucket/my-graph my-graph
  lode pull s3://bucket/my-graph my-graph --parts 0,3 --version 7

Without --version it is the newest version that every partition has published. Every chunk is checked
as it comes, and every file is checked whole and synced before the folder names it. Whatever cuts it off, run it
again: it continues. A folder with rows that are not committed is refused.")]
pub(crate) struct PullArgs {
    /// Where it is stored; `lode push --help` has the forms.
    url: String,
    /// Folder of the graph, which is made if it is not there.
    graph: PathBuf,
    /// The partitions to fetch; without it all of the graph.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',')]
    parts: Vec<u16>,
    /// The version to fetch.
    #[arg(long, value_name = "N")]
    version: Option<u32>,
}

impl PullArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let start = Instant::now();
        let bucket = Bucket::open(&self.url)?;
        let parts = self.parts.into_iter().map(PartId).collect();
        let options = PullOptions { parts, version: self.version };
        let report = bucket.pull(&self.graph, &options, &mut console.progress("pull"))?;
        let seconds = start.elapsed().as_secs_f64();
        console.report(&TimedReport { report, seconds }, text)
    }
}

fn text(timed: &TimedReport<PullReport>) -> String {
    let TimedReport { report, seconds } = timed;
    let rate = human::bytes((report.bytes as f64 / seconds.max(1e-9)) as u64);
    format!(
        "version {} of {}: {}, {} in {}, {rate}/s; {} were here",
        report.version,
        human::counted(report.parts.len() as u64, "partition"),
        human::counted(report.files, "file"),
        human::bytes(report.bytes),
        human::seconds(*seconds),
        human::counted(report.files_kept, "file"),
    )
}
