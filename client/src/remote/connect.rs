//! Which servers there are: those that were named, and of them those that have answered.

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
/// The same in the midst of a pull that others have failed.
const JOIN_TIMEOUT: Duration = Duration::from_millis(250);
/// How often servers that did not answer are looked for at most.
const JOIN_PAUSE: Duration = Duration::from_secs(1);

/// The named servers, in their order.
pub(super) struct Found {
    pub(super) servers: Vec<(Address, Description)>,
    /// Servers that cannot be reached, though others may do.
    pub(super) absent: Vec<Address>,
    /// What the first of them is like.
    error: Option<ClientError>,
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
        let mut found = Self { servers, absent, error: None };
        let addresses: Vec<Address> =
            addresses.iter().map(|text| text.as_ref().parse()).collect::<Result<_, _>>()?;
        for address in addresses {
            let by = deadline.min(Instant::now() + DESCRIBE_TIMEOUT);
            match describe(&address, security, by) {
                Ok(description) => found.servers.push((address, description)),
                Err(error) if is_absence(&error) => {
                    found.error.get_or_insert(error);
                    found.absent.push(address);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Fails when rows are missing that a server may have which did not answer in time; those have
    /// until the deadline then.
    pub(super) fn need_all_rows(
        &mut self,
        security: &Security,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        while let Some(error) = self.error.take() {
            if self.has_all_parts() {
                let absent: Vec<String> = self.absent.iter().map(ToString::to_string).collect();
                warn!(absent = absent.join(", "), %error, "others have their rows");
                return Ok(());
            }
            if !matches!(error, ClientError::Deadline { .. }) {
                return Err(error);
            }
            let address = self.absent.remove(0);
            let description = describe(&address, security, deadline)?;
            self.servers.push((address, description));
            self.error = (!self.absent.is_empty()).then_some(error);
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

impl Client {
    /// The fleet with those that were absent, as far as they are there now; asks at most once in a
    /// while.
    pub(super) fn with_absent(
        &self,
        fleet: Arc<Fleet>,
        deadline: Instant,
    ) -> Result<Arc<Fleet>, ClientError> {
        if fleet.absent.is_empty() {
            return Ok(fleet);
        }
        let now = Instant::now();
        {
            let mut looked = lock(&self.looked);
            if looked.is_some_and(|at| now < at + JOIN_PAUSE) {
                return Ok(fleet);
            }
            *looked = Some(now);
        }
        let mut fleet = fleet;
        for address in fleet.absent.clone() {
            match self.join(&address, deadline.min(Instant::now() + JOIN_TIMEOUT)) {
                Ok(joined) => fleet = joined,
                Err(error) if is_absence(&error) => debug!(%address, %error, "still absent"),
                Err(error) => return Err(error),
            }
        }
        Ok(fleet)
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
