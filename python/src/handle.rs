//! A handle of a graph: its specification, and the open graph of each process.
//!
//! A child reads the version of its parent, however it was started. A pickle names the version, so
//! that whoever restores it opens that one. A forked child leaks its parent's open graph, and opens
//! the graph again. That fails while the parent writes any graph, and for a version that was compacted away. The
//! child then uses the graph that its parent had open for reading, whose per-process parts the
//! store recreates. Clients of servers are always inherited: they reconnect, and keep their pin.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, Weak};

use lodestore_client::ClientError;
use lodestore_client::source::VersionTag;
use lodestore_graph::fork::PerProcess;
use lodestore_graph::lock::IgnorePoison;
use lodestore_store::StoreError;
use pyo3::Python;

use crate::error::Error;
use crate::open_graph::{Backend, OpenGraph};
use crate::signals;
use crate::spec::Spec;

/// A graph that each process opens when it first uses it.
pub(crate) struct Handle {
    spec: Spec,
    /// Identity of the graph, where it was pickled.
    uuid: Option<[u8; 16]>,
    state: PerProcess<ProcessState>,
    is_closed: AtomicBool,
}

/// The open graph of a process.
struct ProcessState {
    /// Replaced when the tensors of the graph change; `None` after a close.
    current: RwLock<Option<Arc<OpenGraph>>>,
    /// The graph as first opened, for forked children, which must not wait for a lock.
    first: Weak<OpenGraph>,
    /// The version that it reads, or read at that time; `None` for servers without a pin.
    version: Option<VersionTag>,
    uuid: [u8; 16],
}

impl ProcessState {
    fn of(opened: Arc<OpenGraph>) -> Self {
        let version = match opened.backend() {
            Backend::Files(_) => opened.version().ok(),
            Backend::Servers(_) => opened.source().pinned_version(),
        };
        let first = Arc::downgrade(&opened);
        let uuid = opened.uuid();
        Self { current: RwLock::new(Some(opened)), first, version, uuid }
    }
}

impl Handle {
    /// Creates a handle of a graph that is opened by its first use, and must have the identity
    /// `uuid` if one is given.
    pub(crate) fn new(spec: Spec, uuid: Option<[u8; 16]>) -> Arc<Self> {
        let state = PerProcess::new();
        let is_closed = AtomicBool::new(false);
        Arc::new(Self { spec, uuid, state, is_closed })
    }

    /// Creates a handle of an open graph.
    pub(crate) fn with(spec: Spec, opened: OpenGraph) -> Arc<Self> {
        let state = PerProcess::with(ProcessState::of(Arc::new(opened)));
        Arc::new(Self { spec, uuid: None, state, is_closed: AtomicBool::new(false) })
    }

    /// Returns the identity of the graph, where it is known without opening it.
    pub(crate) fn uuid(&self) -> Option<[u8; 16]> {
        self.state.get().map(|state| state.uuid).or(self.uuid)
    }

    /// Returns the specification of the graph.
    pub(crate) fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns the specification that another process opens, at the version that this one reads.
    /// Where this one writes, or reads the newest version of servers, it names none.
    pub(crate) fn pickled(&self) -> Spec {
        let version = self.state.get().and_then(|state| state.version);
        match (&self.spec, version) {
            (Spec::Folder(folder), Some(version)) if !folder.writable => self.spec.at(version),
            (Spec::Servers(cluster), Some(version)) if cluster.pin => self.spec.at(version),
            (spec, _) => spec.clone(),
        }
    }

    /// Returns the open graph of this process, and opens it if necessary.
    pub(crate) fn opened(&self, py: Python<'_>) -> Result<Arc<OpenGraph>, Error> {
        let state = match self.state.get() {
            Some(state) => state,
            None => self.open(py)?,
        };
        let current = state.current.read().ignore_poison();
        current.clone().ok_or(Error::Closed)
    }

    #[cold]
    fn open(&self, py: Python<'_>) -> Result<&ProcessState, Error> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.state.get_or_try(|parents| {
            let opened = match parents {
                Some(parents) => self.open_in_child(py, parents)?,
                None => {
                    let spec = self.spec.clone();
                    let opened = Arc::new(signals::run(py, move || spec.open())?);
                    self.check(&opened, self.uuid)?;
                    opened
                }
            };
            Ok(ProcessState::of(opened))
        })
    }

    fn open_in_child(
        &self,
        py: Python<'_>,
        parents: &ProcessState,
    ) -> Result<Arc<OpenGraph>, Error> {
        let folder = match &self.spec {
            Spec::Servers(_) => return parents.first.upgrade().ok_or(Error::Closed),
            Spec::Folder(folder) => folder,
        };
        if folder.writable {
            return Err(Error::ForkedWriter { path: folder.path.display().to_string() });
        }
        let inherited = parents.first.upgrade().ok_or(Error::Closed)?;
        let spec = match parents.version {
            Some(version) => self.spec.at(version),
            None => self.spec.clone(),
        };
        match signals::run(py, move || spec.open()) {
            Ok(opened) => {
                self.check(&opened, Some(parents.uuid))?;
                Ok(Arc::new(opened))
            }
            Err(error) if is_impossible(&error) => Ok(inherited),
            Err(error) => Err(error),
        }
    }

    fn check(&self, opened: &OpenGraph, expected: Option<[u8; 16]>) -> Result<(), Error> {
        match expected {
            Some(expected) if expected != opened.uuid() => {
                Err(Error::Replaced { name: self.spec.name() })
            }
            _ => Ok(()),
        }
    }

    /// Replaces the open graph, unless the handle was closed.
    pub(crate) fn replace(&self, opened: OpenGraph) {
        if let Some(state) = self.state.get() {
            let mut current = state.current.write().ignore_poison();
            if current.is_some() {
                *current = Some(Arc::new(opened));
            }
        }
    }

    /// Closes the graph of this process; calls in progress keep it until they end.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        if let Some(state) = self.state.get() {
            let mut current = state.current.write().ignore_poison();
            let closed = current.take();
            drop(current);
            drop(closed);
        }
    }

    /// Returns whether it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

/// Returns whether a child cannot open a graph although its parent could.
fn is_impossible(error: &Error) -> bool {
    let store = match error {
        Error::Store(error) | Error::Client(ClientError::Store(error)) => error,
        _ => return false,
    };
    matches!(store, StoreError::Forked { .. } | StoreError::NoVersion { .. })
}
