//! Serves a small graph and pulls rows over a socket.
//!
//! Run with `cargo run -p lodestore-client --example pull`.

use std::error::Error;
use std::path::{Path, PathBuf};

use lodestore_client::{Client, ClientConfig, RowSource};
use lodestore_graph::NodeId;
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_import::{ImportConfig, Silent, import};
use lodestore_server::{Server, ServerConfig};

const N_NODES: u32 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let listen = Some("127.0.0.1:0".parse()?);
    let config =
        ServerConfig { listen, n_shards: 1, ..ServerConfig::new(import_ring(dir.path())?) };
    let server = Server::start(&config)?;

    let address = server.address().ok_or("the server listens on TCP")?.to_string();
    let client = Client::connect(&[address], ClientConfig::default())?;
    let ids: Vec<NodeId> = (0..100).map(NodeId).collect();
    let mut rows = vec![0f32; ids.len()];
    // `sync_pull` is for the rows of one batch, `vector_pull` for many rows.
    let pulled = client.sync_pull("feat", &ids, bytemuck::cast_slice_mut(&mut rows))?;
    println!("{} rows by {} requests: {:?} ...", pulled.rows, pulled.requests, &rows[..4]);
    println!("{} nodes in {} partitions", client.book().n_nodes(), client.book().n_parts());
    server.stop()?;
    Ok(())
}

/// Imports a ring of nodes whose row is their id, in two partitions.
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
