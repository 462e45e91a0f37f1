//! The servers as last described, and the connections to them.

mod connections;
mod current;
mod endpoints;
mod refresh;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use lodestore_graph::PartId;
use lodestore_graph::fork::PerProcess;
use lodestore_schema::reply::{Description, Role};

use crate::address::Address;
use crate::connection::Connection;
use crate::error::ClientError;
use crate::route::Routes;
use crate::security::Security;

pub(crate) use connections::SharingMode;
pub(super) use current::CurrentView;
use endpoints::PortProbe;

/// Servers, routes over them, and idle connections. Replaced as a whole when a server comes back
/// with other shards or ports.
pub(crate) struct ClusterView {
    servers: Vec<(Address, Description)>,
    security: Security,
    /// Name of the graph in requests.
    pub(crate) graph: u64,
    pub(crate) routes: Routes,
    /// Idle connections by endpoint.
    idle: PerProcess<Vec<Mutex<Vec<Connection>>>>,
    /// By server: which of its ports are reached.
    port_probes: Vec<Arc<PortProbe>>,
    /// Partitions without a server, including those of a server that does not answer any more.
    away: BTreeSet<u16>,
    sharing: Arc<SharingMode>,
}

impl ClusterView {
    /// Fails when the servers are not of one graph.
    pub(super) fn new(
        servers: Vec<(Address, Description)>,
        security: Security,
        sharing: Arc<SharingMode>,
    ) -> Result<Self, ClientError> {
        let routes = Routes::new(&servers)?;
        let graph = servers.first().map_or(0, |(_, description)| description.graph_tag());
        let idle = PerProcess::new();
        let port_probes = servers.iter().map(|(_, it)| PortProbe::new(it.n_shards)).collect();
        let away = BTreeSet::new();
        Ok(Self { servers, security, graph, routes, idle, port_probes, away, sharing })
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
}

#[cfg(test)]
mod tests;
