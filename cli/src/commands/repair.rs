//! `lode repair`: rebuild what can be rebuilt, say what is lost.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use lodestore_store::{Lost, RepairReport, repair};
use serde::Serialize;

use crate::console::Console;
use crate::human;

/// Rebuild what is damaged in a graph and say what is lost; exit code 1 if anything is.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode repair my-graph --dry-run
  lode repair my-graph

Nothing is destroyed: whatever is replaced moves to the folder `quarantine` beside it. Rows on
damaged pages stay where they are and fail when they are read; all others are served. Put the file
back from a copy and repair again, or put the rows again, and they are there again.")]
pub(crate) struct RepairArgs {
    /// Folder of the graph.
    graph: PathBuf,
    /// Say what would be done, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

/// The report and how long it took.
#[derive(Serialize)]
struct TimedReport {
    #[serde(flatten)]
    report: RepairReport,
    seconds: f64,
}

impl RepairArgs {
    pub(crate) fn run(self, console: &Console) -> Result<ExitCode> {
        let start = Instant::now();
        let report = repair(&self.graph, self.dry_run, &mut console.progress("repair"))?;
        let timed = TimedReport { report, seconds: start.elapsed().as_secs_f64() };
        console.report(&timed, text)?;
        Ok(if timed.report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn text(timed: &TimedReport) -> String {
    let TimedReport { report, seconds } = timed;
    let mut text = match (report.ok, report.done.is_empty()) {
        (true, true) => "ok: nothing to repair".to_owned(),
        (true, false) => "ok: everything is as it was".to_owned(),
        (false, _) => "not all can be had back".to_owned(),
    };
    text.push_str(&format!("; {}", human::seconds(*seconds)));
    if let Some(reason) = &report.stopped {
        text =
            format!("stopped before its end: {reason}; repair again; {}", human::seconds(*seconds));
    }
    if report.dry_run {
        text.push_str("; nothing was changed (--dry-run)");
    }
    for done in &report.done {
        text.push_str(&format!("\n  rebuilt {}: {}", done.file, done.action));
    }
    for moved in &report.quarantined {
        text.push_str(&format!("\n  moved {} to {}", moved.from, moved.to));
    }
    for lost in &report.lost {
        text.push_str(&format!("\n  LOST {}: {}{}", lost.file, rows(lost), lost.reason));
    }
    text
}

/// Which rows are lost, if it is rows.
fn rows(lost: &Lost) -> String {
    let Some(tensor) = &lost.tensor else { return String::new() };
    let ranges: Vec<String> = lost
        .nodes
        .iter()
        .take(MAX_RANGES)
        .map(|[first, end]| match end - first {
            1 => first.to_string(),
            _ => format!("{first} to {}", end - 1),
        })
        .collect();
    let more = if lost.nodes.len() > MAX_RANGES { " and more" } else { "" };
    let rows = human::counted(lost.rows, "row");
    format!("{rows} of `{tensor}` (nodes {}{more}): ", ranges.join(", "))
}

/// Ranges of nodes that the text shows; `--json` has more.
const MAX_RANGES: usize = 8;
