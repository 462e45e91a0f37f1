//! The topology of a graph.

use std::path::PathBuf;

use anyhow::Result;
use lodestore_graph::topology::Topology;
use lodestore_store::Graph;

/// Opens the files of all partitions.
pub fn open_topology(graph: &Graph) -> Result<Topology> {
    let (book, uuid) = (graph.book(), *graph.uuid().as_bytes());
    let paths: Vec<PathBuf> = book.parts().map(|part| graph.topology_path(part)).collect();
    Ok(Topology::open(&paths, book, uuid)?)
}
