//! The client of a cluster of servers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use lodestore_graph::{NodeId, PartitionBook};
pub use lodestore_schema::stats::{ServerStats, ShardStats, UpdateStats, VolatileStats};

use crate::address::Address;
use crate::cluster::{ClusterMap, EtcdAccess};
use crate::error::ClientError;
use crate::route::Bucket;
use crate::security::Security;
use crate::source::{PullKind, PullStats, RowSource, TensorInfo, VersionTag, check_positions};
use describe::{stats, tensor_info};
use floors::Floors;
use hedges::Hedges;
use pin::Pinned;
use pull::{AttemptStats, Pull};
use put::Put;
use retry::RetryBudget;

mod call_versions;
mod cluster_view;
mod describe;
mod discovery;
mod floors;
mod hedges;
mod members;
mod parallel;
mod pin;
mod pull;
mod put;
mod request;
mod retry;
mod round;
mod tensor;
#[cfg(test)]
mod tests;
mod version;
mod volatile;

use cluster_view::CurrentView;
pub(crate) use cluster_view::{ClusterView, SharingMode};
pub(crate) use describe::{ask_server, describe};
pub use pin::Pin;
pub use put::PutStats;
pub use tensor::RemoteTensor;
pub use version::{CommitOutcome, CompactionRun};

/// Settings of a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Time limit of one pull, put or commit, retries included, and of connecting to all servers.
    pub deadline: Duration,
    /// Attempts of an operation when a server fails. An overloaded server is retried until the
    /// deadline, and so is a server that refuses connections, since it may be restarting; with 1
    /// attempt, only the overloaded one.
    pub attempts: u32,
    /// Credentials that the client presents to servers over TCP, and requires of them.
    pub security: Security,
    /// Access to an etcd that names the servers.
    pub etcd: EtcdAccess,
    /// Pulls only rows of one version, regardless of later puts, commits and compactions. Servers
    /// keep that version for 10 minutes after the last pull. A server that has dropped it, never
    /// had it, or made it by another commit is not used.
    pub pin: Option<Pin>,
    /// Reads rows from memory that a server on this machine shares over its Unix socket, if it
    /// shares any. Otherwise the same rows arrive over the socket.
    pub shared_memory: bool,
    /// Largest share of pull requests that may be hedged, from 0 to 1. A hedge asks a second server
    /// with the same rows if the first is slower than p95; first reply wins. Bulk pulls are never
    /// hedged.
    pub hedged_share: f64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        let security = Security::default();
        let deadline = Duration::from_secs(30);
        let (shared_memory, hedged_share) = (true, 0.05);
        let etcd = EtcdAccess::default();
        Self { deadline, attempts: 10, security, etcd, pin: None, shared_memory, hedged_share }
    }
}

/// Rows of a graph from its servers. Calls block, and any number of threads may call concurrently.
///
/// Each pull goes directly to the shards that own its rows: one request per shard, all sent before
/// the first reply is read. If several servers hold a partition, the client asks the one with the
/// lowest expected latency. It asks another when that server fails or exceeds its usual latency. A
/// shard that refuses connections is retried until the deadline; a shard that fails in another way,
/// until the attempts or the deadline are used up. If its server restarted, the shard is retried
/// where the server listens now.
///
/// A forked child may use the client, over its own connections; requests that were in flight at the
/// fork belong to the parent.
pub struct Client {
    config: ClientConfig,
    book: PartitionBook,
    tensors: Vec<TensorInfo>,
    graph: [u8; 16],
    n_edges: u64,
    /// Pinned version, or `None` for the latest.
    pinned: Option<Pinned>,
    /// The map that names the servers.
    map: ClusterMap,
    /// Changes of the map up to the last refresh of all servers.
    map_changes: AtomicU64,
    /// Whether every server that the map names has responded once.
    has_heard_all: AtomicBool,
    /// Replaced when the description of a server changes.
    view: CurrentView,
    hedges: Hedges,
    /// Versions that this client has committed or seen; it reads no earlier ones.
    floors: Floors,
    /// Spare buckets for the next pulls.
    scratch: PerProcess<Mutex<Vec<Vec<Bucket>>>>,
    /// Volatile tensors that this client has looked up.
    volatile: PerProcess<volatile::Known>,
}

