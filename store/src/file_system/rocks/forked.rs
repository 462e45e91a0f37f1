//! Rules of RocksDB in a forked child; its threads and locks are of the whole process.
//!
//! RocksDB's threads flush what a process writes, and a child has none of its parent's threads. So
//! a child of a process that has opened a database writes to none.
//!
//! A lock of RocksDB, or of the C++ library for shared pointers, stays held in the child if a
//! thread of the parent held it. So a child of a process that was writing opens none.
//! Threads of databases that are read only sleep.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use lodestore_graph::fork::PerProcess;

use crate::file_system::Access;

static USES: PerProcess<Uses> = PerProcess::new();

/// Uses of RocksDB in which threads of this process may hold its locks.
#[derive(Debug)]
struct Uses {
    n_open: AtomicUsize,
    parent: Parent,
}

/// State of the parent process at the fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    /// It has opened no database, or there is no such process.
    None,
    /// It has opened some.
    Reading,
    /// It was opening one, or had one open for writing.
    Writing,
}

/// One of the uses: a database while it is opened, or while it is open for writing.
#[derive(Debug)]
pub(super) struct Use(&'static Uses);

impl Use {
    /// Begins a use of a key-value store.
    ///
    /// # Errors
    /// [`io::ErrorKind::Deadlock`] where threads would be missing, or locks may be held.
    pub(super) fn begin(access: Access) -> io::Result<Self> {
        let uses = USES.get_or(|parents| Uses {
            n_open: AtomicUsize::new(0),
            parent: parents.map_or(Parent::None, Uses::seen_by_child),
        });
        match (uses.parent, access) {
            (Parent::None, _) | (Parent::Reading, Access::Read | Access::Salvage) => {
                uses.n_open.fetch_add(1, Ordering::Relaxed);
                Ok(Self(uses))
            }
            _ => Err(io::ErrorKind::Deadlock.into()),
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.n_open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Uses {
    fn seen_by_child(&self) -> Parent {
        match self.parent {
            Parent::Writing => Parent::Writing,
            _ if self.n_open.load(Ordering::Relaxed) > 0 => Parent::Writing,
            _ => Parent::Reading,
        }
    }
}
