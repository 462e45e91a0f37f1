//! `lode verify`: read everything, report what is damaged.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use lodestore_bucket::Bucket;
use lodestore_bucket::verify::BucketVerifyReport;
use lodestore_graph::PartId;
use lodestore_store::verify::{VerifyReport, verify, verify_parts};

use super::inspect::url_of;
use crate::console::{Console, TimedReport};
use crate::human;
use crate::local_parts::line_of;
use crate::usage::UsageError;

/// Read a whole graph and report every damaged page and file; exit code 1 if there is any, or if a
/// partition is missing.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode verify my-graph
  lode verify my-graph --parts 0,1
  lode verify s3://bucket/my-graph

Exit code 0: everything that was to be looked at is here and sound. 1: something is damaged, or a
partition has no folder. Without --parts a missing folder is not called damaged, for another machine
may hold it, but the whole graph is not verified then; name the partitions that must be here.")]
pub(crate) struct VerifyArgs {
    /// Folder of the graph, or its URL in object storage.
    graph: PathBuf,
    /// The partitions to read, all of which must be here; without it all of the graph.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',')]
    parts: Vec<u16>,
}

impl VerifyArgs {
    pub(crate) fn run(self, console: &Console) -> Result<ExitCode> {
        let start = Instant::now();
        if let Some(url) = url_of(&self.graph) {
            if !self.parts.is_empty() {
                let reason = "--parts is for folders; of a URL all partitions are verified";
                return Err(UsageError::new(reason).into());
            }
            let report = Bucket::open(url)?.verify(&mut console.progress("verify"))?;
            let timed = TimedReport { report, seconds: start.elapsed().as_secs_f64() };
            console.report(&timed, text_of_bucket)?;
            return Ok(exit_code(timed.report.ok));
        }
        let (graph, mut progress) = (&self.graph, console.progress("verify"));
        let parts: Vec<PartId> = self.parts.into_iter().map(PartId).collect();
        let report = match parts.is_empty() {
            true => verify(graph, &mut progress)?,
            false => verify_parts(graph, &parts, &mut progress)?,
        };
        let seconds = start.elapsed().as_secs_f64();
        let timed = TimedReport { report, seconds };
        console.report(&timed, text)?;
        Ok(exit_code(timed.report.ok))
    }
}

fn exit_code(is_ok: bool) -> ExitCode {
    if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn text_of_bucket(timed: &TimedReport<BucketVerifyReport>) -> String {
    let TimedReport { report, seconds } = timed;
    let (publications, chunks) = (
        human::counted(report.publications, "publication"),
        human::counted(report.chunks, "chunk"),
    );
    let rate = human::bytes((report.bytes as f64 / seconds.max(1e-9)) as u64);
    let bytes = human::bytes(report.bytes);
    let mut text = format!("{publications}, {chunks}, {bytes}, {seconds:.2} s, {rate}/s");
    match report.ok {
        true => text.insert_str(0, "ok: "),
        false => text.push_str("; damaged:"),
    }
    for damage in &report.damaged {
        text.push_str(&format!("\n  {}: {}", damage.file, damage.reason));
    }
    text
}

fn text(timed: &TimedReport<VerifyReport>) -> String {
    let TimedReport { report, seconds } = timed;
    let (pages, bytes) = (human::counted(report.pages, "page"), human::bytes(report.bytes));
    let rate = human::bytes((report.bytes as f64 / seconds.max(1e-9)) as u64);
    let mut text = format!("{pages} of rows, {bytes} in all, {seconds:.2} s, {rate}/s");
    match (report.ok, report.damaged.is_empty()) {
        (true, _) => text.insert_str(0, "ok: "),
        (false, true) => text.insert_str(0, "what is here is sound: "),
        (false, false) => text.push_str("; damaged:"),
    }
    for damage in &report.damaged {
        // Most reasons name their file; none says it twice.
        if damage.reason.contains(&damage.file) {
            text.push_str(&format!("\n  {}", damage.reason));
        } else {
            text.push_str(&format!("\n  {}: {}", damage.file, damage.reason));
        }
    }
    let before = "NOT on this machine, and not verified";
    text += &line_of(before, &report.absent, "; --parts names those that must be");
    if !report.damaged.is_empty() {
        text.push_str("\n`lode repair` rebuilds what can be rebuilt");
    }
    for path in &report.unknown {
        text.push_str(&format!("\nnot part of the graph: {path}"));
    }
    if !report.later.is_empty() {
        text.push_str(&format!(
            "\nof a later version than the catalog's: {}; no command writes to the graph before \
             `lode repair` has taken them in, unless a follower is fetching them now",
            report.later.join(", ")
        ));
    }
    text
}
