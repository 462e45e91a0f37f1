//! Present holdings of the servers, asked again whenever something has changed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use lodestore_schema::Description;

use super::Client;
use super::at_once::at_once;
use super::describe::describe;
use super::find::{are_all, find};
use super::fleet::{Fleet, Refreshed};
use super::patience::{Patience, Remedy};
use crate::{Address, ClientError};

impl Client {
    /// The fleet of all servers that are named: one that was away when this client connected may
    /// have what is looked for.
    ///
    /// # Errors
    /// One of them has not been heard of: those of a live map within the deadline, others within
    /// the attempts.
    pub(super) fn whole_fleet(
        &self,
        deadline: Instant,
        patience: &mut Patience,
    ) -> Result<Arc<Fleet>, ClientError> {
        while !self.has_heard_all.load(Ordering::Acquire) {
            let servers = find(&self.map, &self.config, deadline)?;
            if are_all(&self.map, &servers) {
                let mut current = self.fleet.write().unwrap_or_else(PoisonError::into_inner);
                *current = current.anew(servers)?;
                self.has_heard_all.store(true, Ordering::Release);
                break;
            }
            let is_live = self.map.is_live();
            let remedy = if is_live { Remedy::Later(Duration::ZERO) } else { Remedy::Again };
            std::thread::sleep(patience.pause(remedy).ok_or_else(|| self.unheard())?);
        }
        self.fleet_now(deadline)
    }

    /// Why nothing can be written.
    fn unheard(&self) -> ClientError {
        let (fleet, members) = (self.fleet(), self.map.members().unwrap_or_default());
        let absent = members.iter().map(|it| &it.address);
        let absent = absent.filter(|address| fleet.position(address).is_none());
        let absent: Vec<String> = absent.map(ToString::to_string).collect();
        ClientError::Unheard { addresses: absent.join(", ") }
    }

    /// The fleet, with all servers asked again if the map has changed since they were last.
    pub(super) fn fleet_now(&self, deadline: Instant) -> Result<Arc<Fleet>, ClientError> {
        let (fleet, changes) = (self.fleet(), self.map.changes());
        if self.map_changes.swap(changes, Ordering::AcqRel) == changes {
            return Ok(fleet);
        }
        self.refresh(fleet, deadline)
    }

    /// Returns the writers of all partitions, each once, and the fleet that they are of, as the map
    /// names them now. Servers that are named one by one may have some of all partitions.
    ///
    /// # Errors
    /// A partition has no writer within the deadline, or two.
    pub(super) fn writers(
        &self,
        deadline: Instant,
    ) -> Result<(Arc<Fleet>, Vec<usize>), ClientError> {
        let mut patience = Patience::new(&self.config, deadline);
        let mut fleet = self.fleet_now(deadline)?;
        let is_fixed = !fleet.roams() && !self.map.is_live();
        if !is_fixed {
            fleet = self.refresh(fleet, deadline)?;
        }
        loop {
            let is_partial = is_fixed && self.has_heard_all.load(Ordering::Acquire);
            let mut parts = self.book.parts();
            let found = parts.try_fold(Vec::new(), |mut writers, part| {
                match fleet.writer_of(part) {
                    Ok(writer) if writers.contains(&writer) => {}
                    Ok(writer) => writers.push(writer),
                    Err(ClientError::NoHolder { .. }) if is_partial => {}
                    Err(gap) => return Err(gap),
                }
                Ok(writers)
            });
            let gap = match found {
                Ok(writers) if writers.is_empty() => return Err(ClientError::NoNodes),
                Ok(writers) => return Ok((fleet, writers)),
                Err(gap) => gap,
            };
            fleet = match self.has_heard_all.load(Ordering::Acquire) {
                true => self.after_gap(fleet, gap, deadline, &mut patience)?,
                false => self.whole_fleet(deadline, &mut patience)?,
            };
        }
    }

