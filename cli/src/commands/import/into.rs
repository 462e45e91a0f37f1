//! `lode import --into`: further tensors of a graph that there is.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use lodestore_graph::PartId;
use lodestore_store::{Graph, LiveGraph, LiveMode, NanPolicy, OpenOptions, TensorOptions};
use serde::Serialize;

use super::tensors::ImportTensor;
use crate::console::Console;
use crate::here::{list, parts_elsewhere, parts_here};
use crate::human;
use crate::usage::UsageError;

/// What `--json` prints.
#[derive(Serialize)]
pub(super) struct IntoReport {
    graph: String,
    tensors: Vec<AddedTensor>,
    /// Partitions that are not here: where they are, their folder gets the tensors too.
    absent: Vec<u16>,
    seconds: f64,
}

/// A tensor that was added.
#[derive(Serialize)]
struct AddedTensor {
    name: String,
    dtype: String,
    width: u32,
    /// Bytes of its rows, not compressed.
    bytes: u64,
    seconds: f64,
}

/// Adds the tensors one after the other, each whole or not at all.
///
/// Every file is opened and checked before anything is written.
pub(super) fn add(
    folder: &Path,
    files: &[ImportTensor],
    nan: NanPolicy,
    console: &Console,
) -> Result<IntoReport> {
    if files.is_empty() {
        return Err(UsageError::new("--into adds tensors: give --tensor NAME=FILE").into());
    }
    let start = Instant::now();
    let sources = files.iter().map(ImportTensor::open).collect::<Result<Vec<_>, _>>()?;
    let mut tensors = Vec::with_capacity(files.len());
    let here = parts_here(&Graph::open(folder)?)?;
    let mut absent = Vec::new();
    for (file, source) in files.iter().zip(&sources) {
        let (graph, begun) = (Graph::open(folder)?, Instant::now());
        let options = OpenOptions::default();
        let live = Arc::new(LiveGraph::open(graph, Some(&here), LiveMode::Write, &options)?);
        let mut progress = console.progress(&file.name);
        let options = TensorOptions { nan, codec: file.codec };
        let graph = live.import_tensor(&file.name, &**source, options, &mut progress)?;
        let spec = graph.tensor(&file.name)?;
        tensors.push(AddedTensor {
            name: spec.name.clone(),
            dtype: spec.dtype.to_string(),
            width: spec.width,
            bytes: n_rows(&graph, &here) * spec.row_bytes() as u64,
            seconds: begun.elapsed().as_secs_f64(),
        });
        absent = parts_elsewhere(graph.book(), &here);
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(IntoReport { graph: folder.display().to_string(), tensors, absent, seconds })
}

fn n_rows(graph: &Graph, parts: &[PartId]) -> u64 {
    parts.iter().map(|part| graph.book().range(*part).len() as u64).sum()
}

pub(super) fn text(report: &IntoReport) -> String {
    let lines = report.tensors.iter().map(|tensor| {
        format!(
            "{}: {} x {}, {} in {}",
            tensor.name,
            tensor.dtype,
            tensor.width,
            human::bytes(tensor.bytes),
            human::seconds(tensor.seconds),
        )
    });
    let absent = match &report.absent[..] {
        [] => String::new(),
        parts => format!("\nnot on this machine: partitions {}; import it there too", list(parts)),
    };
    format!("{}\n{}{absent}", report.graph, lines.collect::<Vec<_>>().join("\n"))
}
