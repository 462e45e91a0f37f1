//! Which servers there are: those that were named, and of them those that have answered.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use lodestore_schema::Description;
use tracing::{debug, warn};

use super::describe::describe;
use super::fleet::Fleet;
use super::patience::Remedy;
use super::{Client, lock};
use crate::{Address, ClientError, Security};

/// How long a server may take to describe itself before it is left for later.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The same in the midst of a pull that others have failed, and for all that are absent together.
const JOIN_TIMEOUT: Duration = Duration::from_millis(250);
const JOIN_TIMEOUT_ALL: Duration = Duration::from_millis(500);
/// How often servers that did not answer are looked for at most.
const JOIN_PAUSE: Duration = Duration::from_secs(1);

/// The named servers, in their order.
pub(super) struct Found {
    pub(super) servers: Vec<(Address, Description)>,
    /// Servers that cannot be reached, though others may do.
    pub(super) absent: Vec<Address>,
    /// What each of them was like.
    errors: Vec<ClientError>,
}

impl Found {
    /// Asks all of them.
    ///
    /// # Errors
    /// An address that cannot be read, or a server that is there and is not what was expected.
    pub(super) fn new<A: AsRef<str>>(
        addresses: &[A],
        security: &Security,
        deadline: Instant,
    ) -> Result<Self, ClientError> {
        let (servers, absent) = (Vec::with_capacity(addresses.len()), Vec::new());
        let mut found = Self { servers, absent, errors: Vec::new() };
        let addresses: Vec<Address> =
            addresses.iter().map(|text| text.as_ref().parse()).collect::<Result<_, _>>()?;
        for address in addresses {
            let by = deadline.min(Instant::now() + DESCRIBE_TIMEOUT);
            match describe(&address, security, by) {
                Ok(description) => found.servers.push((address, description)),
                Err(error) if is_absence(&error) => {
                    found.errors.push(error);
                    found.absent.push(address);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Fails when rows are missing that nobody has who answers. Those who were silent are asked again
    /// until the deadline then, in turn, since one of them may have them.
    pub(super) fn need_all_rows(
        &mut self,
        security: &Security,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let mut next = 0;
        while !self.absent.is_empty() {
            if self.has_all_parts() {
                let absent: Vec<String> = self.absent.iter().map(ToString::to_string).collect();
                let error = &self.errors[0];
                warn!(absent = absent.join(", "), %error, "others have their rows");
                return Ok(());
            }
            let n_absent = self.absent.len();
            let mut in_turn = (0..n_absent).map(|i| (next + i) % n_absent);
            let silent = in_turn.find(|&at| is_silence(&self.errors[at]));
            let Some(at) = silent.filter(|_| Instant::now() < deadline) else {
                return Err(self.errors.swap_remove(0));
            };
            next = at + 1;
            match describe(
                &self.absent[at],
                security,
                deadline.min(Instant::now() + DESCRIBE_TIMEOUT),
            ) {
                Ok(description) => {
                    self.errors.remove(at);
                    self.servers.push((self.absent.remove(at), description));
                    next = at;
                }
                Err(error) if is_absence(&error) => self.errors[at] = error,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn has_all_parts(&self) -> bool {
        let Some((_, first)) = self.servers.first() else { return false };
        let n_parts = first.bounds.len().saturating_sub(1);
        (0..n_parts).all(|part| {
            self.servers.iter().any(|(_, it)| it.parts.iter().any(|&p| usize::from(p) == part))
        })
    }
}

/// Whether a server cannot be reached, or not now; anything else is a mistake that somebody should
/// hear of.
fn is_absence(error: &ClientError) -> bool {
    match error {
        ClientError::Deadline { .. } => true,
        error => matches!(Remedy::of(error), Remedy::Again | Remedy::Later(_)),
    }
}

/// Whether a server has not answered in time, and is perhaps merely slow.
fn is_silence(error: &ClientError) -> bool {
    match error {
        ClientError::Deadline { .. } => true,
        ClientError::Connect { source, .. } | ClientError::Unavailable { source, .. } => {
            source.kind() == io::ErrorKind::TimedOut
        }
        _ => false,
    }
}

impl Client {
    /// The fleet with those that were absent, as far as they are there now; asks at most once in a
    /// while. One that is not what it should be keeps no rows of others from anybody.
    pub(super) fn with_absent(&self, mut fleet: Arc<Fleet>, deadline: Instant) -> Arc<Fleet> {
        let now = Instant::now();
        if fleet.absent.is_empty() {
            return fleet;
        }
        {
            let mut looked = lock(&self.looked);
            if looked.is_some_and(|at| now < at + JOIN_PAUSE) {
                return fleet;
            }
            *looked = Some(now);
        }
        let (absent, end) = (fleet.absent.clone(), deadline.min(now + JOIN_TIMEOUT_ALL));
        for (address, n_left) in absent.iter().zip((1..=absent.len() as u32).rev()) {
            let now = Instant::now();
            let time = JOIN_TIMEOUT.min(end.saturating_duration_since(now) / n_left);
            match self.join(address, now + time) {
                Ok(joined) => fleet = joined,
                Err(error) if is_absence(&error) => debug!(%address, %error, "still absent"),
                Err(error) => warn!(%address, %error, "not one of these servers"),
            }
        }
        fleet
    }

    /// The fleet with all servers that were named, as writers need it: each holder must take what is
    /// written.
    ///
    /// # Errors
    /// One of them cannot be reached.
    pub(super) fn whole_fleet(&self, deadline: Instant) -> Result<Arc<Fleet>, ClientError> {
        let mut fleet = self.fleet();
        for address in fleet.absent.clone() {
            fleet = self.join(&address, deadline)?;
        }
        Ok(fleet)
    }

    /// Takes a server that was absent into the fleet.
    fn join(&self, address: &Address, deadline: Instant) -> Result<Arc<Fleet>, ClientError> {
        let description = describe(address, &self.config.security, deadline)?;
        let mut current = self.fleet.write().unwrap_or_else(PoisonError::into_inner);
        let joined = current.joined(address, description)?;
        *current = Arc::clone(&joined);
        Ok(joined)
    }
}
