//! `lode push`: upload a graph to object storage.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use lodestore_bucket::{Bucket, PushReport};
use lodestore_graph::PartId;

use crate::console::{Console, TimedReport};
use crate::human;

/// Upload what object storage lacks of a graph, and publish its newest committed version there.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode push my-graph s3://bucket/my-graph
  lode push my-graph file:///mnt/share/my-graph

Each partition is published as soon as all of it is there. If it is cut off, run it again: it
continues, for 6 hours. Puts and commits may run meanwhile; rows that are not committed stay here. Of two writers that publish one after the other without a pull, the second
is refused. URLs: file:///PATH, s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH; all but file://
need a build with --features object-store. Credentials come from the environment (AWS_..., GOOGLE_...,
AZURE_...) or the machine's role. docs/object-storage.md has the rest.")]
pub(crate) struct PushArgs {
    /// Folder of the graph.
    graph: PathBuf,
    /// Where it is stored.
    url: String,
    /// The partitions to push; without it all that are in the folder.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',')]
    parts: Vec<u16>,
}

impl PushArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let start = Instant::now();
        let bucket = Bucket::open(&self.url)?;
        let parts: Vec<PartId> = self.parts.into_iter().map(PartId).collect();
        let report = bucket.push(&self.graph, &parts, &mut console.progress("push"))?;
        let seconds = start.elapsed().as_secs_f64();
        console.report(&TimedReport { report, seconds }, text)
    }
}

fn text(timed: &TimedReport<PushReport>) -> String {
    let TimedReport { report, seconds } = timed;
    let n_new = report.parts.iter().filter(|part| part.is_new).count() as u64;
    let rate = human::bytes((report.bytes as f64 / seconds.max(1e-9)) as u64);
    if n_new == 0 {
        return format!("version {} is published already", report.version);
    }
    format!(
        "version {} published, {}: {} uploaded in {}, {rate}/s; {} were there",
        report.version,
        human::counted(n_new, "partition"),
        human::bytes(report.bytes),
        human::seconds(*seconds),
        human::bytes(report.bytes_kept),
    )
}
