//! The servers as last described, and the connections to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lodestore_graph::PartId;
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
    /// Partitions that several held, of whose holders one is not to be found: on its way to another
    /// server, or away. A put would leave it behind.
    lost: BTreeSet<u16>,
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
        let lost = BTreeSet::new();
        Ok(Self { servers, security, graph, routes, idle, replicas, lost, shares })
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

    /// Whether partitions may come and go.
    pub(super) fn roams(&self) -> bool {
        self.servers.iter().any(|(_, description)| description.roams)
    }

    /// Fails for a partition that nobody holds, or not all who held it.
    pub(super) fn check_holders(&self, part: PartId) -> Result<(), ClientError> {
        if self.routes.holders_of(part).is_empty() {
            return Err(ClientError::NoHolder { part });
        }
        if self.lost.contains(&part.0) {
            return Err(ClientError::LostHolder { part });
        }
        Ok(())
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

    /// The same fleet but for what is found of `server`.
    pub(super) fn with(
        self: &Arc<Self>,
        server: usize,
        found: Description,
    ) -> Result<Arc<Self>, ClientError> {
        let mut servers = self.servers.clone();
        servers[server].1 = found;
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
        let counts = replicas(&fleet.servers);
        let is_lost = |part: &u16, expected: usize| {
            expected > 1 && counts.get(part).copied().unwrap_or(0) < expected
        };
        let lost = fleet.replicas.iter().filter(|(part, expected)| is_lost(part, **expected));
        fleet.lost = lost.map(|(&part, _)| part).collect();
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
    /// new. One that does not answer, or has another graph, is left as it was known, or out. One that
    /// was known and is not at these any more, since its lease has run out, stays if it answers and
    /// holds what too few others do.
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
            let found = found.filter(|found| same_graph(found, first));
            let found = found.or(known.filter(|_| addresses.contains(address)).cloned());
            found.map(|found| (address.clone(), found))
        };
        let others = self.addresses().filter(|it| !addresses.contains(it));
        let all: Vec<&Address> = addresses.iter().chain(others).collect();
        let answers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = all.into_iter().map(|it| scope.spawn(|| ask(it))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()?).collect()
        });
        let mut asked: Vec<(Address, Description)> = Vec::with_capacity(answers.len());
        // Those at `addresses` come first.
        for (address, found) in answers {
            if addresses.contains(&address) || self.needs(&asked, &found) {
                asked.push((address, found));
            }
        }
        let is_same = |(new, old): (&(Address, Description), &(Address, Description))| {
            new.0 == old.0 && Description { version: old.1.version, ..new.1.clone() } == old.1
        };
        let nothing_new =
            asked.len() == self.servers.len() && asked.iter().zip(&self.servers).all(is_same);
        if asked.is_empty() || nothing_new {
            return Ok(None);
        }
        self.of(asked).map(Some)
    }

    /// Whether these servers hold something of another's less often than when this client connected,
    /// or not at all.
    fn needs(&self, servers: &[(Address, Description)], other: &Description) -> bool {
        let n_holders =
            |part: &u16| servers.iter().filter(|(_, it)| it.parts.contains(part)).count();
        let expected = |part: &u16| self.replicas.get(part).copied().unwrap_or(0).max(1);
        other.parts.iter().any(|part| n_holders(part) < expected(part))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn server(port: u16, parts: &[u16]) -> (Address, Description) {
        let description = Description {
            graph: [7; 16],
            n_edges: 0,
            bounds: vec![0, 5, 10],
            parts: parts.to_vec(),
            tensors: Vec::new(),
            shard_ports: vec![port],
            n_shards: 1,
            version: 1,
            writable: true,
            shares: false,
            roams: true,
        };
        (format!("127.0.0.1:{port}").parse().unwrap(), description)
    }

    #[test]
    fn a_holder_that_is_lost_holds_up_puts_of_its_partition_alone() {
        let servers = vec![server(1, &[0, 1]), server(2, &[0])];
        let shares = Arc::new(AtomicBool::new(false));
        let fleet = Arc::new(Fleet::new(servers, Security::default(), shares).unwrap());
        let check = |fleet: &Fleet, part| fleet.check_holders(PartId(part));
        assert!(check(&fleet, 0).is_ok() && check(&fleet, 1).is_ok());
        // The first partition has left a holder, and the other one has come there.
        let fleet = fleet.with(1, server(2, &[1]).1).unwrap();
        assert_eq!(fleet.routes.holders_of(PartId(1)), [0, 1], "what is new is believed");
        assert!(matches!(check(&fleet, 0), Err(ClientError::LostHolder { part: PartId(0) })));
        assert!(check(&fleet, 1).is_ok());
        let fleet = fleet.with(0, server(1, &[0]).1).unwrap().with(1, server(2, &[0]).1).unwrap();
        assert!(check(&fleet, 0).is_ok(), "it is found again");
        assert!(matches!(check(&fleet, 1), Err(ClientError::NoHolder { part: PartId(1) })));
    }

    #[test]
    fn a_server_that_no_map_names_stays_for_what_too_few_others_hold() {
        let servers = vec![server(1, &[0, 1]), server(2, &[0])];
        let shares = Arc::new(AtomicBool::new(false));
        let fleet = Fleet::new(servers.clone(), Security::default(), shares).unwrap();
        assert!(fleet.needs(&servers[..1], &servers[1].1), "two held it");
        assert!(fleet.needs(&[], &servers[1].1));
        assert!(!fleet.needs(&[servers[0].clone(), server(3, &[0])], &servers[1].1));
        assert!(!fleet.needs(&servers, &server(4, &[1]).1));
    }
}
