//! Idle connections of a view, and new ones.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use lodestore_schema::limits::{LENT_PULL_BYTES_MIN, SHARED_CHUNK_BYTES_MIN};

use super::super::lock;
use super::ClusterView;
use crate::connection::{Connection, MapFailure};
use crate::error::ClientError;

/// Idle connections kept per shard.
const IDLE_MAX: usize = 16;

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
    /// Locks the idle connections of this process to an endpoint; a forked child begins without.
    fn idle(&self, endpoint: usize) -> MutexGuard<'_, Vec<Connection>> {
        let none = || self.routes.endpoints.iter().map(|_| Mutex::default()).collect();
        lock(&self.idle.get_or(|_| none())[endpoint])
    }

    /// Returns whether a connection to an endpoint is idle.
    pub(in super::super) fn has_connection(&self, endpoint: usize) -> bool {
        !self.idle(endpoint).is_empty()
    }

    /// Returns an idle connection to an endpoint, or a new one.
    pub(in super::super) fn connection(
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
    pub(in super::super) fn connection_for_rows(
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
    pub(in super::super) fn give_back(&self, endpoint: usize, connection: Connection) {
        let mut idle = self.idle(endpoint);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    /// Drops the idle connections of a server that failed: they are of the same age.
    pub(in super::super) fn forget(&self, server: usize) {
        for (at, endpoint) in self.routes.endpoints.iter().enumerate() {
            if endpoint.server == server {
                self.idle(at).clear();
            }
        }
    }
}
