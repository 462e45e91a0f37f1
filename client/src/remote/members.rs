//! What the servers hold by now, asked anew as often as something has changed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::Client;
use super::find::{are_all, find_settled};
use super::fleet::{Fleet, Refreshed};
use super::patience::{Patience, Remedy};
use crate::{Address, ClientError};

impl Client {
    /// The fleet for puts, commits and whatever else concerns every holder: of all servers that are
    /// named, since one that was away when this client connected may hold what is put.
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
            let servers = find_settled(&self.map, &self.config, deadline)?;
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

    /// The fleet, with all servers asked anew if the map has changed since they were last.
    pub(super) fn fleet_now(&self, deadline: Instant) -> Result<Arc<Fleet>, ClientError> {
        let (fleet, changes) = (self.fleet(), self.map.changes());
        if self.map_changes.swap(changes, Ordering::AcqRel) == changes {
            return Ok(fleet);
        }
        self.refresh(fleet, deadline)
    }

    /// The fleet for what is asked of all servers, as the map names them now. Where partitions come and
    /// go it has every holder of each: one that nobody has at this moment would be left behind.
    ///
    /// # Errors
    /// A server or a holder has not been heard of within the deadline.
    pub(super) fn fleet_for_all(&self, deadline: Instant) -> Result<Arc<Fleet>, ClientError> {
        let mut patience = Patience::new(&self.config, deadline);
        let mut fleet = self.whole_fleet(deadline, &mut patience)?;
        let is_fixed = !fleet.roams() && !self.map.is_live();
        if !is_fixed {
            fleet = self.refresh(fleet, deadline)?;
        }
        // Servers that are named one by one may be some of all.
        let check = |fleet: &Fleet, part| match is_fixed {
            true => fleet.check_count(part),
            false => fleet.check_holders(part),
        };
        while let Err(gap) = self.book.parts().try_for_each(|part| check(&fleet, part)) {
            fleet = self.after_gap(fleet, gap, deadline, &mut patience)?;
        }
        Ok(fleet)
    }

    /// The fleet to go on with when nobody in `fleet` has a partition; any other error comes back.
    pub(super) fn after_gap(
        &self,
        fleet: Arc<Fleet>,
        error: ClientError,
        deadline: Instant,
        patience: &mut Patience,
    ) -> Result<Arc<Fleet>, ClientError> {
        let part = match error {
            ClientError::NoHolder { part }
            | ClientError::LostHolder { part }
            | ClientError::HolderCount { part, .. }
            | ClientError::HoldersCountedApart { part, .. } => part,
            error => return Err(error),
        };
        let (fleet, all_answered) = self.ask_all(fleet, deadline)?;
        // A person must end that, and may have: there is nothing to wait for, where all tell of now.
        if all_answered {
            fleet.routes.check_one_history(part)?;
        }
        // Whom to wait for?
        if patience.is_nowhere(part, all_answered && fleet.is_nowhere(part)) {
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

    /// The fleet with all servers asked anew, unless another thread has done that since `fleet`.
    pub(crate) fn refresh(
        &self,
        fleet: Arc<Fleet>,
        deadline: Instant,
    ) -> Result<Arc<Fleet>, ClientError> {
        Ok(self.ask_all(fleet, deadline)?.0)
    }

    /// The same, and whether all servers that are known or named have answered just now.
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
