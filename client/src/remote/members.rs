//! Which servers there are, and what each of them holds by now.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use lodestore_schema::Description;

use super::describe::describe;
use super::fleet::{Fleet, replicas};
use super::patience::{Patience, Remedy};
use super::{Client, ClientConfig};
use crate::cluster::{ClusterMap, Member};
use crate::{Address, ClientError, Security};

/// Longest wait for the first words of a server that a map names, where others may do.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often all servers are asked anew until they agree about replicas.
const ROUNDS_MAX: usize = 8;

/// The servers of a map with what they hold, all of it of one moment where puts depend on that: while
/// one of several holders of a partition is on its way, one may have been asked before and another
/// after. Then a second answer differs from the first.
pub(super) fn find_settled(
    map: &ClusterMap,
    config: &ClientConfig,
    deadline: Instant,
) -> Result<Vec<(Address, Description)>, ClientError> {
    let mut servers = find(map, config, deadline)?;
    for _ in 0..ROUNDS_MAX {
        let counts = replicas(&servers);
        if counts.values().all(|&n_holders| n_holders < 2) {
            break;
        }
        servers = find(map, config, deadline)?;
        if replicas(&servers) == counts {
            break;
        }
    }
    Ok(servers)
}

/// The servers of a map with what they hold.
///
/// Those that are named one by one must all answer; of those of a live map one is enough, and it is
/// waited for within the deadline: etcd, or the server, may be about to start.
fn find(
    map: &ClusterMap,
    config: &ClientConfig,
    deadline: Instant,
) -> Result<Vec<(Address, Description)>, ClientError> {
    let security = &config.security;
    if !map.is_live() {
        let describe = |member: Member| {
            let description = describe(&member.address, security, deadline)?;
            Ok((member.address, description))
        };
        return map.members()?.into_iter().map(describe).collect();
    }
    let mut patience = Patience::new(config, deadline);
    loop {
        let error = match find_some(map, security, deadline) {
            Ok(servers) => return Ok(servers),
            Err(error) => error,
        };
        let remedy =
            if comes_later(&error) { Remedy::Later(Duration::ZERO) } else { Remedy::Again };
        std::thread::sleep(patience.pause(remedy).ok_or(error)?);
    }
}

/// Whether etcd, or a server, may be about to start; a file that is not there is a slip of the pen.
fn comes_later(error: &ClientError) -> bool {
    match error {
        ClientError::NoServers | ClientError::Connect { .. } | ClientError::Unavailable { .. } => {
            true
        }
        ClientError::Map { map, .. } => map.starts_with("etcd:"),
        _ => false,
    }
}

/// Those of a map's servers that answer.
fn find_some(
    map: &ClusterMap,
    security: &Security,
    deadline: Instant,
) -> Result<Vec<(Address, Description)>, ClientError> {
    let until = deadline.min(Instant::now() + DESCRIBE_TIMEOUT);
    let members = map.members()?;
    let ask = |address: &Address| (address.clone(), describe(address, security, until));
    let asked: Vec<_> = std::thread::scope(|scope| {
        let threads = members.iter().map(|it| scope.spawn(|| ask(&it.address)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let (mut found, mut failure) = (Vec::new(), ClientError::NoServers);
    for (address, described) in asked {
        match described {
            Ok(description) => found.push((address, description)),
            Err(error) => failure = error,
        }
    }
    if found.is_empty() { Err(failure) } else { Ok(found) }
}

/// Whether every server that the map names is among these.
pub(super) fn are_all(map: &ClusterMap, servers: &[(Address, Description)]) -> bool {
    let is_there = |member: &Member| servers.iter().any(|(known, _)| *known == member.address);
    map.members().is_ok_and(|members| members.iter().all(is_there))
}

impl Client {
    /// The fleet for puts: of all servers that the map names, since one that was away when this
    /// client connected may hold what is put.
    ///
    /// # Errors
    /// One of them has not been heard of within the deadline.
    pub(super) fn fleet_for_puts(
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
            let pause = patience.pause(Remedy::Later(Duration::ZERO));
            std::thread::sleep(pause.ok_or_else(|| ClientError::Map {
                map: "put".to_owned(),
                reason: "a server that the map names has not been heard of, and may hold what is put; \
                         start it, or take it out of the map"
                    .to_owned(),
            })?);
        }
        self.fleet_now(deadline)
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
        let mut fleet = self.fleet_for_puts(deadline, &mut patience)?;
        if !fleet.roams() && !self.map.is_live() {
            return Ok(fleet);
        }
        fleet = self.refresh(fleet, deadline)?;
        while let Err(gap) = self.book.parts().try_for_each(|part| fleet.check_holders(part)) {
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
        if !matches!(error, ClientError::NoHolder { .. } | ClientError::LostHolder { .. }) {
            return Err(error);
        }
        let fleet = self.refresh(fleet, deadline)?;
        // A move may take long, and a server that comes back too.
        let comes_back = fleet.roams() || self.map.is_live();
        let remedy = if comes_back { Remedy::Later(Duration::ZERO) } else { Remedy::Again };
        if let Some(pause) = patience.pause(remedy) {
            std::thread::sleep(pause);
            return Ok(fleet);
        }
        Err(error)
    }

    /// The fleet with all servers asked anew, unless another thread has done that since `fleet`.
    pub(super) fn refresh(
        &self,
        fleet: Arc<Fleet>,
        deadline: Instant,
    ) -> Result<Arc<Fleet>, ClientError> {
        let current = self.fleet();
        if !Arc::ptr_eq(&current, &fleet) {
            return Ok(current);
        }
        let members = self.map.members().unwrap_or_else(|error| {
            tracing::warn!(%error, "the servers known so far stay");
            Vec::new()
        });
        let mut addresses: Vec<Address> = members.iter().map(|it| it.address.clone()).collect();
        if addresses.is_empty() {
            addresses = fleet.addresses().cloned().collect();
        }
        let Some(found) = fleet.refreshed(&addresses, deadline)? else { return Ok(fleet) };
        let mut current = self.fleet.write().unwrap_or_else(PoisonError::into_inner);
        // Who was faster has asked at the same time.
        if Arc::ptr_eq(&current, &fleet) {
            found.hear(&members);
            *current = found;
        }
        Ok(Arc::clone(&current))
    }
}
