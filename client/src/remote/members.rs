//! Which servers there are, and what each of them holds by now.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use lodestore_schema::Description;
use tracing::warn;

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
fn find(
    map: &ClusterMap,
    config: &ClientConfig,
    deadline: Instant,
) -> Result<Vec<(Address, Description)>, ClientError> {
    if map.is_live() {
        find_living(map, config, deadline)
    } else {
        find_named(map, &config.security, deadline)
    }
}

/// Of the servers of a live map one is enough, and it is waited for within the deadline: etcd, or the
/// server, may be about to start.
fn find_living(
    map: &ClusterMap,
    config: &ClientConfig,
    deadline: Instant,
) -> Result<Vec<(Address, Description)>, ClientError> {
    let mut patience = Patience::new(config, deadline);
    loop {
        let error = match find_some(map, &config.security, deadline) {
            Ok(asked) if !asked.servers.is_empty() => return Ok(asked.servers),
            Ok(asked) => asked.absent.into_iter().next().map_or(ClientError::NoServers, |it| it.1),
            Err(error) => error,
        };
        let remedy =
            if comes_later(&error) { Remedy::Later(Duration::ZERO) } else { Remedy::Again };
        std::thread::sleep(patience.pause(remedy).ok_or(error)?);
    }
}

/// Of servers that are named one by one any may be away if others have every partition.
///
/// # Errors
/// A server that is there and is not what was expected, or cannot be reached and has rows that no
/// other has; one that is silent has until the deadline.
fn find_named(
    map: &ClusterMap,
    security: &Security,
    deadline: Instant,
) -> Result<Vec<(Address, Description)>, ClientError> {
    loop {
        let Asked { servers, mut absent } = find_some(map, security, deadline)?;
        if let Some(at) = absent.iter().position(|(_, error)| !is_absence(error)) {
            return Err(absent.swap_remove(at).1);
        }
        let Some((_, error)) = absent.first() else { return Ok(servers) };
        if has_all_parts(&servers) {
            let all: Vec<String> = absent.iter().map(|(address, _)| address.to_string()).collect();
            warn!(absent = all.join(", "), %error, "others have their rows");
            return Ok(servers);
        }
        let silent = absent.iter().position(|(_, error)| is_silence(error));
        if silent.is_none() || Instant::now() >= deadline {
            return Err(absent.swap_remove(silent.unwrap_or(0)).1);
        }
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

/// A map's servers, in its order.
struct Asked {
    servers: Vec<(Address, Description)>,
    absent: Vec<(Address, ClientError)>,
}

/// Whether a server cannot be reached, or not now; anything else is a mistake that somebody should
/// hear of.
fn is_absence(error: &ClientError) -> bool {
    is_silence(error) || matches!(Remedy::of(error), Remedy::Again | Remedy::Later(_))
}

fn is_silence(error: &ClientError) -> bool {
    match error {
        ClientError::Deadline { .. } => true,
        ClientError::Connect { source, .. } | ClientError::Unavailable { source, .. } => {
            source.kind() == std::io::ErrorKind::TimedOut
        }
        _ => false,
    }
}

fn has_all_parts(servers: &[(Address, Description)]) -> bool {
    let Some((_, first)) = servers.first() else { return false };
    let n_parts = first.bounds.len().saturating_sub(1);
    (0..n_parts)
        .all(|part| servers.iter().any(|(_, it)| it.parts.iter().any(|&p| usize::from(p) == part)))
}

/// Asks all of a map's servers at once.
fn find_some(
    map: &ClusterMap,
    security: &Security,
    deadline: Instant,
) -> Result<Asked, ClientError> {
    let until = deadline.min(Instant::now() + DESCRIBE_TIMEOUT);
    let members = map.members()?;
    let ask = |address: &Address| (address.clone(), describe(address, security, until));
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads = members.iter().map(|it| scope.spawn(|| ask(&it.address)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let mut asked = Asked { servers: Vec::new(), absent: Vec::new() };
    for (address, described) in all {
        match described {
            Ok(description) => asked.servers.push((address, description)),
            Err(error) => asked.absent.push((address, error)),
        }
    }
    Ok(asked)
}

/// Whether every server that the map names is among these.
pub(super) fn are_all(map: &ClusterMap, servers: &[(Address, Description)]) -> bool {
    let is_there = |member: &Member| servers.iter().any(|(known, _)| *known == member.address);
    map.members().is_ok_and(|members| members.iter().all(is_there))
}

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
