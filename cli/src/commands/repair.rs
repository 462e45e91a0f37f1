//! `lode repair`: rebuild what can be rebuilt, say what is lost.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use lodestore_graph::PartId;
use lodestore_store::repair::{Lost, RepairMode, RepairReport, repair, repair_parts};

use crate::console::{Console, TimedReport};
use crate::human;
use crate::local_parts::line_of;

/// Rebuild what is damaged in a graph and say what is lost; exit code 1 if anything is, or if a
/// partition is missing.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode repair my-graph --dry-run
  lode repair my-graph
  lode repair my-graph --parts 0,1

Nothing is destroyed: whatever is replaced moves to the folder `quarantine` beside it. Rows on
damaged pages stay where they are and fail when they are read; all others are served. Put the file
back from a copy and repair again, or put the rows again, and they are there again.

Exit code 0: everything that was to be looked at is here and sound now. 1: something is lost, or a
partition has no folder. Without --parts a missing folder is not called lost, for another machine may
hold it; name the partitions that must be here. Others are then neither locked nor looked at.")]
pub(crate) struct RepairArgs {
    /// Folder of the graph.
    graph: PathBuf,
    /// Say what would be done, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// The partitions to repair, all of which must be here; without it all of the graph.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',')]
    parts: Vec<u16>,
}

impl RepairArgs {
    pub(crate) fn run(self, console: &Console) -> Result<ExitCode> {
        let start = Instant::now();
        let (graph, mut progress) = (&self.graph, console.progress("repair"));
        let parts: Vec<PartId> = self.parts.into_iter().map(PartId).collect();
        let mode = if self.dry_run { RepairMode::DryRun } else { RepairMode::Apply };
        let report = match parts.is_empty() {
            true => repair(graph, mode, &mut progress)?,
            false => repair_parts(graph, &parts, mode, &mut progress)?,
        };
        let timed = TimedReport { report, seconds: start.elapsed().as_secs_f64() };
        console.report(&timed, text)?;
        Ok(if timed.report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn text(timed: &TimedReport<RepairReport>) -> String {
    let TimedReport { report, seconds } = timed;
    let mut text = match (report.lost.is_empty(), report.absent.is_empty(), report.done.is_empty())
    {
        (true, true, true) => "ok: nothing to repair".to_owned(),
        (true, true, false) => "ok: everything is as it was".to_owned(),
        (true, false, true) => "nothing to repair in what is here".to_owned(),
        (true, false, false) => "what is here is as it was".to_owned(),
        (false, ..) => "repair incomplete: data was lost".to_owned(),
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
    if report.lost.iter().any(|lost| lost.reason.contains("from a replica")) {
        text.push_str("\n  `lode transfer --keep` fetches a partition from a replica");
    }
    if let Some(file) = &report.kept_in {
        text.push_str(&format!("\n  this report is kept in {file}"));
    }
    let before = "  NOT on this machine, and not looked at";
    text + &line_of(before, &report.absent, "; --parts names those that must be")
}

/// Returns which rows are lost, if it is rows.
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