impl Client {
    /// Connects to every server and reads its description. An address is `HOST:PORT`, `unix:PATH`,
    /// or `map:FILE` for a file with one address per line. With the feature `etcd` it may be
    /// `etcd:HOST:PORT/PREFIX` for the servers registered there.
    ///
    /// A named server that cannot be reached is skipped if others hold every partition. The client
    /// tries it again when another server fails or rows are written. Of a map, one responding
    /// server is enough. The map is read again when servers are lost or change.
    ///
    /// # Errors
    /// An address is invalid, or unreachable while no other server holds its partitions; servers
    /// serve different graphs; no server has the pinned version of some partition.
    pub fn connect<A: AsRef<str>>(
        addresses: &[A],
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        let deadline = Instant::now() + config.deadline;
        let map = ClusterMap::of(addresses, &config.etcd)?;
        let map_changes = map.changes().into();
        let mut servers = discovery::find(&map, &config, deadline)?;
        let pinned = match config.pin {
            None => None,
            Some(pin) => Some(loop {
                match pin::choose(&servers, pin, &config.security, deadline)? {
                    Some(pinned) => break pinned,
                    // The version was compacted away since the servers were described.
                    None => servers = discovery::find(&map, &config, deadline)?,
                }
            }),
        };
        let has_heard_all = discovery::are_all(&map, &servers).into();
        let (address, first) = servers.first().ok_or(ClientError::NoServers)?;
        let (address, graph, n_edges) = (address.clone(), first.graph, first.n_edges);
        let sharing = SharingMode::new(config.shared_memory);
        let view = CurrentView::new(servers, config.security.clone(), sharing)?;
        let tensors = view.tensors().iter();
        let tensors = tensors
            .map(|it| tensor_info(&address, &it.name, &it.dtype, it.width, it.row_bytes))
            .collect::<Result<Vec<_>, _>>()?;
        let current = Arc::clone(&view.read().ignore_poison());
        current.hear(&map.members().unwrap_or_default());
        let book = current.routes.book.clone();
        Ok(Self {
            hedges: Hedges::new(config.hedged_share),
            floors: Floors::new(book.n_parts().into()),
            config,
            book,
            tensors,
            graph,
            n_edges,
            pinned,
            map,
            map_changes,
            has_heard_all,
            view,
            scratch: PerProcess::new(),
            volatile: PerProcess::new(),
        })
    }

    /// Returns the identity (UUID) of the graph.
    #[must_use]
    pub fn graph(&self) -> [u8; 16] {
        self.graph
    }

    /// Returns the number of edges of the whole graph.
    #[must_use]
    pub fn n_edges(&self) -> u64 {
        self.n_edges
    }

    /// Returns every tensor of the graph.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the roles of a server for its partitions, from its latest description: writer,
    /// follower or reader, separated by commas. Empty for an unknown address.
    #[must_use]
    pub fn role_of(&self, address: &Address) -> String {
        let view = self.view();
        let Some(at) = view.position(address) else { return String::new() };
        let roles: BTreeSet<&str> =
            view.describes(at).held().map(|(_, it)| it.role.name()).collect();
        roles.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Returns every address that pulls may connect to: the common address of each server, then the
    /// addresses of all shards.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Address> {
        let view = self.view();
        let shards = view.routes.endpoints.iter().map(|endpoint| &endpoint.address);
        view.addresses().chain(shards).cloned().collect()
    }

    /// Returns the counters of every server, in the order of connecting.
    ///
    /// # Errors
    /// A server cannot be reached within the deadline.
    pub fn stats(&self) -> Result<Vec<(Address, ServerStats)>, ClientError> {
        let deadline = Instant::now() + self.config.deadline;
        self.all_servers(&mut RetryBudget::new(&self.config, deadline))?
            .addresses()
            .map(|address| Ok((address.clone(), stats(address, &self.config.security, deadline)?)))
            .collect()
    }

    /// Pulls the rows of one batch into `out`, ahead of bulk pulls.
    ///
    /// # Errors
    /// See [`RowSource::pull`].
    pub fn sync_pull(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
    ) -> Result<PullStats, ClientError> {
        self.pull(tensor, ids, out, PullKind::Sync)
    }

    /// Reads every partition at `version` or later from now on.
    pub fn read_from(&self, version: u32) {
        self.floors.raise_all(version);
    }

    /// Pulls rows in bulk into `out`, at low priority.
    ///
    /// # Errors
    /// See [`RowSource::pull`].
    pub fn vector_pull(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
    ) -> Result<PullStats, ClientError> {
        self.pull(tensor, ids, out, PullKind::Vector)
    }

