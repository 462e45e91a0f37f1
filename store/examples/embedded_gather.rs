//! Imports a small tensor into a temporary folder and gathers rows of it, without a server.
//!
//! Run with `cargo run -p lodestore-store --example embedded_gather`.

use lodestore_graph::edges::MemoryEdges;
use lodestore_graph::halo::write_halos;
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::{Direction, Topology, write_topologies};
use lodestore_graph::{NodeId, PartId};
use lodestore_store::import::TensorOptions;
use lodestore_store::source::NpySource;
use lodestore_store::verify::verify;
use lodestore_store::{EmbeddedStore, Importer};

const N_NODES: u32 = 1000;
const WIDTH: u32 = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let features = dir.path().join("features.npy");
    write_features(&features)?;

    // Two partitions: even and odd nodes. Each gets one contiguous range of new ids.
    let owners: Vec<PartId> = (0..N_NODES).map(|node| PartId((node % 2) as u16)).collect();
    let nodes = Relabelling::new(&owners, 2)?;
    let ring = MemoryEdges::new((0..N_NODES).map(|node| [node, (node + 1) % N_NODES]).collect())?;

    let out = dir.path().join("graph");
    let mut importer = Importer::begin(&out)?;
    let (book, uuid) = (&nodes.book, *importer.uuid().as_bytes());
    for part in book.parts() {
        importer.part_dir(part)?;
    }
    write_topologies(&ring, &nodes, Direction::Undirected, uuid, &|part| {
        importer.topology_path(part)
    })?;
    let topology = Topology::from_edges(&ring, &nodes, Direction::Undirected)?;
    write_halos(&topology, book, uuid, &|part| importer.halo_path(part))?;
    let source = NpySource::open(&features)?;
    let options = TensorOptions::default();
    importer.add_tensor("feat", &source, options, &nodes, &mut |_, _| {})?;
    importer.commit(&nodes, topology.n_edges(), Direction::Undirected)?;

    // The rows of the input's nodes 7, 4 and 7 again.
    let external = [7u32, 4, 7];
    let ids = external.map(|node| NodeId(nodes.internal_of[node as usize]));
    let store = EmbeddedStore::open(&out, None)?;
    let mut rows = vec![0u8; ids.len() * store.tensor("feat")?.row_bytes()];
    store.gather("feat", &ids, &mut rows)?;
    for (row, node) in rows.chunks_exact(WIDTH as usize * 4).zip(external) {
        assert_eq!(row, feature_row(node), "the row that was written");
        println!("node {node} (id {}): {} bytes", nodes.internal_of[node as usize], row.len());
    }
    let report = verify(&out, &mut |_, _| {})?;
    println!("verify: ok = {}, {} pages of rows", report.ok, report.pages);
    Ok(())
}

fn write_features(path: &std::path::Path) -> Result<(), lodestore_graph::npy::NpyError> {
    let shape = [u64::from(N_NODES), u64::from(WIDTH)];
    let mut writer = NpyWriter::create(path, NpyType::F32, &shape)?;
    for node in 0..N_NODES {
        writer.write_all(&feature_row(node))?;
    }
    writer.finish()
}

fn feature_row(node: u32) -> Vec<u8> {
    (0..WIDTH).flat_map(|column| (node as f32 + column as f32 / 100.0).to_le_bytes()).collect()
}
