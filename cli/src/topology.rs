//! Topology and halos of a graph, from the files of its partitions.

use std::path::PathBuf;

use anyhow::Result;
use lodestore_graph::halo::Halo;
use lodestore_graph::topology::Topology;
use lodestore_store::Graph;

/// Opens the files of all partitions.
pub fn open_topology(graph: &Graph) -> Result<Topology> {
    let (book, uuid) = (graph.book(), *graph.uuid().as_bytes());
    let paths: Vec<PathBuf> = book.parts().map(|part| graph.topology_path(part)).collect();
    Ok(Topology::open(&paths, book, uuid)?)
}

/// Returns the overlap ratio R(v) of each node (CaPGNN, Eq. 2): the number of halos that it is in.
pub(crate) fn overlap_ratios(graph: &Graph) -> Result<Vec<u16>> {
    let (book, uuid) = (graph.book(), *graph.uuid().as_bytes());
    let mut ratios = vec![0u16; book.n_nodes() as usize];
    for part in book.parts() {
        let halo = Halo::open(&graph.halo_path(part), book, part, uuid)?;
        for (id, ratio) in halo.ids.iter().zip(halo.overlap) {
            ratios[id.index()] = ratio;
        }
    }
    Ok(ratios)
}
