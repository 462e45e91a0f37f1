//! Where each worker's rows come from.

use std::sync::Arc;

use anyhow::{Result, bail};
use lodestore_client::source::PullStats;
use lodestore_client::{Client, ClientConfig, EmbeddedSource, RowSource};
use lodestore_graph::PartId;
use lodestore_graph::topology::Topology;
use lodestore_store::{EmbeddedStore, Graph, OpenOptions};
use lodestore_trainer::{Strategy, WorkerSources};

use super::TrainRun;
use super::policy_inputs::{LocalWorkers, PolicyInputs, Reach};
use super::tiers::Tiers;

/// Opens the sources of the workers here. Own partitions, and they alone, come from the graph's
/// files. All other rows come through the tiers from the servers, or from a store over the whole
/// graph when no server is named.
pub(super) fn open(
    run: &TrainRun,
    graph: &Graph,
    topology: &Topology,
    here: LocalWorkers,
) -> Result<(Vec<WorkerSources>, Tiers)> {
    let remote = rows_of(graph, &run.connect, run.client.clone(), &run.store)?;
    let (n_workers, tensor) = (run.train.workers, &run.train.feature_tensor);
    let reach = match run.train.strategy {
        Strategy::Full => Reach::Halos,
        _ => Reach::All,
    };
    let known = PolicyInputs::new(graph, topology, n_workers, here, reach);
    let mut tiers = Tiers::new(run.tiers, &remote, tensor, &known)?;
    let workers = &known.here.workers;
    let before: Vec<(Arc<dyn RowSource>, PullStats)> = match run.buffer {
        Some(choice) => {
            let of_worker = |&worker| tiers.of_buffer(choice, worker, &remote, tensor, &known);
            let buffers = workers.iter().map(of_worker).collect::<Result<_>>()?;
            tiers.fill(buffers, &remote, tensor)?
        }
        None => {
            let of_worker = |&worker| {
                Ok((tiers.of_worker(worker, &remote, tensor, &known)?, PullStats::default()))
            };
            workers.iter().map(of_worker).collect::<Result<_>>()?
        }
    };
    let mut sources = Vec::new();
    for (&worker, (of_worker, filled)) in workers.iter().zip(before) {
        let parts = graph.book().parts();
        let owned: Vec<PartId> = parts.filter(|p| u32::from(p.0) % n_workers == worker).collect();
        let store = EmbeddedStore::with(graph.clone(), Some(&owned), &run.store)?;
        let local: Arc<dyn RowSource> = Arc::new(EmbeddedSource::new(store));
        let untiered = Arc::clone(&remote);
        sources.push(WorkerSources { local, remote: of_worker, untiered, filled });
    }
    Ok((sources, tiers))
}

/// Returns the rows of the servers at `connect`, which must have `graph`, or without any of its
/// files.
pub(crate) fn rows_of(
    graph: &Graph,
    connect: &[String],
    config: ClientConfig,
    options: &OpenOptions,
) -> Result<Arc<dyn RowSource>> {
    let [first, ..] = connect else {
        let store = EmbeddedStore::with(graph.clone(), None, options)?;
        return Ok(Arc::new(EmbeddedSource::new(store)));
    };
    let client = Client::connect(connect, config)?;
    if client.graph() != *graph.uuid().as_bytes() {
        bail!(
            "{first} does not serve the graph in {}; name servers of this graph (uuid {})",
            graph.dir().display(),
            graph.uuid()
        );
    }
    Ok(Arc::new(client))
}
