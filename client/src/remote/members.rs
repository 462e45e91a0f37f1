//! Refreshes of the view: servers are described again after the map or a server has changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lodestore_graph::lock::IgnorePoison;
use lodestore_schema::reply::Description;

use super::Client;
use super::cluster_view::ClusterView;
use super::describe::describe;
use super::discovery::{are_all, find};
use super::parallel::parallel_map;
use super::retry::{RetryAction, RetryBudget};
use crate::address::Address;
use crate::error::ClientError;

/// Longest wait for the description of one server of several.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The servers that responded with their descriptions, and the error of one that did not.
type LivingServers = (Vec<(Address, Description)>, Option<ClientError>);

impl Client {
    /// Returns the view of all named servers: one that was down when this client connected may hold
    /// the missing partition.
    ///
    /// # Errors
    /// A server has not responded: one of a live map within the deadline, others within the
    /// attempts.
    pub(super) fn all_servers(
        &self,
        retry: &mut RetryBudget,
    ) -> Result<Arc<ClusterView>, ClientError> {
        while !self.has_heard_all.load(Ordering::Acquire) {
            let servers = find(&self.map, &self.config, retry.deadline)?;
            if are_all(&self.map, &servers) {
                let mut current = self.view.write().ignore_poison();
                *current = current.with_servers(servers)?;
                self.has_heard_all.store(true, Ordering::Release);
                break;
            }
            let is_live = self.map.is_live();
            let action =
                if is_live { RetryAction::Later(Duration::ZERO) } else { RetryAction::Again };
            std::thread::sleep(retry.pause(action).ok_or_else(|| self.unreachable())?);
        }
        self.current_view(retry.deadline)
    }

    /// Returns the error of a write while some servers have not responded.
    fn unreachable(&self) -> ClientError {
        let (view, members) = (self.view(), self.map.members().unwrap_or_default());
        let absent = members.iter().map(|it| &it.address);
        let absent = absent.filter(|address| view.position(address).is_none());
        let absent: Vec<String> = absent.map(ToString::to_string).collect();
        ClientError::Unreachable { addresses: absent.join(", ") }
    }

    /// Returns the view, after a refresh of all servers if the map has changed since the last one.
    pub(super) fn current_view(&self, deadline: Instant) -> Result<Arc<ClusterView>, ClientError> {
        let (view, changes) = (self.view(), self.map.changes());
        if self.map_changes.swap(changes, Ordering::AcqRel) == changes {
            return Ok(view);
        }
        self.refresh(view, deadline)
    }

    /// Returns the writers of all partitions, each once, and the view that they belong to. Live
    /// maps and moving partitions are refreshed first. Servers that are named one by one may hold
    /// only some of the partitions.
    ///
    /// # Errors
    /// A partition has no writer within the deadline, or has two.
    pub(super) fn writers(
        &self,
        deadline: Instant,
    ) -> Result<(Arc<ClusterView>, Vec<usize>), ClientError> {
        let mut retry = RetryBudget::new(&self.config, deadline);
        let mut view = self.current_view(deadline)?;
        let is_fixed = !view.roams() && !self.map.is_live();
        if !is_fixed {
            view = self.refresh(view, deadline)?;
        }
        loop {
            let is_partial = is_fixed && self.has_heard_all.load(Ordering::Acquire);
            let mut parts = self.book.parts();
            let found = parts.try_fold(Vec::new(), |mut writers, part| {
                match view.writer_of(part) {
                    Ok(writer) if writers.contains(&writer) => {}
                    Ok(writer) => writers.push(writer),
                    Err(ClientError::NoReplica { .. }) if is_partial => {}
                    Err(gap) => return Err(gap),
                }
                Ok(writers)
            });
            let gap = match found {
                Ok(writers) if writers.is_empty() => return Err(ClientError::NoNodes),
                Ok(writers) => return Ok((view, writers)),
                Err(gap) => gap,
            };
            view = match self.has_heard_all.load(Ordering::Acquire) {
                true => self.after_gap(view, gap, &mut retry)?,
                false => self.all_servers(&mut retry)?,
            };
        }
    }

    /// Returns the view on which `plan` succeeds, and its result. If a partition has no server, as
    /// for a moment during a move, all servers are asked again.
    pub(super) fn plan_on<T>(
        &self,
        mut view: Arc<ClusterView>,
        retry: &mut RetryBudget,
        mut plan: impl FnMut(&ClusterView) -> Result<T, ClientError>,
    ) -> Result<(Arc<ClusterView>, T), ClientError> {
        loop {
            match plan(&view) {
                Ok(found) => return Ok((view, found)),
                Err(gap) => view = self.after_gap(view, gap, retry)?,
            }
        }
    }