    /// Replaces rows: row `i` of `rows` becomes the row of `ids[i]`. If an id occurs several times,
    /// its last row wins.
    ///
    /// When the call returns, the rows are durable at the writers of their partitions. Readers see
    /// them from [`Client::commit`] on.
    ///
    /// The rows of one partition are put all or none. After an error the rows of some partitions
    /// may have been put: put the same rows again. Pieces without an acknowledgement are resent
    /// within the attempts and the deadline; overloaded servers are retried until the deadline.
    ///
    /// # Errors
    /// Fails before anything is sent for invalid ids or a wrong buffer size, and with
    /// [`ClientError::NoWriter`], [`ClientError::TwoWriters`] and [`ClientError::PutTooLarge`].
    /// Otherwise fails with the reason why a server rejected the rows.
    pub fn put_rows(
        &self,
        tensor: &str,
        ids: &[NodeId],
        rows: &[u8],
    ) -> Result<PutStats, ClientError> {
        let position = self.position(tensor)?;
        let row_bytes = self.tensors[position].row_bytes();
        ClientError::check_buffer(tensor, ids.len(), row_bytes, rows.len())?;
        let tensor = u16::try_from(position).unwrap_or(u16::MAX);
        let deadline = Instant::now() + self.config.deadline;
        self.put_all(&Put { tensor, ids, rows, row_bytes, deadline })
    }

    pub(crate) fn view(&self) -> Arc<ClusterView> {
        Arc::clone(&self.view.read().ignore_poison())
    }

    pub(crate) fn position(&self, name: &str) -> Result<usize, ClientError> {
        self.tensors.iter().position(|tensor| tensor.name == name).ok_or_else(|| {
            let known = self.tensors.iter().map(|tensor| tensor.name.as_str());
            ClientError::unknown_tensor(name, known)
        })
    }
}

impl RowSource for Client {
    fn book(&self) -> &PartitionBook {
        &self.book
    }

    fn tensor(&self, name: &str) -> Result<TensorInfo, ClientError> {
        Ok(self.tensors[self.position(name)?].clone())
    }

    fn pinned_version(&self) -> Option<VersionTag> {
        self.pinned.as_ref().map(|pinned| pinned.version(self.book.parts()))
    }

    fn pull_since(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        begun: Instant,
    ) -> Result<PullStats, ClientError> {
        let pull = self.plan(self.position(tensor)?, ids, kind, begun);
        self.pull_in_order(&pull, out, &mut || ())
    }

    fn pull_overlapped(
        &self,
        tensor: &str,
        ids: &[NodeId],
        out: &mut [u8],
        kind: PullKind,
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        let pull = self.plan(self.position(tensor)?, ids, kind, Instant::now());
        self.pull_in_order(&pull, out, work)
    }

    /// Receives rows in place.
    fn pull_at(
        &self,
        tensor: &str,
        ids: &[NodeId],
        at: &[u32],
        out: &mut [u8],
        kind: PullKind,
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        let pull = self.plan(self.position(tensor)?, ids, kind, Instant::now());
        check_positions(ids, at, out.len(), pull.row_bytes);
        if ids.is_empty() {
            return Ok(PullStats::default());
        }
        self.execute(&Pull { at: Some(at), ..pull }, out, work)
    }
}

impl Client {
    /// Returns a pull of rows of the tensor at `position` that began at `begun`.
    fn plan<'a>(
        &'a self,
        position: usize,
        ids: &'a [NodeId],
        kind: PullKind,
        begun: Instant,
    ) -> Pull<'a> {
        Pull {
            ids,
            at: None,
            version: self.pinned.as_ref().map_or(0, |pinned| pinned.number),
            floors: self.pinned.as_ref().map_or(&self.floors, |pinned| &pinned.floors),
            tensor: u16::try_from(position).unwrap_or(u16::MAX),
            row_bytes: self.tensors[position].row_bytes(),
            kind,
            deadline: begun + self.config.deadline,
        }
    }

    /// Pulls the rows into `out`, in the order of their ids.
    fn pull_in_order(
        &self,
        pull: &Pull<'_>,
        out: &mut [u8],
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        let name = &self.tensors[usize::from(pull.tensor)].name;
        ClientError::check_buffer(name, pull.ids.len(), pull.row_bytes, out.len())?;
        self.execute(pull, out, work)
    }

    /// Pulls the rows into `out`, which has room for them; `work` runs while they are in transit.
    fn execute(
        &self,
        pull: &Pull<'_>,
        out: &mut [u8],
        work: &mut dyn FnMut(),
    ) -> Result<PullStats, ClientError> {
        let scratch = self.scratch.get_or(|_| Mutex::default());
        let mut buckets = scratch.lock().ignore_poison().pop().unwrap_or_default();
        let result = self.pull_all(pull, out, &mut buckets, work);
        scratch.lock().ignore_poison().push(buckets);
        let rows = pull.ids.len() as u64;
        let bytes = rows * pull.row_bytes as u64;
        let AttemptStats { n_answers, n_hedges, versions } = result?;
        let (requests, hedges) = (n_answers, n_hedges);
        Ok(PullStats { rows, bytes, requests, hedges, versions, ..PullStats::default() })
    }
}
