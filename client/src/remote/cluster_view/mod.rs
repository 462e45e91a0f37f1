//! The servers as last described, and the connections to them.

mod current;
mod endpoints;
mod refresh;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use lodestore_graph::PartId;
use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use lodestore_schema::limits::{LENT_PULL_BYTES_MIN, SHARED_CHUNK_BYTES_MIN};
use lodestore_schema::reply::{Declared, Description, Role, TensorDescription};
use lodestore_schema::tags::volatile_tag;

use crate::address::Address;
use crate::connection::{Connection, MapFailure};
use crate::error::ClientError;
use crate::route::Routes;
use crate::security::Security;

pub(super) use current::CurrentView;
use endpoints::PortProbe;

/// Idle connections kept per shard.
const IDLE_MAX: usize = 16;

/// Servers, routes over them, and idle connections. Replaced as a whole when a server comes back
/// with other shards or ports.
pub(crate) struct ClusterView {
    servers: Vec<(Address, Description)>,
    security: Security,
    /// Name of the graph in requests.
    pub(crate) graph: u64,
    /// The tensors that the client knows, in its order.
    tensors: Arc<[TensorDescription]>,
    pub(crate) routes: Routes,
    /// Idle connections by endpoint.
    idle: PerProcess<Vec<Mutex<Vec<Connection>>>>,
    /// By server: which of its ports are reached.
    port_probes: Vec<Arc<PortProbe>>,
    /// Partitions without a server, including those of a server that does not answer any more.
    away: BTreeSet<u16>,
    sharing: Arc<SharingMode>,
}

/// Whether rows may come through memory; not any more once that could not be mapped.
#[derive(Default)]
pub(crate) struct SharingMode {
    /// Where servers put them.
    ring: AtomicBool,
    /// Where they keep them.
    tiers: AtomicBool,
}

impl SharingMode {
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self { ring: is_wanted.into(), tiers: is_wanted.into() }
    }
}

impl ClusterView {
    /// Fails when the servers are not of one graph.
    pub(super) fn new(
        servers: Vec<(Address, Description)>,
        tensors: Arc<[TensorDescription]>,
        security: Security,
        sharing: Arc<SharingMode>,
    ) -> Result<Self, ClientError> {
        let routes = Routes::new(&servers, &tensors)?;
        let graph = servers.first().map_or(0, |(_, description)| description.graph_tag());
        let idle = PerProcess::new();
        let port_probes = servers.iter().map(|(_, it)| PortProbe::new(it.n_shards)).collect();
        let away = BTreeSet::new();
        Ok(Self { servers, security, graph, tensors, routes, idle, port_probes, away, sharing })
    }

    /// Returns a tensor as pulls and puts over a connection of wire version `agreed` name it.
    pub(super) fn tensor_tag(&self, tensor: usize, agreed: u16) -> u64 {
        match (self.servers.first(), self.tensors.get(tensor)) {
            (Some((_, first)), Some(known)) => first.tensor_tag(known, agreed),
            _ => self.graph,
        }
    }

    /// Returns a volatile tensor as requests from wire version 6 on name it.
    pub(super) fn volatile_tag(&self, name: &str, declared: &Declared) -> u64 {
        let graph = self.servers.first().map_or([0; 16], |(_, description)| description.graph);
        volatile_tag(graph, name, declared)
    }

