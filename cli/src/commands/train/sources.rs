//! Where each worker's rows come from.

use std::sync::Arc;

use anyhow::{Result, bail};
use lodestore_cache::{PolicyKind, Tier};
use lodestore_client::{Client, EmbeddedSource, RowSource, TieredSource};
use lodestore_graph::PartId;
use lodestore_store::{EmbeddedStore, Graph};
use lodestore_trainer::WorkerSources;

use super::TrainRun;

/// Own partitions from the graph's files, and nothing else from there; all other rows from the
/// servers, or from a store over the whole graph when no server is named.
pub(super) fn open(run: &TrainRun, graph: &Graph) -> Result<Vec<WorkerSources>> {
    let remote = remote(run, graph)?;
    let n_workers = run.train.workers;
    (0..n_workers)
        .map(|worker| {
            let parts = graph.book().parts();
            let owned: Vec<PartId> =
                parts.filter(|p| u32::from(p.0) % n_workers == worker).collect();
            let store = EmbeddedStore::with(graph.clone(), Some(&owned), &run.store)?;
            let local: Arc<dyn RowSource> = Arc::new(EmbeddedSource::new(store));
            let remote = match run.tier {
                Some((n_bytes, policy)) => {
                    tiered(&remote, &run.train.feature_tensor, n_bytes, policy)?
                }
                None => Arc::clone(&remote),
            };
            Ok(WorkerSources { local, remote })
        })
        .collect()
}

/// The same rows through a tier of a worker's own.
fn tiered(
    remote: &Arc<dyn RowSource>,
    tensor: &str,
    n_bytes: u64,
    policy: PolicyKind,
) -> Result<Arc<dyn RowSource>> {
    let row_bytes = remote.tensor(tensor)?.row_bytes();
    let n_bytes = usize::try_from(n_bytes).unwrap_or(usize::MAX);
    let tier = Tier::new(n_bytes, row_bytes, remote.book().n_nodes(), policy)?;
    Ok(Arc::new(TieredSource::new(Arc::clone(remote), tensor, tier)?))
}

fn remote(run: &TrainRun, graph: &Graph) -> Result<Arc<dyn RowSource>> {
    if run.connect.is_empty() {
        let store = EmbeddedStore::with(graph.clone(), None, &run.store)?;
        return Ok(Arc::new(EmbeddedSource::new(store)));
    }
    let client = Client::connect(&run.connect, run.client)?;
    if client.graph() != *graph.uuid().as_bytes() {
        bail!(
            "{} does not serve the graph in {}; name servers of this graph (uuid {})",
            run.connect[0],
            graph.dir().display(),
            graph.uuid()
        );
    }
    Ok(Arc::new(client))
}
