//! The fleet of this moment: replaced as servers come back or change, by any thread of the client.

use std::sync::{Arc, LockResult, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use lodestore_graph::fork::PerProcess;
use lodestore_schema::Description;

use super::{Fleet, Sharing};
use crate::{Address, ClientError, Security};

/// A client's fleet behind a lock, each process with a lock of its own.
pub(in super::super) struct CurrentFleet {
    current: PerProcess<RwLock<Arc<Fleet>>>,
    /// What the client connected to: for a child that was forked while a thread changed the fleet.
    first: Vec<(Address, Description)>,
    security: Security,
    sharing: Arc<Sharing>,
}

impl CurrentFleet {
    /// Begins with the fleet of these servers.
    ///
    /// # Errors
    /// The servers are not of one graph.
    pub(in super::super) fn new(
        servers: Vec<(Address, Description)>,
        security: Security,
        sharing: Sharing,
    ) -> Result<Self, ClientError> {
        let (sharing, first) = (Arc::new(sharing), servers.clone());
        let fleet = Fleet::new(servers, security.clone(), Arc::clone(&sharing))?;
        let current = PerProcess::with(RwLock::new(Arc::new(fleet)));
        Ok(Self { current, first, security, sharing })
    }

    /// Locks it for a look.
    pub(in super::super) fn read(&self) -> LockResult<RwLockReadGuard<'_, Arc<Fleet>>> {
        self.of_process().read()
    }

    /// Locks it for a change.
    pub(in super::super) fn write(&self) -> LockResult<RwLockWriteGuard<'_, Arc<Fleet>>> {
        self.of_process().write()
    }

    /// This process's: a child begins with its parent's, which is of use to it but for connections, that
    /// is, with its first where a thread that is not there has the parent's locked.
    fn of_process(&self) -> &RwLock<Arc<Fleet>> {
        self.current.get_or(|parents| {
            let seen = parents.and_then(|parents| match parents.try_read() {
                Ok(fleet) => Some(Arc::clone(&fleet)),
                Err(TryLockError::Poisoned(fleet)) => Some(Arc::clone(&fleet.into_inner())),
                Err(TryLockError::WouldBlock) => None,
            });
            RwLock::new(seen.unwrap_or_else(|| self.first()))
        })
    }

    fn first(&self) -> Arc<Fleet> {
        let (servers, sharing) = (self.first.clone(), Arc::clone(&self.sharing));
        let fleet = Fleet::new(servers, self.security.clone(), sharing);
        // The same servers made one when the client connected.
        Arc::new(fleet.unwrap_or_else(|error| unreachable!("they were of one graph: {error}")))
    }
}
