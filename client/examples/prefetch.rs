//! Prepares batches ahead of the loop that uses them: a background thread samples and loads rows.
//!
//! Run with `cargo run -p lodestore-client --example prefetch`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use lodestore_client::loader::RowResidency;
use lodestore_client::prefetch::{BatchSource, Window};
use lodestore_client::{BatchLoader, ClientError, EmbeddedSource, Prefetcher};
use lodestore_graph::NodeId;
use lodestore_graph::batch::Batch;
use lodestore_graph::npy::{NpyType, NpyWriter};
use lodestore_import::{ImportConfig, Silent, import};
use lodestore_store::EmbeddedStore;

const N_NODES: u32 = 1000;

/// Batches of 50 consecutive nodes; no rows are kept between batches.
struct Consecutive;

impl BatchSource for Consecutive {
    fn n_batches(&self) -> u32 {
        N_NODES / 50
    }

    fn batch(&self, index: u32) -> Result<(Batch, RowResidency), ClientError> {
        let nodes = (index * 50..(index + 1) * 50).map(NodeId).collect();
        Ok((Batch { nodes, ..Batch::default() }, None))
    }

    fn end_of_epoch(&self, _index: u32) -> u32 {
        self.n_batches()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let store = EmbeddedStore::open(&import_ring(dir.path())?, None)?;
    // All batches have rows of one version, even if others are committed meanwhile.
    let version = store.live().version();
    let rows = Arc::new(EmbeddedSource::at(Arc::clone(store.live()), version)?);
    let loader = BatchLoader::new(rows.clone(), rows, "feat", &[])?;
    thread::scope(|scope| {
        let window = Window::joined(4);
        let mut prefetcher = Prefetcher::start(scope, Arc::new(Consecutive), loader, window, 0);
        let mut n_rows = 0;
        while let Some(batch) = prefetcher.next_batch()? {
            n_rows += batch.rows.bytes().len() / size_of::<f32>();
        }
        println!("{n_rows} rows; {:?}", prefetcher.stats());
        assert_eq!(n_rows, N_NODES as usize);
        Ok(())
    })
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
