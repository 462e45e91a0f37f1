//! Connections of a fleet that nobody uses at the moment, and new ones.

use std::sync::atomic::Ordering;
use std::time::Instant;

use lodestore_schema::limits::SHARED_CHUNK_BYTES_MIN;

use super::super::lock;
use super::Fleet;
use crate::ClientError;
use crate::connection::Connection;

/// Idle connections kept per shard.
const IDLE_MAX: usize = 16;

impl Fleet {
    /// Whether a connection to an endpoint lies idle.
    pub(in super::super) fn has_connection(&self, endpoint: usize) -> bool {
        !lock(&self.idle[endpoint]).is_empty()
    }

    /// An idle connection to an endpoint, or a new one.
    pub(in super::super) fn connection(
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
                None => return self.open(endpoint, deadline),
            }
        }
    }

    /// A connection to an endpoint for rows of `n_bytes`, which come through memory where they are
    /// enough and the server shares some.
    pub(in super::super) fn connection_for_rows(
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
    pub(in super::super) fn give_back(&self, endpoint: usize, connection: Connection) {
        let mut idle = lock(&self.idle[endpoint]);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    /// Drops the idle connections of a server that failed: they are of the same age.
    pub(in super::super) fn forget(&self, server: usize) {
        for (endpoint, idle) in self.routes.endpoints.iter().zip(&self.idle) {
            if endpoint.server == server {
                lock(idle).clear();
            }
        }
    }
}
