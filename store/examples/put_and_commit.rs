//! Puts rows into a graph, commits them, and reads the version before and after.
//!
//! Run with `cargo run -p lodestore-store --example put_and_commit`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::NodeId;
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_import::{ImportConfig, Silent, import};
use lodestore_store::{EmbeddedStore, Graph, GraphHandle, OpenMode, OpenOptions, View};

const N_NODES: u32 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let graph = Graph::open(&import_ring(dir.path())?)?;
    let handle =
        Arc::new(GraphHandle::open(graph, None, OpenMode::Write, &OpenOptions::default())?);
    let row_of = |view: View| -> Result<f32, Box<dyn Error>> {
        let mut row = [0f32];
        let store = EmbeddedStore::from_handle(Arc::clone(&handle), view)?;
        store.gather("feat", &[NodeId(7)], bytemuck::cast_slice_mut(&mut row))?;
        Ok(row[0])
    };
    let (before, imported) = (row_of(View::Latest)?, handle.version());

    // A put is durable when it returns, and visible after the commit.
    handle.put_rows("feat", &[NodeId(7)], bytemuck::bytes_of(&0.5f32))?;
    assert_eq!(row_of(View::Latest)?, before);
    let committed = handle.commit_version()?;
    assert_eq!(row_of(View::Latest)?, 0.5);
    assert_eq!(row_of(View::At(imported))?, before, "a version never changes");
    println!("version {imported}: {before}; version {committed}: {}", row_of(View::Latest)?);
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
