//! Historical embeddings as in GNNAutoScale (Fey et al. 2021, arXiv 2106.05609). A worker pushes
//! the first-layer outputs of each batch to a history on the server, and pulls those of
//! out-of-batch neighbours from it. Pulled rows may be up to one epoch old.
//!
//! Two workers own two partitions each, and publish the rows of these under claims. The weights
//! change in the first epochs and are constant afterwards. One epoch after the last change, the
//! history and thus the outputs are exact (Lemma 1 of the paper).
//!
//! Run with `cargo run -p lodestore-client --example historical_embeddings`.

use std::error::Error;

use lodestore_client::volatile::{Stamp, StampWanted, VolatileSource};
use lodestore_client::{Client, ClientConfig};
use lodestore_graph::{NodeId, PartId, PartitionBook};
use lodestore_server::{Server, ServerConfig};
use testing::features::{feature_graph, row_of};

const N_NODES: u32 = 1200;
const N_PARTS: u16 = 4;
const N_WORKERS: u16 = 2;
const N_FEATURES: usize = 8;
const N_HIDDEN: usize = 16;
/// The last epoch that changes the weights.
const LAST_CHANGE: Stamp = 4;
const N_EPOCHS: Stamp = 6;

/// Results of a worker in one epoch.
struct Outcome {
    epoch: Stamp,
    /// Rows missing from the history.
    n_lacking: usize,
    /// Largest difference between an output and the output of the whole graph with the same
    /// weights.
    error: f32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let path = feature_graph(dir.path(), N_NODES, N_FEATURES as u32, N_PARTS);
    let unix = dir.path().join("lode.sock");
    // `lode serve GRAPH --unix lode.sock --volatile h1:16xf32`.
    let config = ServerConfig {
        unix: Some(unix.clone()),
        volatile: vec![format!("h1:{N_HIDDEN}xf32").parse()?],
        ..ServerConfig::new(path)
    };
    let server = Server::start(&config)?;
    let address = format!("unix:{}", unix.display());
    let truth: Vec<Vec<f32>> = (1..=N_EPOCHS).map(whole_graph).collect();
    let outcomes = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..N_WORKERS)
            .map(|worker| {
                scope.spawn({
                    let (address, truth) = (&address, &truth);
                    move || work(worker, address, truth).map_err(|error| error.to_string())
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).collect::<Vec<_>>()
    });
    for (worker, outcomes) in outcomes.into_iter().enumerate() {
        for Outcome { epoch, n_lacking, error } in outcomes? {
            println!("worker {worker}, epoch {epoch}: {n_lacking} lacking, error {error:.6}");
            assert_eq!(n_lacking > 0, epoch == 1, "after the first epoch no row is missing");
            assert!(error > 1e-3 || epoch > LAST_CHANGE, "the history is older than the weights");
            assert!(error < 1e-5 || epoch <= LAST_CHANGE + 1, "the history is up to date");
        }
    }
    server.stop()?;
    Ok(())
}

