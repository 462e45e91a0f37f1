//! The servers as last described, and the connections to them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lodestore_schema::Description;
use lodestore_schema::limits::SHARED_CHUNK_BYTES_MIN;

use super::describe::describe;
use super::lock;
use crate::cluster::Member;
use crate::connection::Connection;
use crate::route::{Routes, same_graph};
use crate::{Address, ClientError, Security};

/// Idle connections kept per shard.
const IDLE_MAX: usize = 16;
/// Longest wait for a server that was just lost to describe itself anew.
const REDISCOVER_TIMEOUT: Duration = Duration::from_secs(1);
/// The same where others hold what it holds.
const REDISCOVER_TIMEOUT_SPARE: Duration = Duration::from_millis(250);

/// Servers, routes over them, and idle connections. Replaced as a whole when a server comes back
/// with other shards or ports.
pub(crate) struct Fleet {
    servers: Vec<(Address, Description)>,
    security: Security,
    /// What requests say of the graph.
    pub(crate) graph: u64,
    pub(crate) routes: Routes,
    /// By endpoint: connections that nobody uses.
    idle: Vec<Mutex<Vec<Connection>>>,
    /// Holders of each partition that took puts when the client connected.
    replicas: Arc<BTreeMap<u16, usize>>,
    /// Whether rows may come through memory; not any more once that could not be mapped.
    shares: Arc<AtomicBool>,
}

impl Fleet {
    /// Fails when the servers are not of one graph.
    pub(super) fn new(
        servers: Vec<(Address, Description)>,
        security: Security,
        shares: Arc<AtomicBool>,
    ) -> Result<Self, ClientError> {
        let routes = Routes::new(&servers)?;
        let graph = servers.first().map_or(0, |(_, description)| description.graph_tag());
        let idle = routes.endpoints.iter().map(|_| Mutex::default()).collect();
        let replicas = Arc::new(replicas(&servers));
        Ok(Self { servers, security, graph, routes, idle, replicas, shares })
    }

