//! Servers asked again: what is known of the others stays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lodestore_schema::reply::{Description, PartState};

use super::super::describe::describe;
use super::super::parallel::parallel_map;
use super::ClusterView;
use crate::address::Address;
use crate::cluster::Member;
use crate::error::ClientError;
use crate::route::same_graph;

/// Longest wait for a server that was just lost to describe itself again.
const REDISCOVER_TIMEOUT: Duration = Duration::from_secs(1);
/// The same where others hold what it holds.
const REDISCOVER_TIMEOUT_SPARE: Duration = Duration::from_millis(250);

impl ClusterView {
    /// Returns whether `other` has a description of `server` that is not this one's.
    pub(in super::super) fn describes_otherwise(&self, server: usize, other: &Self) -> bool {
        self.servers[server].1 != other.servers[server].1
    }

    /// Returns the view with `server` asked again, if there is something new.
    ///
    /// # Errors
    /// Another graph is served at its address now.
    #[cfg(feature = "load")]
    pub(crate) fn refresh_server(
        self: &Arc<Self>,
        server: usize,
        deadline: Instant,
    ) -> Result<Option<Arc<Self>>, ClientError> {
        let found = self.ask_again(server, deadline)?;
        found.map(|found| self.with(server, found)).transpose()
    }

    /// Returns the partitions that `server` holds now and the ports of its shards.
    ///
    /// `None` when it does not answer, or is as it was known.
    ///
    /// # Errors
    /// Another graph is served at its address now.
    pub(in super::super) fn ask_again(
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
            Ok(found) if !is_as_known(&found, known) => Ok(Some(found)),
            // That it describes itself does not say that it has rows: it rests like others that
            // failed.
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Returns the same view with a new description of `server`. If it has started again, its other
    /// addresses get it too.
    pub(in super::super) fn with(
        self: &Arc<Self>,
        server: usize,
        found: Description,
    ) -> Result<Arc<Self>, ClientError> {
        let mut servers = self.servers.clone();
        let known = std::mem::replace(&mut servers[server].1, found.clone());
        for (_, other) in &mut servers {
            if let Some(restarted) = restarted(other, std::iter::once((&known, &found))) {
                *other = restarted.clone();
            }
        }
        // One that merely starts again, as others may again and again, rests like those that
        // failed.
        let is_back = !is_as_known(&Description { instance: known.instance, ..found }, &known);
        let view = self.of(servers)?;
        if is_back {
            view.routes.health(server).is_back();
        }
        Ok(view)
    }

    /// Returns a view of all servers that the map names.
    ///
    /// # Errors
    /// One of them serves another graph than those that are known.
    pub(in super::super) fn with_servers(
        &self,
        servers: Vec<(Address, Description)>,
    ) -> Result<Arc<Self>, ClientError> {
        let (known, first) = &self.servers[0];
        if let Some((address, _)) = servers.iter().find(|(_, it)| !same_graph(it, first)) {
            let (address, other) = (address.clone(), known.clone());
            return Err(ClientError::GraphsDiffer { address, other });
        }
        let security = self.security.clone();
        let tensors = Arc::clone(&self.tensors);
        let mut view = Self::new(servers, tensors, security, Arc::clone(&self.sharing))?;
        view.inherit_probes(self);
        Ok(Arc::new(view))
    }

    /// Returns a view of these servers, which takes over what is known of those that it had.
    fn of(&self, servers: Vec<(Address, Description)>) -> Result<Arc<Self>, ClientError> {
        let (tensors, security) = (Arc::clone(&self.tensors), self.security.clone());
        let mut view = Self::new(servers, tensors, security, Arc::clone(&self.sharing))?;
        view.find_away(self);
        // Where its shards listen elsewhere, those that failed are not those that are asked now.
        for (now, before) in view.inherit_probes(self) {
            view.routes.health(now).copy(self.routes.health(before));
        }
        Ok(Arc::new(view))
    }

    /// Adopts a map's entries of servers that are not known yet.
    pub(in super::super) fn hear(&self, members: &[Member]) {
        for member in members {
            if let (Some(at), Some(busy)) = (self.position(&member.address), member.busy) {
                self.routes.health(at).tells(busy);
            }
        }
    }

    /// Returns the place of a server among those of this view.
    pub(in super::super) fn position(&self, address: &Address) -> Option<usize> {
        self.servers.iter().position(|(known, _)| known == address)
    }

    /// Asks all servers again, those at other `addresses` too. One that does not answer, or has
    /// another graph, is left as it was known, or out. A known one may be at none of these any
    /// more, since its lease has run out. It stays if it answers and no other has what it has.
    ///
    /// Returns the view, `None` if nothing is new, and whether no server was away.
    pub(in super::super) fn refreshed(
        &self,
        addresses: &[Address],
        deadline: Instant,
    ) -> Result<(Option<Arc<Self>>, bool), ClientError> {
        let first = &self.servers[0].1;
        let ask = |address: &&Address| {
            let address = *address;
            let until = deadline.min(Instant::now() + REDISCOVER_TIMEOUT_SPARE);
            (address.clone(), describe(address, &self.security, until))
        };
        let others = self.addresses().filter(|it| !addresses.contains(it));
        let all: Vec<&Address> = addresses.iter().chain(others).collect();
        let answers = parallel_map(&all, ask);
        let all_answered = answers.iter().all(|(_, answer)| answer.is_ok());
        let of_graph = |(address, answer): (_, Result<_, _>)| {
            (address, answer.ok().filter(|found| same_graph(found, first)))
        };
        let answers: Vec<(Address, Option<Description>)> =
            answers.into_iter().map(of_graph).collect();
        let known = |address: &Address| self.position(address).map(|at| &self.servers[at].1);
        let told = || answers.iter().filter_map(|(at, found)| Some((known(at)?, found.as_ref()?)));
        let mut asked: Vec<(Address, Description)> = Vec::with_capacity(answers.len());
        // Those at `addresses` come first.
        for (address, found) in &answers {
            let is_named = addresses.contains(address);
            let kept = || known(address).filter(|_| is_named);
            let found =
                found.as_ref().or_else(|| kept().map(|it| restarted(it, told()).unwrap_or(it)));
            if let Some(found) = found
                && (is_named || self.needs(&asked, found))
            {
                asked.push((address.clone(), found.clone()));
            }
        }
        let is_same = |(new, old): (&(Address, Description), &(Address, Description))| {
            new.0 == old.0 && is_as_known(&new.1, &old.1)
        };
        let nothing_new =
            asked.len() == self.servers.len() && asked.iter().zip(&self.servers).all(is_same);
        let is_old = asked.is_empty() || nothing_new;
        let view = if is_old { None } else { Some(self.of(asked)?) };
        Ok((view, all_answered))
    }
}

/// Finds the present state of a known server that has started again, by the former and present
/// states of its addresses in `told`. Else an address that has not been asked since, or is silent,
/// would count as another server.
pub(super) fn restarted<'a>(
    known: &Description,
    mut told: impl Iterator<Item = (&'a Description, &'a Description)>,
) -> Option<&'a Description> {
    let is_restarted = |(was, is): &(&Description, &Description)| {
        was.is_same_server(known) && !is.is_same_server(known)
    };
    told.find(is_restarted).map(|(_, is)| is)
}

/// Returns whether a server holds what it held where it held it; a version committed meanwhile is
/// no difference.
fn is_as_known(found: &Description, known: &Description) -> bool {
    let unversioned = |it: &Description| {
        let states = it.held().map(|(_, state)| PartState { version: 0, tag: 0, ..state });
        let (states, followers) = (states.collect(), Vec::new());
        Description { version: 0, states, followers, ..it.clone() }
    };
    unversioned(found) == unversioned(known)
}