/// Trains the batches of a worker, which are its partitions, in every epoch.
fn work(worker: u16, address: &str, truth: &[Vec<f32>]) -> Result<Vec<Outcome>, Box<dyn Error>> {
    let client = Client::connect(&[address], ClientConfig::default())?;
    let book = lodestore_client::RowSource::book(&client).clone();
    let own: Vec<PartId> = book.parts().filter(|part| part.0 % N_WORKERS == worker).collect();
    let mut publisher = client.publisher();
    for &part in &own {
        publisher.claim("h1", &[book.range(part)])?;
    }
    let mut outcomes = Vec::new();
    for epoch in 1..=N_EPOCHS {
        let mut outcome = Outcome { epoch, n_lacking: 0, error: 0.0 };
        for &part in &own {
            let batch: Vec<NodeId> = book.range(part).map(NodeId).collect();
            let hidden = first_layer(&client, &batch, epoch)?;
            publisher.publish("h1", &batch, bytemuck::cast_slice(&hidden), epoch)?;
            let n_lacking =
                second_layer(&client, (&book, part), &hidden, epoch, |node, output| {
                    let difference = (output - truth[epoch as usize - 1][node.0 as usize]).abs();
                    outcome.error = outcome.error.max(difference);
                })?;
            outcome.n_lacking += n_lacking;
        }
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// Returns the first-layer outputs of a batch. Their inputs are features, which never change.
fn first_layer(
    client: &Client,
    batch: &[NodeId],
    epoch: Stamp,
) -> Result<Vec<f32>, Box<dyn Error>> {
    let inputs: Vec<NodeId> = batch.iter().flat_map(|&node| neighbours(node)).collect();
    let mut features = vec![0f32; inputs.len() * N_FEATURES];
    client.sync_pull("feat", &inputs, bytemuck::cast_slice_mut(&mut features))?;
    let per_node = features.chunks_exact(neighbours(NodeId(0)).len() * N_FEATURES);
    Ok(per_node.flat_map(|features| hidden_of(features, epoch)).collect())
}

/// Computes the second-layer outputs of a batch whose first-layer outputs are `hidden`, with those
/// of other nodes from the history. Returns the number of rows missing from the history.
fn second_layer(
    client: &Client,
    (book, part): (&PartitionBook, PartId),
    hidden: &[f32],
    epoch: Stamp,
    mut tell: impl FnMut(NodeId, f32),
) -> Result<usize, Box<dyn Error>> {
    let range = book.range(part);
    let is_own = |node: &NodeId| range.contains(&node.0);
    let mut others: Vec<NodeId> =
        range.clone().flat_map(|node| neighbours(NodeId(node))).filter(|it| !is_own(it)).collect();
    others.sort_unstable();
    others.dedup();
    // Rows of the previous epoch or later; in the first epoch there are none, and zeros are
    // accepted.
    let wanted = match epoch {
        1 => StampWanted::now(0),
        _ => StampWanted::awaited(epoch - 1),
    };
    let mut history = vec![0f32; others.len() * N_HIDDEN];
    let rows = bytemuck::cast_slice_mut(&mut history);
    let pulled = client.pull_volatile("h1", &others, wanted, rows)?;
    for node in range.clone().map(NodeId) {
        let row = |it: NodeId| match is_own(&it) {
            true => &hidden[(it.0 - range.start) as usize * N_HIDDEN..][..N_HIDDEN],
            false => {
                let at = others.binary_search(&it).expect("all neighbours were pulled");
                &history[at * N_HIDDEN..][..N_HIDDEN]
            }
        };
        tell(node, output_of(neighbours(node).map(row), epoch));
    }
    Ok(pulled.lacking().len())
}

/// Returns the outputs of all nodes with the weights of an epoch, computed without a history.
fn whole_graph(epoch: Stamp) -> Vec<f32> {
    let features = |node: NodeId| {
        neighbours(node).into_iter().flat_map(|it| {
            let row = row_of(it, N_FEATURES as u32);
            row.chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect::<Vec<_>>()
        })
    };
    let hidden: Vec<Vec<f32>> = (0..N_NODES)
        .map(|node| hidden_of(&features(NodeId(node)).collect::<Vec<_>>(), epoch))
        .collect();
    let output =
        |node| output_of(neighbours(NodeId(node)).map(|it| &hidden[it.0 as usize][..]), epoch);
    (0..N_NODES).map(output).collect()
}

/// Returns a node and its neighbours. The graph is a ring with chords, so that there are edges
/// between partitions.
fn neighbours(NodeId(node): NodeId) -> [NodeId; 4] {
    [0, 1, N_NODES - 1, N_NODES / 3].map(|step| NodeId((node + step) % N_NODES))
}

/// Returns the ReLU of a weighted mean over neighbours.
fn hidden_of(features: &[f32], epoch: Stamp) -> Vec<f32> {
    let n = (features.len() / N_FEATURES) as f32;
    let mean: Vec<f32> = (0..N_FEATURES)
        .map(|at| features.iter().skip(at).step_by(N_FEATURES).sum::<f32>() / n / N_NODES as f32)
        .collect();
    let unit = |of: usize| {
        let sum = mean.iter().zip(0..).map(|(x, at)| x * weight(at, of, epoch)).sum::<f32>();
        sum.max(0.0)
    };
    (0..N_HIDDEN).map(unit).collect()
}

/// Returns a weighted mean over neighbours.
fn output_of<'a>(rows: impl IntoIterator<Item = &'a [f32]>, epoch: Stamp) -> f32 {
    let (mut sum, mut n) = (0.0, 0.0);
    for row in rows {
        sum += row.iter().zip(0..).map(|(x, at)| x * weight(at, N_HIDDEN, epoch)).sum::<f32>();
        n += 1.0;
    }
    sum / n
}

/// Returns a weight; it changes with the epoch up to `LAST_CHANGE`.
fn weight(from: usize, to: usize, epoch: Stamp) -> f32 {
    let phase = (from * 7 + to * 13) as f32 + epoch.min(LAST_CHANGE) as f32 * 0.4;
    phase.sin() + 0.3
}