    /// The fleet to continue with when `fleet` has no server for a partition, no writer of it, or
    /// two; any other error comes back.
    pub(super) fn after_gap(
        &self,
        fleet: Arc<Fleet>,
        error: ClientError,
        deadline: Instant,
        patience: &mut Patience,
    ) -> Result<Arc<Fleet>, ClientError> {
        let part = match error {
            ClientError::NoHolder { part }
            | ClientError::NoWriter { part, .. }
            | ClientError::TwoWriters { part, .. } => part,
            error => return Err(error),
        };
        // The writer may be one that has not answered yet.
        let is_unwritten = matches!(error, ClientError::NoWriter { .. });
        if is_unwritten && !self.has_heard_all.load(Ordering::Acquire) {
            return self.whole_fleet(deadline, patience);
        }
        let (fleet, all_answered) = self.ask_all(fleet, deadline)?;
        // Answers of different moments may both say so of a partition that moves: a second round
        // may not. Nothing else is waited for where a person must end it.
        let stays = !fleet.roams() && !self.map.is_live();
        let is_final = match fleet.writer_of(part) {
            Err(ClientError::TwoWriters { .. }) => true,
            Err(ClientError::NoWriter { .. }) => stays,
            _ => fleet.is_nowhere(part),
        };
        if patience.is_nowhere(part, all_answered && is_final) {
            return Err(error);
        }
        // A move may take long, and a server that comes back, or was away, too.
        let may_come =
            fleet.roams() || self.map.is_live() || !self.has_heard_all.load(Ordering::Acquire);
        let remedy = if may_come { Remedy::Later(Duration::ZERO) } else { Remedy::Again };
        if let Some(pause) = patience.pause(remedy) {
            std::thread::sleep(pause);
            return Ok(fleet);
        }
        Err(error)
    }

    /// Returns what all servers hold at this moment, those that answer in time.
    pub(super) fn ask_versions(
        &self,
        deadline: Instant,
    ) -> Result<Vec<(Address, Description)>, ClientError> {
        let fleet = self.refresh(self.fleet(), deadline)?;
        let security = &self.config.security;
        let until = deadline.min(Instant::now() + Duration::from_secs(2));
        let addresses: Vec<&Address> = fleet.addresses().collect();
        let asked = at_once(&addresses, |&address| {
            let found = describe(address, security, until).ok()?;
            Some((address.clone(), found))
        });
        let found: Vec<_> = asked.into_iter().flatten().collect();
        Ok(found.into_iter().filter(|(_, it)| it.graph_tag() == fleet.graph).collect())
    }

    /// The fleet with all servers asked again, unless another thread has done that since `fleet`.
    pub(crate) fn refresh(
        &self,
        fleet: Arc<Fleet>,
        deadline: Instant,
    ) -> Result<Arc<Fleet>, ClientError> {
        Ok(self.ask_all(fleet, deadline)?.0)
    }

    /// Returns the same, and whether all servers that are known or named have answered just now.
    fn ask_all(
        &self,
        fleet: Arc<Fleet>,
        deadline: Instant,
    ) -> Result<(Arc<Fleet>, bool), ClientError> {
        let current = self.fleet();
        if !Arc::ptr_eq(&current, &fleet) {
            return Ok((current, false));
        }
        let members = self.map.members();
        let is_current = members.is_ok() && self.map.is_current();
        let members = members.unwrap_or_else(|error| {
            tracing::warn!(%error, "the servers known so far stay");
            Vec::new()
        });
        let mut addresses: Vec<Address> = members.iter().map(|it| it.address.clone()).collect();
        if addresses.is_empty() {
            addresses = fleet.addresses().cloned().collect();
        }
        let Refreshed { fleet: found, all_answered } = fleet.refreshed(&addresses, deadline)?;
        let all_answered = all_answered && is_current;
        let Some(found) = found else { return Ok((fleet, all_answered)) };
        let mut current = self.fleet.write().unwrap_or_else(PoisonError::into_inner);
        // Who was faster has asked at the same time.
        if Arc::ptr_eq(&current, &fleet) {
            found.hear(&members);
            *current = found;
        }
        Ok((Arc::clone(&current), all_answered))
    }
}
