//! Tensors added to a graph that exists.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use lodestore_graph::PartId;
use lodestore_store::import::TensorOptions;
use lodestore_store::nan::NanPolicy;
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions};
use serde::Serialize;

use crate::config::TensorFile;
use crate::error::{Error, refused};
use crate::run::Observer;

/// The tensors that were added to a graph.
#[derive(Clone, Debug, Serialize)]
pub struct AddReport {
    /// Folder of the graph.
    pub graph: String,
    /// The tensors, in order.
    pub tensors: Vec<AddedTensor>,
    /// Partitions that are not here: their folder, elsewhere, needs the tensors too.
    pub absent: Vec<u16>,
    /// Time of all.
    pub seconds: f64,
}

/// A tensor that was added.
#[derive(Clone, Debug, Serialize)]
pub struct AddedTensor {
    /// Its name.
    pub name: String,
    /// Type of an element.
    pub dtype: String,
    /// Elements of a row.
    pub width: u32,
    /// Bytes of its rows, not compressed.
    pub bytes: u64,
    /// Time to write it.
    pub seconds: f64,
}

/// Adds tensors to the graph in `folder` one after the other, each whole or not at all.
///
/// Rows are in the order of the ids of the graph's input. Every file is opened and checked before
/// anything is written.
pub fn add_tensors(
    folder: &Path,
    files: &[TensorFile],
    nan: NanPolicy,
    observer: &mut dyn Observer,
) -> Result<AddReport, Error> {
    let start = Instant::now();
    let sources = files.iter().map(TensorFile::open).collect::<Result<Vec<_>, _>>()?;
    let mut tensors = Vec::with_capacity(files.len());
    let here = local_parts(&Graph::open(folder)?)?;
    let mut absent = Vec::new();
    for (file, source) in files.iter().zip(&sources) {
        let (graph, begun) = (Graph::open(folder)?, Instant::now());
        let options = OpenOptions::default();
        let live = Arc::new(GraphHandle::open(graph, Some(&here), OpenMode::Write, &options)?);
        observer.stage(&file.name);
        let mut progress = |done, total| observer.progress(&file.name, done, total);
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
        let others = graph.book().parts().filter(|part| !here.contains(part));
        absent = others.map(|part| part.0).collect();
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(AddReport { graph: folder.display().to_string(), tensors, absent, seconds })
}

fn local_parts(graph: &Graph) -> Result<Vec<PartId>, Error> {
    let parts = graph.local_parts();
    if parts.is_empty() {
        return Err(refused(graph.dir(), "no partition of the graph is on this machine"));
    }
    Ok(parts)
}

fn n_rows(graph: &Graph, parts: &[PartId]) -> u64 {
    parts.iter().map(|part| graph.book().range(*part).len() as u64).sum()
}
