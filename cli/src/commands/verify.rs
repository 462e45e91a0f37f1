//! `lode verify`: read everything, report what is damaged.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use lodestore_store::{VerifyReport, verify};
use serde::Serialize;

use crate::console::Console;
use crate::human;

/// Read a whole graph and report every damaged page and file; exit code 1 if there is any.
#[derive(Args)]
#[command(after_help = "Example:\n  lode verify my-graph")]
pub(crate) struct VerifyArgs {
    /// Folder of the graph.
    graph: PathBuf,
}

/// The report and how long it took.
#[derive(Serialize)]
struct TimedReport {
    #[serde(flatten)]
    report: VerifyReport,
    seconds: f64,
}

impl VerifyArgs {
    pub(crate) fn run(self, console: &Console) -> Result<ExitCode> {
        let start = Instant::now();
        let report = verify(&self.graph, &mut console.progress("verify"))?;
        let seconds = start.elapsed().as_secs_f64();
        let timed = TimedReport { report, seconds };
        console.report(&timed, text)?;
        Ok(if timed.report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn text(timed: &TimedReport) -> String {
    let TimedReport { report, seconds } = timed;
    let (pages, bytes) = (human::counted(report.pages, "page"), human::bytes(report.bytes));
    let rate = human::bytes((report.bytes as f64 / seconds.max(1e-9)) as u64);
    let mut text = format!("{pages} of rows, {bytes} in all, {seconds:.2} s, {rate}/s");
    if report.ok {
        text.insert_str(0, "ok: ");
    } else {
        text.push_str("; damaged:");
    }
    for damage in &report.damaged {
        // Most reasons name their file; none says it twice.
        if damage.reason.contains(&damage.file) {
            text.push_str(&format!("\n  {}", damage.reason));
        } else {
            text.push_str(&format!("\n  {}: {}", damage.file, damage.reason));
        }
    }
    if !report.ok {
        text.push_str("\n`lode repair` rebuilds what can be rebuilt");
    }
    for path in &report.unknown {
        text.push_str(&format!("\nnot part of the graph: {path}"));
    }
    text
}
