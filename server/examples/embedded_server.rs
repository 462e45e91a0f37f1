//! Runs a server inside another program, as a trainer that serves its own partition does.
//!
//! Run with `cargo run -p lodestore-server --example embedded_server`.

use std::error::Error;
use std::path::{Path, PathBuf};

use lodestore_graph::PartId;
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_import::{ImportConfig, Silent, import};
use lodestore_server::{PolicyKind, Server, ServerConfig};

const N_NODES: u32 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let config = ServerConfig {
        parts: vec![PartId(0)],
        listen: Some("127.0.0.1:0".parse()?),
        metrics: Some("127.0.0.1:0".parse()?),
        n_shards: 1,
        tier_bytes: 1 << 20,
        policy: PolicyKind::S3Fifo,
        ..ServerConfig::new(import_ring(dir.path())?)
    };
    // The server runs on its own threads until it is stopped or dropped.
    let server = Server::start(&config)?;
    println!("rows of {:?} at {:?}", server.parts(), server.address());
    println!("metrics at {:?}, version {}", server.metrics(), server.version());
    assert_eq!(server.n_shards(), 1);
    server.stop()?;
    Ok(())
}

/// Imports a ring of nodes in two partitions; the row of a node is its number.
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
