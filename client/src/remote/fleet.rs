//! The servers as last described, and the connections to them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lodestore_schema::Description;

use super::describe::describe;
use super::lock;
use crate::connection::Connection;
use crate::route::{Routes, same_graph};
use crate::{Address, ClientError};

/// Idle connections kept per shard.
const IDLE_MAX: usize = 16;
/// Longest wait for a server that was just lost to describe itself anew.
const REDISCOVER_TIMEOUT: Duration = Duration::from_secs(1);

/// Servers, routes over them, and idle connections. Replaced as a whole when a server comes back
/// with other shards or ports.
pub(crate) struct Fleet {
    servers: Vec<(Address, Description)>,
    pub(crate) routes: Routes,
    /// By endpoint: connections that nobody uses.
    idle: Vec<Mutex<Vec<Connection>>>,
}

impl Fleet {
    /// Fails when the servers are not of one graph.
    pub(super) fn new(servers: Vec<(Address, Description)>) -> Result<Self, ClientError> {
        let routes = Routes::new(&servers)?;
        let idle = routes.endpoints.iter().map(|_| Mutex::default()).collect();
        Ok(Self { servers, routes, idle })
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

    /// An idle connection to an endpoint, or a new one.
    pub(super) fn connection(
        &self,
        endpoint: usize,
        deadline: Instant,
    ) -> Result<Connection, ClientError> {
        let pooled = lock(&self.idle[endpoint]).pop();
        pooled.map_or_else(
            || Connection::open(&self.routes.endpoints[endpoint].address, deadline),
            Ok,
        )
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

    /// The fleet with `server` asked anew what it holds and where its shards listen.
    ///
    /// `None` when it does not answer, or holds what it held where it held it; a version committed
    /// meanwhile is no difference.
    ///
    /// # Errors
    /// Another graph is served at its address now.
    pub(crate) fn rediscover(
        &self,
        server: usize,
        deadline: Instant,
    ) -> Result<Option<Arc<Self>>, ClientError> {
        let (address, known) = &self.servers[server];
        let deadline = deadline.min(Instant::now() + REDISCOVER_TIMEOUT);
        match describe(address, deadline) {
            Ok(found) if !same_graph(&found, known) => {
                let (address, other) = (address.clone(), address.clone());
                Err(ClientError::GraphsDiffer { address, other })
            }
            Ok(found) if (Description { version: known.version, ..found.clone() }) != *known => {
                let mut servers = self.servers.clone();
                servers[server].1 = found;
                let fleet = Self::new(servers)?;
                fleet.routes.ask_like(&self.routes);
                Ok(Some(Arc::new(fleet)))
            }
            _ => Ok(None),
        }
    }
}
