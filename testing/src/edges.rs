//! The lists of edges of a graph that was imported without them: no follower takes one without.

use std::path::{Path, PathBuf};

use lodestore_graph::edges::MemoryEdges;
use lodestore_graph::halo::write_halos;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::{Direction, Topology, write_topologies};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::Graph;

/// Returns each partition of a graph its lists; the last node has an edge to itself.
pub fn add_edges(graph: &Path) {
    let graph = Graph::open(graph).unwrap();
    let (book, uuid) = (graph.book(), *graph.meta().uuid.as_bytes());
    let all = (0..book.n_nodes()).map(NodeId);
    let owners: Vec<PartId> = all.map(|id| book.part_of(id).unwrap()).collect();
    let nodes = Relabelling::new(&owners, book.n_parts()).unwrap();
    let last = book.n_nodes() - 1;
    let edges = MemoryEdges::new(vec![[last, last]]).unwrap();
    let path_of = |part| graph.topology_path(part);
    write_topologies(&edges, &nodes, Direction::Directed, uuid, &path_of).unwrap();
    let paths: Vec<PathBuf> = book.parts().map(path_of).collect();
    let topology = Topology::open(&paths, book, uuid).unwrap();
    write_halos(&topology, book, uuid, &|part| graph.halo_path(part)).unwrap();
}
