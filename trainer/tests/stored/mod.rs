//! A graph of the data folder, imported into a temporary folder and opened.

use std::{path::Path, path::PathBuf, sync::Arc};

use lodestore_client::{EmbeddedSource, RowSource};
use lodestore_graph::{
    edges::{EdgeStream, NpyEdges},
    halo::write_halos,
    partition::{Algorithm, SpringParams, partition},
    relabel::Relabelling,
    topology::{Topology, write_topologies},
};
use lodestore_store::{EmbeddedStore, Graph, Importer, NanPolicy, open_source};
use lodestore_trainer::{
    RowsFrom, TrainConfig, TrainError, TrainGraph, TrainReport, WorkerSources, train,
};

pub(crate) struct Stored {
    graph: Graph,
    topology: Topology,
    source: Arc<dyn RowSource>,
}

/// The folder of a graph of the data folder; says so and gives none when it is not there.
pub(crate) fn data(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("LODE_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
        PathBuf::from,
    );
    let dir = root.join(name);
    if dir.is_dir() {
        return Some(dir);
    }
    eprintln!("skipped: no graph `{name}` in {}; set LODE_DATA", root.display());
    None
}

/// Imports edges (undirected), features, labels and splits of `data` to `out`.
pub(crate) fn import(data: &Path, features: &str, n_parts: u16, out: &Path) -> Stored {
    let features = open_source(&data.join(features)).unwrap();
    let edges = NpyEdges::open(&data.join("edges.npy"), Some(features.n_rows() as u32)).unwrap();
    let spring = Algorithm::Spring(SpringParams::default());
    let parts = partition(&edges, edges.n_nodes(), n_parts, true, &spring).unwrap();
    let nodes = Relabelling::new(&parts.assignment, n_parts).unwrap();
    let (book, order) = (&nodes.book, &nodes.external_of);
    let mut importer = Importer::begin(out).unwrap();
    let uuid = *importer.uuid().as_bytes();
    for part in book.parts() {
        importer.part_dir(part).unwrap();
    }
    write_topologies(&edges, &nodes, true, uuid, &|p| importer.topology_path(p)).unwrap();
    let paths: Vec<PathBuf> = book.parts().map(|p| importer.topology_path(p)).collect();
    let topology = Topology::open(&paths, book, uuid).unwrap();
    write_halos(&topology, book, uuid, &|p| importer.halo_path(p)).unwrap();
    let labels = open_source(&data.join("labels.npy")).unwrap();
    let splits = open_source(&data.join("split.npy")).unwrap();
    for (name, source) in [("feat", &features), ("label", &labels), ("split", &splits)] {
        let nan = NanPolicy::Refuse;
        importer.add_tensor(name, &**source, nan, order, book, &mut |_, _| {}).unwrap();
    }
    let graph = importer.commit(order, book, topology.n_edges(), true).unwrap();
    let source = Arc::new(EmbeddedSource::new(EmbeddedStore::open(out, None).unwrap()));
    Stored { graph, topology, source }
}

impl Stored {
    pub(crate) fn train(&self, config: &TrainConfig) -> Result<TrainReport, TrainError> {
        let one =
            WorkerSources { local: Arc::clone(&self.source), remote: Arc::clone(&self.source) };
        let sources = vec![one; config.workers as usize];
        let graph = TrainGraph {
            topology: &self.topology,
            book: self.graph.book(),
            uuid: *self.graph.meta().uuid.as_bytes(),
            rows_from: RowsFrom::Embedded,
        };
        train(config, &graph, &sources, &mut |_| ())
    }
}
