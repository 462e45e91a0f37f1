//! `lode drop-tensor`: a graph loses a tensor.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lodestore_store::Graph;
use lodestore_store::update::drop_tensor;
use serde::Serialize;

use crate::console::Console;
use crate::local_parts::{line_of, remote_parts};

/// Remove a tensor with all of its versions and rows from a graph's folder.
#[derive(Args)]
#[command(after_help = "\
Example:
  lode import --into my-graph --tensor emb=emb.npy
  lode drop-tensor my-graph emb

There is no way back. No server may have the folder open for writing; readers that have the tensor's
files open read them to their end. Cut off, it is finished by the next opening for writing.")]
pub(crate) struct DropTensorArgs {
    /// Folder of the graph.
    graph: PathBuf,
    /// Name of the tensor.
    tensor: String,
}

/// The report of `--json`.
#[derive(Serialize)]
struct DropReport {
    graph: String,
    dropped: String,
    /// Names of the tensors that the graph has now.
    tensors: Vec<String>,
    /// Partitions that are not here: their folder has a description of its own.
    absent: Vec<u16>,
}

impl DropTensorArgs {
    pub(crate) fn run(self, console: &Console) -> Result<()> {
        let graph = drop_tensor(Graph::open(&self.graph)?, &self.tensor)?;
        let report = DropReport {
            graph: self.graph.display().to_string(),
            dropped: self.tensor,
            tensors: graph.meta().tensors.iter().map(|tensor| tensor.name.clone()).collect(),
            absent: remote_parts(graph.book(), &graph.local_parts()),
        };
        console.report(&report, text)
    }
}

fn text(report: &DropReport) -> String {
    let absent = line_of("not on this machine", &report.absent, "; drop it there too");
    let DropReport { graph, dropped, tensors, .. } = report;
    format!("{graph}: dropped {dropped}; it has {}{absent}", tensors.join(", "))
}
