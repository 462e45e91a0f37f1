//! Puts a memory tier before a source, so that repeated pulls do not read the same rows again.
//!
//! Run with `cargo run -p lodestore-client --example cached_source`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_cache::shared::SharedSettings;
use lodestore_cache::{PolicySpec, SharedTier};
use lodestore_client::{EmbeddedSource, PullKind, RowSource, TieredSource};
use lodestore_graph::NodeId;
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_import::{ImportConfig, Silent, import};
use lodestore_store::EmbeddedStore;

const N_NODES: u32 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let store = EmbeddedStore::open(&import_ring(dir.path())?, None)?;
    // The rows in the tier belong to one version, even if others are committed meanwhile.
    let version = store.live().version();
    let rows = Arc::new(EmbeddedSource::at(Arc::clone(store.live()), version)?);
    let settings = SharedSettings::default();
    let row_bytes = rows.tensor("feat")?.row_bytes();
    let tier = SharedTier::new(64 << 10, row_bytes, N_NODES, &PolicySpec::S3Fifo, settings)?;
    let source = TieredSource::new(rows, "feat", Arc::new(tier))?;

    let ids: Vec<NodeId> = (0..100).map(NodeId).collect();
    let mut out = vec![0f32; ids.len()];
    for round in 0..3 {
        let pulled =
            source.pull("feat", &ids, bytemuck::cast_slice_mut(&mut out), PullKind::Sync)?;
        println!("round {round}: {} rows read, {} found", pulled.rows, pulled.found.host);
    }
    let stats = source.tier().stats();
    assert!(stats.hits >= ids.len() as u64);
    println!("{} hits, {} misses in {} bytes", stats.hits, stats.misses, source.tier().bytes());
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
