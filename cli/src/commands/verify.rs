//! `lode verify`: read everything, report what is damaged.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lodestore_store::{VerifyReport, verify};

use crate::console::Console;
use crate::human;

/// Read a whole graph and report every damaged page and file; exit code 1 if there is any.
#[derive(Args)]
#[command(after_help = "Example:\n  lode verify my-graph")]
pub(crate) struct VerifyArgs {
    /// Folder of the graph.
    graph: PathBuf,
}

impl VerifyArgs {
    pub(crate) fn run(self, console: &Console) -> Result<ExitCode> {
        let report = verify(&self.graph, &mut console.progress("verify"))?;
        console.report(&report, text)?;
        Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn text(report: &VerifyReport) -> String {
    let pages = human::counted(report.pages, "page");
    if report.ok {
        return format!("ok: {pages} of rows, and all topology, halo and catalog files");
    }
    let mut text = format!("{pages} read; damaged:");
    for damage in &report.damaged {
        // Most reasons name their file; none says it twice.
        if damage.reason.contains(&damage.file) {
            text.push_str(&format!("\n  {}", damage.reason));
        } else {
            text.push_str(&format!("\n  {}: {}", damage.file, damage.reason));
        }
    }
    text
}
