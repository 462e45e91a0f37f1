//! The current view, which any thread of the client replaces as servers restart or change.

use std::sync::{Arc, LockResult, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use lodestore_graph::fork::PerProcess;
use lodestore_schema::reply::{Description, TensorDescription};

use super::{ClusterView, SharingMode};
use crate::address::Address;
use crate::error::ClientError;
use crate::route::known_tensors;
use crate::security::Security;

/// The current view of a client. Each process has its own lock.
pub(in super::super) struct CurrentView {
    current: PerProcess<RwLock<Arc<ClusterView>>>,
    /// The servers at connect time, for a child that is forked while a thread changes the view.
    first: Vec<(Address, Description)>,
    tensors: Arc<[TensorDescription]>,
    security: Security,
    sharing: Arc<SharingMode>,
}

impl CurrentView {
    /// Starts with a view of these servers.
    ///
    /// # Errors
    /// The servers serve different graphs.
    pub(in super::super) fn new(
        servers: Vec<(Address, Description)>,
        security: Security,
        sharing: SharingMode,
    ) -> Result<Self, ClientError> {
        let (sharing, first) = (Arc::new(sharing), servers.clone());
        let tensors: Arc<[TensorDescription]> = known_tensors(&servers)?.into();
        let (of_view, shared) = (Arc::clone(&tensors), Arc::clone(&sharing));
        let view = ClusterView::new(servers, of_view, security.clone(), shared)?;
        let current = PerProcess::with(RwLock::new(Arc::new(view)));
        Ok(Self { current, first, tensors, security, sharing })
    }

    /// Returns the tensors that the client knows.
    pub(in super::super) fn tensors(&self) -> &[TensorDescription] {
        &self.tensors
    }

    pub(in super::super) fn read(&self) -> LockResult<RwLockReadGuard<'_, Arc<ClusterView>>> {
        self.of_process().read()
    }

    pub(in super::super) fn write(&self) -> LockResult<RwLockWriteGuard<'_, Arc<ClusterView>>> {
        self.of_process().write()
    }

    fn of_process(&self) -> &RwLock<Arc<ClusterView>> {
        self.current.get_or(|parents| RwLock::new(self.inherit(parents)))
    }

    /// Returns the first view of a process: that of its parent, whose connections it does not use.
    /// If a thread of the parent was changing the view at the fork, the view of connect time.
    fn inherit(&self, parents: Option<&RwLock<Arc<ClusterView>>>) -> Arc<ClusterView> {
        let seen = parents.and_then(|parents| match parents.try_read() {
            Ok(view) => Some(Arc::clone(&view)),
            Err(TryLockError::Poisoned(view)) => Some(Arc::clone(&view.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        });
        seen.unwrap_or_else(|| self.first())
    }

    fn first(&self) -> Arc<ClusterView> {
        let (servers, sharing) = (self.first.clone(), Arc::clone(&self.sharing));
        let tensors = Arc::clone(&self.tensors);
        let view = ClusterView::new(servers, tensors, self.security.clone(), sharing);
        // The same servers made a view when the client connected.
        Arc::new(view.unwrap_or_else(|error| unreachable!("they were of one graph: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::fake_server::FakeServer;
    use crate::remote::describe;

    #[test]
    fn a_child_inherits_its_parents_view_or_the_first_while_that_is_locked() {
        let server = FakeServer::start(&[0]);
        let (address, security) = (server.address.parse::<Address>().unwrap(), Security::default());
        let deadline = Instant::now() + Duration::from_secs(20);
        let description = describe(&address, &security, deadline).unwrap();
        let servers = vec![(address, description)];
        let ours = CurrentView::new(servers.clone(), security, SharingMode::new(true)).unwrap();
        let parents = RwLock::new(ours.first());
        let now = Arc::clone(&parents.read().unwrap());
        assert!(Arc::ptr_eq(&ours.inherit(Some(&parents)), &now));
        let changing = parents.write().unwrap();
        let first = ours.inherit(Some(&parents));
        assert!(!Arc::ptr_eq(&first, &now));
        assert_eq!(first.servers, servers);
        drop(changing);
        let panics = std::thread::scope(|scope| {
            let panics = || {
                let _changing = parents.write();
                std::panic::resume_unwind(Box::new("in the midst of a change"));
            };
            scope.spawn(panics).join().is_err()
        });
        assert!(panics && Arc::ptr_eq(&ours.inherit(Some(&parents)), &now));
    }
}
