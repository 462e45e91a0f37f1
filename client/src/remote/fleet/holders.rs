//! Who is to hold a partition, as far as is known: puts must go to all of them.

use std::collections::BTreeMap;

use lodestore_graph::PartId;
use lodestore_schema::{Description, Membership};

use super::Fleet;
use crate::{Address, ClientError};

impl Fleet {
    /// Fails for a partition that nobody holds, or not all who are to hold it, as those say who do;
    /// where nobody says, not all who held it when the client connected.
    pub(in super::super) fn check_holders(&self, part: PartId) -> Result<(), ClientError> {
        self.routes.check_held(part)?;
        if self.routes.membership(part).generation > 0 {
            return self.check_count(part);
        }
        if self.lost.contains(&part.0) {
            return Err(ClientError::LostHolder { part });
        }
        Ok(())
    }

    /// Fails unless a partition that is held has as many holders as there are to be, where that is
    /// known, all of them by one change.
    pub(in super::super) fn check_count(&self, part: PartId) -> Result<(), ClientError> {
        self.routes.check_one_history(part)?;
        let (holders, membership) = (self.routes.holders_of(part), self.routes.membership(part));
        let (expected, found) = (usize::from(membership.n_holders), holders.len());
        if membership.generation == 0 || found == 0 || expected == found {
            return Ok(());
        }
        let found_at: Vec<String> =
            holders.iter().map(|&it| self.address(it).to_string()).collect();
        let found_at = found_at.join(", ");
        Err(ClientError::HolderCount { part, expected, found, found_at })
    }

    /// Whether nobody holds a partition, nobody who is away did, and it is on its way to nobody: when
    /// all have answered there is nobody to wait for.
    pub(in super::super) fn is_nowhere(&self, part: PartId) -> bool {
        let arrives = |description: &Description| description.arriving.contains(&part.0);
        self.routes.holders_of(part).is_empty()
            && !self.away.contains(&part.0)
            && !self.servers.iter().any(|(_, description)| arrives(description))
    }

    /// Notes, where this fleet has come after `before`, of which partitions a holder is not to be found.
    pub(super) fn find_lost(&mut self, before: &Self) {
        let counts = replicas(&self.servers);
        let is_lost = |part: &u16, expected: usize| {
            expected > 1 && counts.get(part).copied().unwrap_or(0) < expected
        };
        let lost = self.replicas.iter().filter(|(part, expected)| is_lost(part, **expected));
        self.lost = lost.map(|(&part, _)| part).collect();
        let gone = before.servers.iter().filter(|(address, _)| self.position(address).is_none());
        let theirs = gone.flat_map(|(_, description)| &description.parts);
        self.away = theirs.chain(&before.away).copied().collect();
        let routes = &self.routes;
        self.away.retain(|&part| routes.holders_of(PartId(part)).is_empty());
    }

    /// Whether these servers hold something of another's less often than it is to be held, or was when
    /// this client connected, or not at all.
    pub(super) fn needs(&self, servers: &[(Address, Description)], other: &Description) -> bool {
        if servers.iter().any(|(_, it)| it.is_same_server(other)) {
            return false;
        }
        let n_holders =
            |part: &u16| each_once(servers).filter(|it| it.parts.contains(part)).count();
        let expected = |part: u16, told: Membership| match told.generation {
            0 => self.replicas.get(&part).copied().unwrap_or(0).max(1),
            _ => usize::from(told.n_holders),
        };
        other.held().any(|(part, told)| n_holders(&part) < expected(part, told))
    }
}

/// How many of these servers take puts of each partition of which nobody says how many there are to be.
pub(in super::super) fn replicas(servers: &[(Address, Description)]) -> BTreeMap<u16, usize> {
    let mut counts = BTreeMap::new();
    let writable = each_once(servers).filter(|description| description.writable);
    let held = writable.flat_map(Description::held);
    for (part, _) in held.filter(|(_, told)| told.generation == 0) {
        *counts.entry(part).or_default() += 1;
    }
    counts
}

/// What each server describes, once for all of its addresses.
fn each_once(servers: &[(Address, Description)]) -> impl Iterator<Item = &Description> {
    let is_first = |(at, it): &(usize, &(Address, Description))| {
        !servers[..*at].iter().any(|(_, before)| before.is_same_server(&it.1))
    };
    servers.iter().enumerate().filter(is_first).map(|(_, (_, description))| description)
}

#[cfg(test)]
mod tests;
