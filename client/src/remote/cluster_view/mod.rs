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

/// Servers, the routes over them, and idle connections. Replaced as a whole when the description of
/// a server changes.
pub(crate) struct ClusterView {
    servers: Vec<(Address, Description)>,
    security: Security,
    /// Tag of the graph in requests.
    pub(crate) graph: u64,
    /// The tensors that the client knows, in its order.
    tensors: Arc<[TensorDescription]>,
    pub(crate) routes: Routes,
    /// Idle connections by endpoint.
    idle: PerProcess<Vec<Mutex<Vec<Connection>>>>,
    /// Per server: which of its ports can be reached.
    port_probes: Vec<Arc<PortProbe>>,
    /// Partitions that no server holds, and that were last held by a server that does not respond.
    away: BTreeSet<u16>,
    sharing: Arc<SharingMode>,
}

/// Whether rows may be read from shared memory. Cleared after a mapping has failed.
#[derive(Default)]
pub(crate) struct SharingMode {
    /// The ring that servers copy rows to.
    ring: AtomicBool,
    /// The tiers in which servers keep rows.
    tiers: AtomicBool,
}

impl SharingMode {
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self { ring: is_wanted.into(), tiers: is_wanted.into() }
    }
}

impl ClusterView {
    /// Fails if the servers serve different graphs.
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

    /// Returns the tag of a tensor in pulls and puts over a connection of wire version `agreed`.
    pub(super) fn tensor_tag(&self, tensor: usize, agreed: u16) -> u64 {
        match (self.servers.first(), self.tensors.get(tensor)) {
            (Some((_, first)), Some(known)) => first.tensor_tag(known, agreed),
            _ => self.graph,
        }
    }

    /// Returns the tag of a volatile tensor in requests from wire version 6 on.
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

    /// Returns the address of a server as the caller named it, and the shard if `address` belongs
    /// to one.
    pub(super) fn name_of(&self, address: &Address) -> Option<(Address, Option<usize>)> {
        if self.addresses().any(|common| common == address) {
            return Some((address.clone(), None));
        }
        let endpoint = self.routes.endpoints.iter().position(|it| it.address == *address)?;
        let (server, shard) = self.routes.shard_of(endpoint);
        Some((self.address(server).clone(), Some(shard)))
    }

    /// Returns the latest description of a server.
    pub(super) fn describes(&self, server: usize) -> &Description {
        &self.servers[server].1
    }

    /// Returns the only server that accepts puts for a partition.
    pub(super) fn writer_of(&self, part: PartId) -> Result<usize, ClientError> {
        self.routes.writer_of(part, &self.servers)
    }

    /// Returns whether partitions may move between servers.
    pub(super) fn roams(&self) -> bool {
        self.servers.iter().any(|(_, description)| description.roams)
    }

    /// Returns whether a partition is missing for good: no server holds it, none is receiving it,
    /// and no unreachable server held it. Once all servers have responded, there is nothing to wait
    /// for.
    pub(super) fn is_missing(&self, part: PartId) -> bool {
        let arrives = |description: &Description| description.arriving.contains(&part.0);
        self.routes.servers_of(part).is_empty()
            && !self.away.contains(&part.0)
            && !self.servers.iter().any(|(_, description)| arrives(description))
    }

    /// Records the partitions of servers that `before` has and this view lacks.
    fn find_away(&mut self, before: &Self) {
        let gone = before.servers.iter().filter(|(address, _)| self.position(address).is_none());
        let theirs = gone.flat_map(|(_, description)| &description.parts);
        self.away = theirs.chain(&before.away).copied().collect();
        let routes = &self.routes;
        self.away.retain(|&part| routes.servers_of(PartId(part)).is_empty());
    }

    /// Returns whether `other` holds a partition that none of `servers` holds, or writes one that
    /// none of them writes.
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

    /// Locks the idle connections of this process to an endpoint. A forked child starts with none.
    fn idle(&self, endpoint: usize) -> MutexGuard<'_, Vec<Connection>> {
        let none = || self.routes.endpoints.iter().map(|_| Mutex::default()).collect();
        self.idle.get_or(|_| none())[endpoint].lock().ignore_poison()
    }

    /// Returns whether an idle connection to an endpoint exists.
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
                // The server may have closed it.
                Some(connection) if !connection.is_quiet() => {}
                Some(connection) => return Ok(connection),
                None => return self.open(endpoint, deadline),
            }
        }
    }

    /// Returns a connection to an endpoint for `n_bytes` of rows of a tensor, or of a volatile
    /// tensor if `None`. The rows are read from shared memory if they are large enough and the
    /// server shares memory.
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

    /// Returns whether rows of this server may be read from shared memory.
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

    /// Closes the idle connections of a server that failed: they are as old as the failed one.
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
