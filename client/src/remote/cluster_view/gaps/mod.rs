//! Partitions of which a server is not to be found: one that has it, or the one that takes its
//! puts.

use lodestore_graph::PartId;
use lodestore_schema::reply::{Description, Role};

use super::ClusterView;
use crate::address::Address;

impl ClusterView {
    /// Returns whether a partition is missing: no server has it, none that is away had it, and it
    /// is on its way to none. When all have answered there is nothing to wait for.
    pub(in super::super) fn is_missing(&self, part: PartId) -> bool {
        let arrives = |description: &Description| description.arriving.contains(&part.0);
        self.routes.servers_of(part).is_empty()
            && !self.away.contains(&part.0)
            && !self.servers.iter().any(|(_, description)| arrives(description))
    }

    /// Notes, where this view has come after `before`, the partitions of servers that are away.
    pub(super) fn find_away(&mut self, before: &Self) {
        let gone = before.servers.iter().filter(|(address, _)| self.position(address).is_none());
        let theirs = gone.flat_map(|(_, description)| &description.parts);
        self.away = theirs.chain(&before.away).copied().collect();
        let routes = &self.routes;
        self.away.retain(|&part| routes.servers_of(PartId(part)).is_empty());
    }

    /// Returns whether `other` has a partition that none of these servers has, or takes puts of one
    /// of which none of them does.
    pub(super) fn needs(&self, servers: &[(Address, Description)], other: &Description) -> bool {
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
