//! Imports a small graph into a temporary folder and gathers rows of it, without a server.
//!
//! Run with `cargo run -p lodestore-store --example embedded_gather`.

use std::error::Error;
use std::path::{Path, PathBuf};

use lodestore_graph::NodeId;
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_import::{ImportConfig, Silent, import};
use lodestore_store::EmbeddedStore;
use lodestore_store::import::EXTERNAL_ID_TENSOR;
use lodestore_store::verify::verify;

const N_NODES: u32 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let graph = import_ring(dir.path())?;

    // An import orders nodes by partition; the tensor `external_id` has their numbers before.
    let ids = [NodeId(7), NodeId(4), NodeId(7)];
    let store = EmbeddedStore::open(&graph, None)?;
    let (mut rows, mut external) = (vec![0f32; ids.len()], vec![0i64; ids.len()]);
    store.gather("feat", &ids, bytemuck::cast_slice_mut(&mut rows))?;
    store.gather(EXTERNAL_ID_TENSOR, &ids, bytemuck::cast_slice_mut(&mut external))?;
    for (row, external) in rows.into_iter().zip(external) {
        assert_eq!(row, external as f32, "the row that was imported");
        println!("node {external} of the input has row {row}");
    }
    let report = verify(&graph, &mut |_, _| {})?;
    println!("verify: ok = {}, {} pages of rows", report.ok, report.pages);
    Ok(())
}

/// Imports a ring of nodes whose row is their number, in two partitions.
fn import_ring(dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let (edges, features, graph) = (dir.join("e.npy"), dir.join("x.npy"), dir.join("graph"));
    let ring: Vec<u32> = (0..N_NODES).flat_map(|node| [node, (node + 1) % N_NODES]).collect();
    let rows: Vec<f32> = (0..N_NODES).map(|node| node as f32).collect();
    let shape = [u64::from(N_NODES), 2];
    NpyWriter::write(&edges, NpyType::U32, &shape, bytemuck::cast_slice(&ring))?;
    NpyWriter::write(&features, NpyType::F32, &shape[..1], bytemuck::cast_slice(&rows))?;
    import(&ImportConfig::new(edges, 2, &graph).with_tensor("feat", features), &mut Silent)?;
    Ok(graph)
}