    /// The common addresses, in the order of connecting.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.servers.iter().map(|(address, _)| address)
    }

    /// The common address of a server.
    pub(super) fn address(&self, server: usize) -> &Address {
        &self.servers[server].0
    }

    /// Whether a server takes updates.
    pub(super) fn is_writable(&self, server: usize) -> bool {
        self.servers[server].1.writable
    }

    /// How connections to these servers are made.
    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    /// An idle connection to an endpoint, or a new one.
    pub(super) fn connection(
        &self,
        endpoint: usize,
        deadline: Instant,
    ) -> Result<Connection, ClientError> {
        loop {
            let pooled = lock(&self.idle[endpoint]).pop();
            match pooled {
                // Its server may have closed it.
                Some(connection) if !connection.is_quiet() => {}
                Some(connection) => return Ok(connection),
                None => {
                    let address = &self.routes.endpoints[endpoint].address;
                    return Connection::open(address, &self.security, deadline);
                }
            }
        }
    }

    /// A connection to an endpoint for rows of `n_bytes`, which come through memory where they are
    /// enough and the server shares some.
    pub(super) fn connection_for_rows(
        &self,
        endpoint: usize,
        n_bytes: usize,
        deadline: Instant,
    ) -> Result<Connection, ClientError> {
        let mut connection = self.connection(endpoint, deadline)?;
        let server = self.routes.endpoints[endpoint].server;
        let shares = n_bytes >= SHARED_CHUNK_BYTES_MIN && self.may_share(server);
        if shares && !connection.share(deadline)? {
            self.shares.store(false, Ordering::Relaxed);
            connection = self.connection(endpoint, deadline)?;
        }
        Ok(connection)
    }

    /// Whether rows of this server may come through memory.
    pub(crate) fn may_share(&self, server: usize) -> bool {
        self.servers[server].1.shares && self.shares.load(Ordering::Relaxed)
    }

    /// Keeps a connection for the next pull.
    pub(super) fn give_back(&self, endpoint: usize, connection: Connection) {
        let mut idle = lock(&self.idle[endpoint]);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    /// Drops the idle connections of a server that failed: they are of the same age.
    pub(super) fn forget(&self, server: usize) {
        for (endpoint, idle) in self.routes.endpoints.iter().zip(&self.idle) {
            if endpoint.server == server {
                lock(idle).clear();
            }
        }
    }

    /// Whether `other` has a description of `server` that is not this one's.
    pub(super) fn describes_otherwise(&self, server: usize, other: &Self) -> bool {
        self.servers[server].1 != other.servers[server].1
    }

    /// The fleet with `server` asked anew, if there is something new.
    ///
    /// # Errors
    /// Another graph is served at its address now.
    pub(crate) fn rediscover(
        self: &Arc<Self>,
        server: usize,
        deadline: Instant,
    ) -> Result<Option<Arc<Self>>, ClientError> {
        let found = self.ask_again(server, deadline)?;
        found.map(|found| self.with(server, found)).transpose()
    }

    /// What `server` holds now and where its shards listen.
    ///
    /// `None` when it does not answer, or holds what it held where it held it; a version committed
    /// meanwhile is no difference.
    ///
    /// # Errors
    /// Another graph is served at its address now.
    pub(super) fn ask_again(
        &self,
        server: usize,
        deadline: Instant,
    ) -> Result<Option<Description>, ClientError> {
        let (address, known) = &self.servers[server];
        let is_spare = self.routes.can_do_without(server);
        let most = if is_spare { REDISCOVER_TIMEOUT_SPARE } else { REDISCOVER_TIMEOUT };
        let deadline = deadline.min(Instant::now() + most);
        match describe(address, &self.security, deadline) {
            Ok(found) if !same_graph(&found, known) => {
                let (address, other) = (address.clone(), address.clone());
                Err(ClientError::GraphsDiffer { address, other })
            }
            Ok(found) if (Description { version: known.version, ..found.clone() }) != *known => {
                Ok(Some(found))
            }
            // That it describes itself does not say that it has rows: it rests like others that
            // failed.
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// The same fleet but for what is found of `server`; as it was if that would leave a replica
    /// behind.
    pub(super) fn with(
        self: &Arc<Self>,
        server: usize,
        found: Description,
    ) -> Result<Arc<Self>, ClientError> {
        let mut servers = self.servers.clone();
        servers[server].1 = found;
        if self.loses_replica(&servers) {
            return Ok(Arc::clone(self));
        }
        let fleet = self.of(servers)?;
        fleet.routes.health(server).is_back();
        Ok(fleet)
    }

    /// A fleet of all servers that the map names: from now on every partition has as many holders.
    pub(super) fn anew(
        &self,
        servers: Vec<(Address, Description)>,
    ) -> Result<Arc<Self>, ClientError> {
        let security = self.security.clone();
        Self::new(servers, security, Arc::clone(&self.shares)).map(Arc::new)
    }

    /// A fleet of these servers, which takes over what is known of those that it had.
    fn of(&self, servers: Vec<(Address, Description)>) -> Result<Arc<Self>, ClientError> {
        let mut fleet = Self::new(servers, self.security.clone(), Arc::clone(&self.shares))?;
        fleet.replicas = Arc::clone(&self.replicas);
        for (now, (address, _)) in fleet.servers.iter().enumerate() {
            if let Some(before) = self.position(address) {
                fleet.routes.health(now).copy(self.routes.health(before));
            }
        }
        Ok(Arc::new(fleet))
    }

    /// Takes over what a map says of servers that nobody knows yet.
    pub(super) fn hear(&self, members: &[Member]) {
        for member in members {
            if let (Some(at), Some(busy)) = (self.position(&member.address), member.busy) {
                self.routes.health(at).tells(busy);
            }
        }
    }

    /// Place of a server among those that this fleet has.
    pub(super) fn position(&self, address: &Address) -> Option<usize> {
        self.servers.iter().position(|(known, _)| known == address)
    }

    /// The fleet with all servers asked anew, those at other `addresses` too; `None` if nothing is
    /// new. One that does not answer, or has another graph, is left as it was known, or out.
    pub(super) fn refreshed(
        &self,
        addresses: &[Address],
        deadline: Instant,
    ) -> Result<Option<Arc<Self>>, ClientError> {
        let first = &self.servers[0].1;
        let ask = |address: &Address| {
            let known = self.position(address).map(|at| &self.servers[at].1);
            let until = deadline.min(Instant::now() + REDISCOVER_TIMEOUT_SPARE);
            let found = describe(address, &self.security, until).ok();
            let found = found.filter(|found| same_graph(found, first)).or(known.cloned());
            found.map(|found| (address.clone(), found))
        };
        let asked: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = addresses.iter().map(|it| scope.spawn(|| ask(it))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()?).collect()
        });
        let is_same = |(new, old): (&(Address, Description), &(Address, Description))| {
            new.0 == old.0 && Description { version: old.1.version, ..new.1.clone() } == old.1
        };
        let nothing_new =
            asked.len() == self.servers.len() && asked.iter().zip(&self.servers).all(is_same);
        if asked.is_empty() || nothing_new || self.loses_replica(&asked) {
            return Ok(None);
        }
        self.of(asked).map(Some)
    }

    /// Whether a partition that takes puts would have fewer holders than when this client connected:
    /// one of several is on its way to another server, or away, and a put meanwhile would leave it
    /// behind.
    fn loses_replica(&self, servers: &[(Address, Description)]) -> bool {
        let counts = replicas(servers);
        let count = |part: &u16| counts.get(part).copied().unwrap_or(0);
        self.replicas.iter().any(|(part, &expected)| expected > 1 && count(part) < expected)
    }
}

/// How many of these servers take puts of each partition.
pub(super) fn replicas(servers: &[(Address, Description)]) -> BTreeMap<u16, usize> {
    let mut counts = BTreeMap::new();
    for (_, description) in servers.iter().filter(|(_, description)| description.writable) {
        description.parts.iter().for_each(|&part| *counts.entry(part).or_default() += 1);
    }
    counts
}