    /// Returns the view to continue with after `view` had no server, no writer or two writers of a
    /// partition. Returns any other error.
    fn after_gap(
        &self,
        view: Arc<ClusterView>,
        error: ClientError,
        retry: &mut RetryBudget,
    ) -> Result<Arc<ClusterView>, ClientError> {
        let part = match error {
            ClientError::NoReplica { part }
            | ClientError::NoWriter { part, .. }
            | ClientError::TwoWriters { part, .. } => part,
            error => return Err(error),
        };
        // The writer may be a server that has not responded yet.
        let is_unwritten = matches!(error, ClientError::NoWriter { .. });
        if is_unwritten && !self.has_heard_all.load(Ordering::Acquire) {
            return self.all_servers(retry);
        }
        let (view, all_answered) = self.ask_all(view, retry.deadline)?;
        // While a partition moves, replies of different moments may both show a gap; a second round
        // settles that. Otherwise only an operator can end the state, and nothing is waited for.
        let stays = !view.roams() && !self.map.is_live();
        let is_final = match view.writer_of(part) {
            Err(ClientError::TwoWriters { .. }) => true,
            Err(ClientError::NoWriter { .. }) => stays,
            _ => view.is_missing(part),
        };
        if retry.confirm_missing(part, all_answered && is_final) {
            return Err(error);
        }
        // A move may take long, and so may the restart of a server.
        let may_come =
            view.roams() || self.map.is_live() || !self.has_heard_all.load(Ordering::Acquire);
        let action = if may_come { RetryAction::Later(Duration::ZERO) } else { RetryAction::Again };
        if let Some(pause) = retry.pause(action) {
            std::thread::sleep(pause);
            return Ok(view);
        }
        Err(error)
    }

    /// Returns the descriptions of all servers that respond in time, and the error of the first
    /// that does not.
    pub(super) fn ask_living(&self, deadline: Instant) -> Result<LivingServers, ClientError> {
        let view = self.current_view(deadline)?;
        let members = self.map.members().unwrap_or_default();
        let mut addresses: Vec<&Address> = members.iter().map(|it| &it.address).collect();
        let others = view.addresses().filter(|it| !addresses.contains(it)).collect::<Vec<_>>();
        addresses.extend(others);
        let security = &self.config.security;
        let until = deadline.min(Instant::now() + DESCRIBE_TIMEOUT);
        let answers = parallel_map(&addresses, |&address| describe(address, security, until));
        let (mut living, mut failure) = (Vec::new(), None);
        for (&address, answer) in addresses.iter().zip(answers) {
            match answer {
                Ok(found) if found.graph_tag() == view.graph => {
                    living.push((address.clone(), found));
                }
                // The server serves another graph now, and no partition of this one.
                Ok(_) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Ok((living, failure))
    }

    /// Returns the view after all servers were asked again, unless another thread has replaced
    /// `view`.
    pub(crate) fn refresh(
        &self,
        view: Arc<ClusterView>,
        deadline: Instant,
    ) -> Result<Arc<ClusterView>, ClientError> {
        Ok(self.ask_all(view, deadline)?.0)
    }

    /// Like [`Self::refresh`]; also returns whether all known and named servers have just
    /// responded.
    fn ask_all(
        &self,
        view: Arc<ClusterView>,
        deadline: Instant,
    ) -> Result<(Arc<ClusterView>, bool), ClientError> {
        let current = self.view();
        if !Arc::ptr_eq(&current, &view) {
            return Ok((current, false));
        }
        let members = self.map.members();
        let is_current = members.is_ok() && self.map.is_current();
        let members = members.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the map of servers, keeping the known servers");
            Vec::new()
        });
        let mut addresses: Vec<Address> = members.iter().map(|it| it.address.clone()).collect();
        if addresses.is_empty() {
            addresses = view.addresses().cloned().collect();
        }
        let (found, all_answered) = view.refreshed(&addresses, deadline)?;
        let all_answered = all_answered && is_current;
        let Some(found) = found else { return Ok((view, all_answered)) };
        let mut current = self.view.write().ignore_poison();
        // Another thread may have refreshed the view meanwhile.
        if Arc::ptr_eq(&current, &view) {
            found.hear(&members);
            *current = found;
        }
        Ok((Arc::clone(&current), all_answered))
    }
}
