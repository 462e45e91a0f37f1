//! Which servers there are, and what each of them holds by now.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::Client;
use super::fleet::Fleet;
use super::patience::{Patience, Remedy};
use crate::{Address, ClientError};

impl Client {
    /// The fleet to go on with when nobody in `fleet` has a partition; any other error comes back.
    pub(super) fn after_gap(
        &self,
        fleet: Arc<Fleet>,
        error: ClientError,
        deadline: Instant,
        patience: &mut Patience,
    ) -> Result<Arc<Fleet>, ClientError> {
        if !matches!(error, ClientError::NoHolder { .. }) {
            return Err(error);
        }
        let fleet = self.refresh(fleet, deadline)?;
        if let Some(pause) = patience.pause(Remedy::Again) {
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
        let addresses: Vec<Address> = fleet.addresses().cloned().collect();
        let Some(found) = fleet.refreshed(&addresses, deadline)? else { return Ok(fleet) };
        let mut current = self.fleet.write().unwrap_or_else(PoisonError::into_inner);
        // Who was faster has asked at the same time.
        if Arc::ptr_eq(&current, &fleet) {
            *current = found;
        }
        Ok(Arc::clone(&current))
    }
}
