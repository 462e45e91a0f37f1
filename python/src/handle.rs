//! A graph as a handle: how it is opened, and what is open of it in each process.
//!
//! A forked child leaks what its parent had open and opens it again, at the same version. Where it
//! cannot, since the parent was writing some graph at the fork or the version was compacted away,
//! what the parent had open for reading serves it: the store makes again what belongs to one
//! process. So it does for servers, whose connections are of one process and whose pinned version
//! stays.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use lodestore_client::ClientError;
use lodestore_graph::fork::PerProcess;
use lodestore_store::StoreError;
use pyo3::Python;

use crate::error::Error;
use crate::opened::{Opened, Place};
use crate::signals;
use crate::spec::{Folder, Spec};

/// A graph that is opened when it is first used, in each process again.
pub(crate) struct Handle {
    spec: Spec,
    inside: PerProcess<Inside>,
    is_closed: AtomicBool,
}

/// What is open in a process.
struct Inside {
    /// Replaced when the tensors of the graph change; nothing after a close.
    current: RwLock<Option<Arc<Opened>>>,
    /// What was open first, for forked children: they can wait for no lock.
    first: Weak<Opened>,
    /// The version that was the newest then.
    version: Option<u32>,
}

impl Inside {
    fn of(opened: Arc<Opened>) -> Self {
        let version = match opened.place() {
            Place::Files(_) => opened.version().ok(),
            Place::Servers(_) => None,
        };
        let first = Arc::downgrade(&opened);
        Self { current: RwLock::new(Some(opened)), first, version }
    }
}

impl Handle {
    /// Creates a handle of what is not open yet.
    pub(crate) fn new(spec: Spec) -> Arc<Self> {
        let (inside, is_closed) = (PerProcess::new(), AtomicBool::new(false));
        Arc::new(Self { spec, inside, is_closed })
    }

    /// Creates a handle of what is open.
    pub(crate) fn with(spec: Spec, opened: Opened) -> Arc<Self> {
        let inside = PerProcess::with(Inside::of(Arc::new(opened)));
        Arc::new(Self { spec, inside, is_closed: AtomicBool::new(false) })
    }

    /// Returns how it is opened.
    pub(crate) fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns what is open in this process, and opens it first if nothing is.
    pub(crate) fn opened(&self, py: Python<'_>) -> Result<Arc<Opened>, Error> {
        let inside = match self.inside.get() {
            Some(inside) => inside,
            None => self.open(py)?,
        };
        let current = inside.current.read().unwrap_or_else(PoisonError::into_inner);
        current.clone().ok_or(Error::Closed)
    }

    #[cold]
    fn open(&self, py: Python<'_>) -> Result<&Inside, Error> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.inside.get_or_try(|parents| {
            let opened = match parents {
                Some(parents) => self.open_in_child(py, parents)?,
                None => {
                    let spec = self.spec.clone();
                    Arc::new(signals::run(py, move || spec.open())?)
                }
            };
            Ok(Inside::of(opened))
        })
    }

    fn open_in_child(&self, py: Python<'_>, parents: &Inside) -> Result<Arc<Opened>, Error> {
        let folder = match &self.spec {
            Spec::Servers(_) => return parents.first.upgrade().ok_or(Error::Closed),
            Spec::Folder(folder) => folder,
        };
        if folder.writable {
            return Err(Error::ForkedWriter { path: folder.path.display().to_string() });
        }
        let inherited = parents.first.upgrade().ok_or(Error::Closed)?;
        let version = folder.version.or(parents.version);
        let spec = Spec::Folder(Folder { version, ..folder.clone() });
        match signals::run(py, move || spec.open()) {
            Ok(opened) => Ok(Arc::new(opened)),
            Err(error) if is_impossible(&error) => Ok(inherited),
            Err(error) => Err(error),
        }
    }

    /// Puts `opened` in the place of what was open.
    pub(crate) fn replace(&self, opened: Opened) {
        if let Some(inside) = self.inside.get() {
            let mut current = inside.current.write().unwrap_or_else(PoisonError::into_inner);
            if current.is_some() {
                *current = Some(Arc::new(opened));
            }
        }
    }

    /// Closes what is open here; calls that run end first.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        if let Some(inside) = self.inside.get() {
            let mut current = inside.current.write().unwrap_or_else(PoisonError::into_inner);
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

/// Whether a child cannot open the graph again although its parent had it open.
fn is_impossible(error: &Error) -> bool {
    let store = match error {
        Error::Store(error) | Error::Client(ClientError::Store(error)) => error,
        _ => return false,
    };
    matches!(store, StoreError::Forked { .. } | StoreError::NoVersion { .. })
}