    /// Returns the common addresses, in the order of connecting.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.servers.iter().map(|(address, _)| address)
    }

    /// Returns the servers with their descriptions.
    #[cfg(test)]
    pub(super) fn servers(&self) -> impl Iterator<Item = (&Address, &Description)> {
        self.servers.iter().map(|(address, description)| (address, description))
    }

    /// Returns the common address of a server.
    pub(super) fn address(&self, server: usize) -> &Address {
        &self.servers[server].0
    }

    /// Returns the address of a server as the caller named it, and the shard where `address` is that
    /// of a shard.
    pub(super) fn name_of(&self, address: &Address) -> Option<(Address, Option<usize>)> {
        if self.addresses().any(|common| common == address) {
            return Some((address.clone(), None));
        }
        let endpoint = self.routes.endpoints.iter().position(|it| it.address == *address)?;
        let (server, shard) = self.routes.shard_of(endpoint);
        Some((self.address(server).clone(), Some(shard)))
    }

    /// Returns the description that a server has sent.
    pub(super) fn describes(&self, server: usize) -> &Description {
        &self.servers[server].1
    }

    /// Returns the one server that takes puts of a partition.
    pub(super) fn writer_of(&self, part: PartId) -> Result<usize, ClientError> {
        self.routes.writer_of(part, &self.servers)
    }

    /// Returns whether partitions may come and leave.
    pub(super) fn roams(&self) -> bool {
        self.servers.iter().any(|(_, description)| description.roams)
    }

    /// Returns whether a partition is missing: no server has it, none that is away had it, and it
    /// is on its way to none. When all have answered there is nothing to wait for.
    pub(super) fn is_missing(&self, part: PartId) -> bool {
        let arrives = |description: &Description| description.arriving.contains(&part.0);
        self.routes.servers_of(part).is_empty()
            && !self.away.contains(&part.0)
            && !self.servers.iter().any(|(_, description)| arrives(description))
    }

    /// Notes, where this view has come after `before`, the partitions of servers that are away.
    fn find_away(&mut self, before: &Self) {
        let gone = before.servers.iter().filter(|(address, _)| self.position(address).is_none());
        let theirs = gone.flat_map(|(_, description)| &description.parts);
        self.away = theirs.chain(&before.away).copied().collect();
        let routes = &self.routes;
        self.away.retain(|&part| routes.servers_of(PartId(part)).is_empty());
    }

    /// Returns whether `other` has a partition that none of these servers has, or takes puts of one
    /// of which none of them does.
    fn needs(&self, servers: &[(Address, Description)], other: &Description) -> bool {
        if servers.iter().any(|(_, it)| it.is_same_server(other)) {
            return false;
        }
        let has = |part: u16, role: Role| {
            let states = servers.iter().filter_map(|(_, it)| it.state(part));
            states.into_iter().any(|it| role != Role::Writer || it.role == Role::Writer)
        };
        other.held().any(|(part, state)| !has(part, state.role))
    }

    /// Locks the idle connections of this process to an endpoint; a forked child begins without.
    fn idle(&self, endpoint: usize) -> MutexGuard<'_, Vec<Connection>> {
        let none = || self.routes.endpoints.iter().map(|_| Mutex::default()).collect();
        self.idle.get_or(|_| none())[endpoint].lock().ignore_poison()
    }

    /// Returns whether a connection to an endpoint is idle.
    pub(super) fn has_connection(&self, endpoint: usize) -> bool {
        !self.idle(endpoint).is_empty()
    }

    /// Returns an idle connection to an endpoint, or a new one.
    pub(super) fn connection(
        &self,
        endpoint: usize,
        deadline: Instant,
    ) -> Result<Connection, ClientError> {
        loop {
            let pooled = self.idle(endpoint).pop();
            match pooled {
                // Its server may have closed it.
                Some(connection) if !connection.is_quiet() => {}
                Some(connection) => return Ok(connection),
                None => return self.open(endpoint, deadline),
            }
        }
    }

    /// Returns a connection to an endpoint for `n_bytes` of rows of a tensor, or of a volatile one.
    /// The rows come through shared memory where they are enough and the server shares some.
    pub(super) fn connection_for_rows(
        &self,
        endpoint: usize,
        tensor: Option<u16>,
        n_bytes: usize,
        deadline: Instant,
    ) -> Result<Connection, ClientError> {
        let server = self.routes.endpoints[endpoint].server;
        loop {
            let mut connection = self.connection(endpoint, deadline)?;
            if n_bytes < SHARED_CHUNK_BYTES_MIN || !self.may_share(server) {
                return Ok(connection);
            }
            let may_lend =
                n_bytes >= LENT_PULL_BYTES_MIN && self.sharing.tiers.load(Ordering::Relaxed);
            match connection.share(tensor.filter(|_| may_lend), deadline)? {
                None => return Ok(connection),
                Some(MapFailure::Ring) => self.sharing.ring.store(false, Ordering::Relaxed),
                Some(MapFailure::Tier) => self.sharing.tiers.store(false, Ordering::Relaxed),
            }
        }
    }

    /// Returns whether rows of this server may come through memory.
    pub(crate) fn may_share(&self, server: usize) -> bool {
        self.servers[server].1.shares && self.sharing.ring.load(Ordering::Relaxed)
    }

    /// Keeps a connection for the next pull.
    pub(super) fn give_back(&self, endpoint: usize, connection: Connection) {
        let mut idle = self.idle(endpoint);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    /// Drops the idle connections of a server that failed: they are of the same age.
    pub(super) fn forget(&self, server: usize) {
        for (at, endpoint) in self.routes.endpoints.iter().enumerate() {
            if endpoint.server == server {
                self.idle(at).clear();
            }
        }
    }
}

#[cfg(test)]
mod tests;
