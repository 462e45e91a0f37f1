//! The stages of an import, and the view of its caller.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use lodestore_graph::halo::write_halos;
use lodestore_graph::partition::{PartitionConfig, partition};
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::{Topology, write_topologies_with};
use lodestore_store::Importer;
use lodestore_store::import::TensorOptions;
use lodestore_store::reader::available_memory_bytes;

use crate::config::ImportConfig;
use crate::error::Error;
use crate::input::{Input, Weights};
use crate::memory::bound_memory;
use crate::order::Ordering;
use crate::report::{ImportReport, StageReports};

/// The caller's view of an import while it runs.
pub trait Observer {
    /// Receives the name of a stage that begins.
    fn stage(&mut self, _name: &str) {}

    /// Receives the rows that a stage has done, and those in all.
    fn progress(&mut self, _stage: &str, _done: u64, _total: u64) {}

    /// Receives a folder that exists until the import ends; a process that ends before should
    /// remove it. An error ends the import.
    fn staged(&mut self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    /// Returns whether the import is to end before its next stage.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Receives a warning for people.
    fn warn(&mut self, _message: &str) {}
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

/// Imports a graph: edges → partitions → row order → topology and halos → tensors → one rename.
///
/// Every input is opened and checked before anything is written. An import that fails removes what
/// it has written.
pub fn import(config: &ImportConfig, observer: &mut dyn Observer) -> Result<ImportReport, Error> {
    let start = Instant::now();
    lodestore_graph::process::watch_memory();
    begin(observer, "edges")?;
    let mut input = Input::open(config)?;
    let partition_config = bound_memory(&config.partition, input.n_nodes, input.edges.n_edges())?;
    leftover_warnings(&config.out).iter().for_each(|warning| observer.warn(warning));
    let n_parts = partition_config.n_parts;
    if u32::from(n_parts) > input.n_nodes {
        let n_nodes = input.n_nodes;
        observer.warn(&format!("{n_parts} partitions of {n_nodes} nodes: some will be empty"));
    }
    let most = config.max_served_row_bytes.unwrap_or(u64::MAX);
    let mut not_served = Vec::new();
    for (name, found) in input.long_rows(config) {
        observer.warn(&format!(
            "tensor `{name}` has rows of {found} bytes, and a server sends at most {most}: this \
             graph can be read here, and `lode serve` refuses it"
        ));
        not_served.push(name.to_owned());
    }
    let mut importer = Importer::begin(&config.out)?;
    let staging = importer.staging_dir().to_owned();
    observer.staged(&staging).map_err(Error::io(&staging, "watch"))?;
    let PartitionConfig { n_parts, direction, .. } = partition_config;
    input.keep_parsed(&config.edges, &staging)?;

    begin(observer, "partition")?;
    let (edges, n_nodes) = (&*input.edges, input.n_nodes);
    let partitioning = partition(edges, n_nodes, &partition_config)?;
    let by_input = Relabelling::new(&partitioning.assignment, n_parts)?;
    drop(partitioning.assignment);
    for part in by_input.book.parts() {
        importer.part_dir(part)?;
    }
    begin(observer, "row order")?;
    let ordering = Ordering::find(config.order, config.compare_orders, edges, by_input, &staging)?;

    begin(observer, "topology")?;
    let uuid = *importer.uuid().as_bytes();
    let (relabelling, book) = (&ordering.relabelling, &ordering.relabelling.book);
    let topology_path = |part| importer.topology_path(part);
    let options = config.rules.options(direction, input.weights.as_ref().map(Weights::as_slice));
    let written = write_topologies_with(edges, relabelling, &options, uuid, &topology_path)?;
    // As readers will open it.
    let paths: Vec<PathBuf> = book.parts().map(topology_path).collect();
    let topology = Topology::open(&paths, book, uuid)?;
    let halos = write_halos(&topology, book, uuid, &|part| importer.halo_path(part))?;
    begin(observer, "rows per page")?;
    // Samples from lists that do not fit in memory would wait for the disk at every node.
    let topology_bytes = 4 * topology.n_edges() + 8 * u64::from(n_nodes);
    let fits = available_memory_bytes().is_none_or(|free| topology_bytes <= free);
    let row_bytes = input.widest_row_bytes().filter(|_| fits || config.compare_orders);
    let order = ordering.measure(&topology, row_bytes)?;
    drop(topology);
    let relabelling = ordering.done()?;
    input.remove_parsed()?;

    for (tensor, source) in config.tensors.iter().zip(&input.tensors) {
        let name = &tensor.name;
        begin(observer, name)?;
        let mut progress = |done, total| observer.progress(name, done, total);
        let options = TensorOptions { nan: config.nan, codec: tensor.codec };
        importer.add_tensor(name, &**source, options, &relabelling, &mut progress)?;
    }
    begin(observer, "sync")?;
    let n_edges = written.n_edges_directed;
    let graph = importer.commit(&relabelling, n_edges, direction)?;
    let stages = StageReports {
        partitioning: &partitioning.report,
        edges: &written,
        rules: &config.rules,
        halos: &halos,
        rows: order,
        not_served,
    };
    ImportReport::new(&graph, stages, start)
}

/// Begins a stage, unless the import is cancelled.
fn begin(observer: &mut dyn Observer, stage: &str) -> Result<(), Error> {
    if observer.is_cancelled() {
        return Err(Error::Cancelled);
    }
    observer.stage(stage);
    Ok(())
}

/// Returns a warning for each folder beside `out` of an import to it that has not ended. They are
/// not removed: one may belong to an import that still runs.
fn leftover_warnings(out: &Path) -> Vec<String> {
    let warning = |name: String| {
        format!(
            "{} is of an import that was killed, unless it still runs; it can be deleted",
            out.with_file_name(name).display()
        )
    };
    leftover_names(out).into_iter().map(warning).collect()
}

/// Returns the names of folders that killed imports to `out` have left behind, sorted.
fn leftover_names(out: &Path) -> Vec<String> {
    let prefix = format!("{}.importing-", out.file_name().unwrap_or_default().display());
    // A folder that cannot be listed has its own error when the import begins.
    let entries = parent_of(out).read_dir().into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(&prefix)).collect();
    names.sort();
    names
}

/// Returns the folder that `path` is in.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_the_same_graph_are_named() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["g.importing-1", "g.importing-0", "gg.importing-2", "g", "g.importing"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        assert_eq!(leftover_names(&dir.path().join("g")), ["g.importing-0", "g.importing-1"]);
        assert!(leftover_names(&dir.path().join("none/g")).is_empty());
        assert!(leftover_names(Path::new("/")).is_empty());
    }
}
