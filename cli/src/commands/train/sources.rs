//! Where each worker's rows come from, and which version they are of.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use lodestore_client::keep::policy_inputs::{PolicyInputs, Reach};
use lodestore_client::source::VersionTag;
use lodestore_client::{Client, ClientConfig, ClientError, EmbeddedSource, Pin, RowSource};
use lodestore_graph::PartId;
use lodestore_graph::topology::Topology;
use lodestore_store::{Graph, GraphHandle, OpenMode, OpenOptions, StoreError};
use lodestore_trainer::{RowVersions, Strategy, WorkerSources};

use super::TrainRun;
use super::local_workers::LocalWorkers;
use super::tiers::Tiers;

/// The sources of the workers of a process.
pub(super) struct Sources {
    pub(super) workers: Vec<WorkerSources>,
    pub(super) tiers: Tiers,
    pub(super) versions: RowVersions,
    /// The servers, if there are any.
    pub(super) client: Option<Arc<Client>>,
}

/// Opens the sources of the workers here. Own partitions, and they alone, come from the graph's
/// files. All other rows come through the tiers from the servers, or from a store over the whole
/// graph when no server is named. All are of one version, unless the run may mix versions.
pub(super) fn open(
    run: &TrainRun,
    graph: &Graph,
    topology: &Topology,
    here: &LocalWorkers,
) -> Result<Sources> {
    let n_workers = run.train.workers;
    let own = here.workers.iter().map(|&worker| own_files(run, graph, worker));
    let own: Vec<Arc<GraphHandle>> = own.collect::<Result<_>>()?;
    let client = match &run.connect[..] {
        [] => None,
        connect => Some(Arc::new(connected(graph, connect, run.client.clone())?)),
    };
    let (own, remote) = match &client {
        None => {
            let remote = newest_of_files(graph, &run.store)?;
            let version = remote.pinned_version();
            (at_version(own, version)?, Arc::new(remote) as Arc<dyn RowSource>)
        }
        Some(client) => {
            let version = version_of_own(run, graph, &own, client)?;
            (at_version(own, version)?, Arc::clone(client) as Arc<dyn RowSource>)
        }
    };
    let first = own.first().and_then(|source| source.pinned_version());
    let versions = RowVersions { own: first, remote: remote.pinned_version() };
    let tensor = &run.train.feature_tensor;
    let reach = match &run.train.strategy {
        Strategy::Full(_) => Reach::Halos,
        _ => Reach::All,
    };
    let known = PolicyInputs::new(graph, topology, n_workers, reach);
    let mut tiers = Tiers::new(run.tiers, &remote, tensor, &known, here)?;
    let mut workers: Vec<WorkerSources> =
        own.into_iter().map(|own| WorkerSources::new(own, Arc::clone(&remote))).collect();
    match run.buffer {
        Some(choice) => {
            let of_worker = |&worker| tiers.of_buffer(choice, worker, &remote, tensor, &known);
            let buffers = here.workers.iter().map(of_worker).collect::<Result<_>>()?;
            let filled = tiers.fill(buffers, &remote, tensor)?;
            let workers_and_buffers = workers.into_iter().zip(filled);
            workers = workers_and_buffers
                .map(|(sources, (buffer, pulled))| sources.with_buffer(buffer, pulled))
                .collect();
        }
        None => {
            for (sources, &worker) in workers.iter_mut().zip(&here.workers) {
                sources.remote = tiers.of_worker(worker, &remote, tensor, &known)?;
            }
        }
    }
    Ok(Sources { workers, tiers, versions, client })
}

/// Opens the files of a worker's own partitions.
fn own_files(run: &TrainRun, graph: &Graph, worker: u32) -> Result<Arc<GraphHandle>> {
    let parts = graph.book().parts();
    let owned: Vec<PartId> =
        parts.filter(|part| u32::from(part.0) % run.train.workers == worker).collect();
    let own = GraphHandle::open(graph.clone(), Some(&owned), OpenMode::Read, &run.store)?;
    Ok(Arc::new(own))
}

/// Returns own rows at a version, or at the newest of the files.
fn at_version(
    own: Vec<Arc<GraphHandle>>,
    version: Option<VersionTag>,
) -> Result<Vec<Arc<dyn RowSource>>> {
    let at = |own: Arc<GraphHandle>| -> Result<Arc<dyn RowSource>> {
        let number = version.map_or(own.version(), |version| version.number);
        Ok(Arc::new(EmbeddedSource::at(own, number)?))
    };
    own.into_iter().map(at).collect()
}

/// Returns the version that own rows are to be of: that of the servers. `None` where the run may mix
/// versions, for the newest of the files.
fn version_of_own(
    run: &TrainRun,
    graph: &Graph,
    own: &[Arc<GraphHandle>],
    client: &Client,
) -> Result<Option<VersionTag>> {
    let Some(served) = client.pinned_version().filter(|_| !run.train.mixed_versions) else {
        return Ok(None);
    };
    let dir = graph.dir().display();
    for own in own {
        let newest = EmbeddedSource::version_of(own, own.version())?;
        if newest.may_be(served) {
            continue;
        }
        if !run.pins_servers {
            bail!(
                "the files of {dir} are at version {newest}, its servers at {served}: a batch would have \
                 rows of both; train on version {served} of both (--pin), bring the files to it (`lode \
                 pull`, `lode serve --follow`), or mix them (--mixed-versions)"
            );
        }
        match EmbeddedSource::at(Arc::clone(own), served.number) {
            Ok(source) if source.pinned_version().is_some_and(|it| it.may_be(served)) => {}
            Ok(_) | Err(ClientError::Store(StoreError::NoVersion { .. })) => bail!(
                "--pin: the files of {dir} have no version {served}, which its servers have committed; \
                 the newest there is {newest}; bring the files to it (`lode pull`, `lode serve --follow`), \
                 or mix versions (--mixed-versions)"
            ),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(served))
}

/// Connects to servers, which must have `graph`.
fn connected(graph: &Graph, connect: &[String], config: ClientConfig) -> Result<Client> {
    let client = Client::connect(connect, config)?;
    if client.graph() != *graph.uuid().as_bytes() {
        let first = connect.first().map_or("", String::as_str);
        bail!(
            "{first} does not serve the graph in {}; name servers of this graph (uuid {})",
            graph.dir().display(),
            graph.uuid()
        );
    }
    Ok(client)
}

/// Returns the rows of the newest version of the files, whatever is committed later.
fn newest_of_files(graph: &Graph, options: &OpenOptions) -> Result<EmbeddedSource> {
    let live = GraphHandle::open(graph.clone(), None, OpenMode::Read, options)?;
    let version = live.version();
    let newest = EmbeddedSource::at(Arc::new(live), version);
    newest.with_context(|| format!("version {version} of {}", graph.dir().display()))
}

/// Returns the rows of the servers at `connect`, which must have `graph`, or without any of its
/// files: those of the newest version, whatever is committed later.
pub(crate) fn rows_of(
    graph: &Graph,
    connect: &[String],
    config: ClientConfig,
    options: &OpenOptions,
) -> Result<Arc<dyn RowSource>> {
    if connect.is_empty() {
        return Ok(Arc::new(newest_of_files(graph, options)?));
    }
    let config = ClientConfig { pin: Some(Pin::Newest), ..config };
    Ok(Arc::new(connected(graph, connect, config)?))
}
