//! Refreshed views: some servers are described again, and the others stay as they are.

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

/// Longest wait for a lost server to describe itself again.
const REDISCOVER_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest such wait if other servers hold its partitions.
const REDISCOVER_TIMEOUT_SPARE: Duration = Duration::from_millis(250);

impl ClusterView {
    /// Returns whether this view and `other` describe `server` differently.
    pub(in super::super) fn describes_otherwise(&self, server: usize, other: &Self) -> bool {
        self.servers[server].1 != other.servers[server].1
    }

    /// Returns the view with a new description of `server`, if that has changed.
    ///
    /// # Errors
    /// The address serves another graph now.
    #[cfg(feature = "load")]
    pub(crate) fn refresh_server(
        self: &Arc<Self>,
        server: usize,
        deadline: Instant,
    ) -> Result<Option<Arc<Self>>, ClientError> {
        let found = self.ask_again(server, deadline)?;
        found.map(|found| self.with(server, found)).transpose()
    }

    /// Returns the new description of `server`; `None` if it does not respond or is unchanged.
    ///
    /// # Errors
    /// The address serves another graph now.
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
            // A description does not prove that the server has rows again, so it rests like others
            // that failed.
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Returns this view with a new description of `server`. If the server restarted, its other
    /// addresses get the description too.
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
        // A server that only restarted may restart again and again, so it rests like one that
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
    /// A server serves another graph.
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

    /// Returns a view of these servers, with the probes and the health of those that were known.
    fn of(&self, servers: Vec<(Address, Description)>) -> Result<Arc<Self>, ClientError> {
        let (tensors, security) = (Arc::clone(&self.tensors), self.security.clone());
        let mut view = Self::new(servers, tensors, security, Arc::clone(&self.sharing))?;
        view.find_away(self);
        // Shards with new ports start without the failures of the old ports.
        for (now, before) in view.inherit_probes(self) {
            view.routes.health(now).copy(self.routes.health(before));
        }
        Ok(Arc::new(view))
    }

    /// Records the load of known servers that the map reports.
    pub(in super::super) fn hear(&self, members: &[Member]) {
        for member in members {
            if let (Some(at), Some(busy)) = (self.position(&member.address), member.busy) {
                self.routes.health(at).tells(busy);
            }
        }
    }

    /// Returns the index of a server in this view.
    pub(in super::super) fn position(&self, address: &Address) -> Option<usize> {
        self.servers.iter().position(|(known, _)| known == address)
    }

    /// Asks all servers again, and those at new `addresses`. A named server that does not respond
    /// or serves another graph keeps its old description; if it has none, it is left out. A known
    /// server may be named no longer because its lease has expired: it stays if it responds and no
    /// other holds or writes what it does.
    ///
    /// Returns the view, or `None` if nothing changed, and whether every server responded.
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
        // Servers at `addresses` come first.
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

/// Finds the new description of a known server that restarted; `told` has the old and the new
/// description of each address. Otherwise an address that is silent, or has not been asked again,
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

/// Returns whether a description is unchanged, apart from versions and followers.
fn is_as_known(found: &Description, known: &Description) -> bool {
    let unversioned = |it: &Description| {
        let states = it.held().map(|(_, state)| PartState { version: 0, tag: 0, ..state });
        let (states, followers) = (states.collect(), Vec::new());
        Description { version: 0, states, followers, ..it.clone() }
    };
    unversioned(found) == unversioned(known)
}
