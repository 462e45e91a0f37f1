//! Errors of the Rust crates as exceptions of Python, in Rust's own words.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lodestore_client::ClientError;
use lodestore_graph::schedule::ScheduleError;
use lodestore_graph::topology::TopologyError;
use lodestore_schema::{Failure, FailureCode};
use lodestore_store::StoreError;
use lodestore_store::error_origin::ErrorOrigin;
use lodestore_store::source::SourceError;
use pyo3::PyErr;
use thiserror::Error;

/// The classes of `lodestore.errors`, which have bases among Python's own exceptions.
mod classes {
    use pyo3::import_exception;

    import_exception!(lodestore.errors, IdError);
    import_exception!(lodestore.errors, UnknownTensorError);
    import_exception!(lodestore.errors, ShapeError);
    import_exception!(lodestore.errors, DtypeError);
    import_exception!(lodestore.errors, DamagedError);
    import_exception!(lodestore.errors, StoreError);
    import_exception!(lodestore.errors, VersionError);
    import_exception!(lodestore.errors, ReadOnlyError);
    import_exception!(lodestore.errors, LockedError);
    import_exception!(lodestore.errors, ClosedError);
    import_exception!(lodestore.errors, ScheduleError);
    import_exception!(lodestore.errors, ServerError);
    import_exception!(lodestore.errors, OverloadedError);
    import_exception!(lodestore.errors, DeadlineError);
    import_exception!(lodestore.errors, VolatileError);
}

/// A failure of a call from Python.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The files of a graph.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Servers, caches or background threads of the client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A gather in the background, whose error others of its group have too.
    #[error(transparent)]
    Gather(#[from] Arc<ClientError>),
    /// The topology of a graph.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A schedule of batches.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// An import.
    #[error(transparent)]
    Import(Box<lodestore_import::Error>),
    /// An id that no node has.
    #[error(
        "id {id} at position {position} of the ids; the graph has {n_nodes} nodes, from 0 on, and \
         negative ids do not count from the end"
    )]
    Id {
        /// The id as given.
        id: i128,
        /// Its position among the ids.
        position: usize,
        /// Nodes of the graph.
        n_nodes: u32,
    },
    /// An id of the imported files that no node has.
    #[error("external id {id} at position {position} of the ids is that of no node here")]
    External {
        /// The id as given.
        id: i128,
        /// Its position among the ids.
        position: usize,
    },
    /// An array of another shape or layout.
    #[error("{0}")]
    Shape(String),
    /// Elements of another type.
    #[error("{0}")]
    Dtype(String),
    /// Not a number, where that is refused.
    #[error("{0}")]
    Nan(String),
    /// A version that is not available.
    #[error("{0}")]
    Version(String),
    /// A version of another commit than the one that was named.
    #[error(
        "{name}: expected version {expected}, found {found}: another commit has made this number; open \
         the graph again"
    )]
    OtherVersion {
        /// Folder or addresses of the graph.
        name: String,
        /// The version that was named.
        expected: String,
        /// The version that is there.
        found: String,
    },
    /// A write to a graph that was opened for reading.
    #[error("{0}")]
    ReadOnly(String),
    /// A writer of the process that this one was forked from.
    #[error(
        "{path}: the process that this one was forked from has the graph open for writing, and a \
         forked child can neither write nor open it again, since RocksDB's locks are of the whole \
         process; start this process by spawn, or open the graph for reading before the fork"
    )]
    ForkedWriter {
        /// Folder of the graph.
        path: String,
    },
    /// Another graph where a pickled or inherited one was.
    #[error(
        "{name}: another graph is there than the one that was opened; open it again, in each process"
    )]
    Replaced {
        /// Folder or addresses of the graph.
        name: String,
    },
    /// A graph that was closed.
    #[error("the graph was closed; open it again")]
    Closed,
    /// A volatile tensor that the servers do not have.
    #[error("{0}")]
    NoVolatile(String),
    /// A declaration or a claim that servers refused.
    #[error("{0}")]
    BadVolatile(String),
    /// A publisher that was closed.
    #[error("the publisher was closed, and its claims have ended; make another one")]
    PublisherClosed,
    /// An operation that this kind of graph does not offer.
    #[error("{0}")]
    Unsupported(String),
    /// A thread that panicked; its message went to standard error.
    #[error("a thread of lodestore panicked; its message was printed before")]
    Panicked,
    /// An exception that was raised already, such as `KeyboardInterrupt`.
    #[error(transparent)]
    Python(#[from] PyErr),
}

impl From<lodestore_import::Error> for Error {
    fn from(error: lodestore_import::Error) -> Self {
        Self::Import(Box::new(error))
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let words = error.to_string();
        match error {
            Error::Store(error) => of_store(&error, words),
            Error::Client(error) => of_client(&error, words),
            Error::Gather(error) => of_client(&error, words),
            Error::Topology(error) => of_topology(&error, words),
            Error::Schedule(error) => of_schedule(&error, words),
            Error::Import(error) => of_import(&error, words),
            Error::Id { id, position, .. } | Error::External { id, position } => {
                classes::IdError::new_err((words, id, position))
            }
            Error::Shape(_) => classes::ShapeError::new_err(words),
            Error::Dtype(_) => classes::DtypeError::new_err(words),
            Error::Version(_) | Error::OtherVersion { .. } => classes::VersionError::new_err(words),
            Error::ReadOnly(_) => classes::ReadOnlyError::new_err(words),
            Error::ForkedWriter { .. } => classes::LockedError::new_err(words),
            Error::NoVolatile(_) => classes::UnknownTensorError::new_err(words),
            Error::BadVolatile(_) => classes::VolatileError::new_err(words),
            Error::Closed | Error::PublisherClosed => classes::ClosedError::new_err(words),
            Error::Nan(_) | Error::Unsupported(_) | Error::Replaced { .. } | Error::Panicked => {
                classes::StoreError::new_err(words)
            }
            Error::Python(error) => error,
        }
    }
}

fn of_store(error: &StoreError, words: String) -> PyErr {
    match error {
        StoreError::NoNode { node, position, .. } => {
            classes::IdError::new_err((words, node.0, *position))
        }
        StoreError::NoTensor { .. } => classes::UnknownTensorError::new_err(words),
        StoreError::DamagedPage { page, file, .. } => damaged(words, file, Some(*page)),
        StoreError::DamagedSegment { file, .. }
        | StoreError::DamagedGroup { file, .. }
        | StoreError::FileLength { file, .. }
        | StoreError::Misplaced { file, .. }
        | StoreError::Meta { file, .. }
        | StoreError::DamagedPending { dir: file, .. }
        | StoreError::Catalog { dir: file, origin: ErrorOrigin::Damage, .. } => {
            damaged(words, file, None)
        }
        StoreError::NoVersion { .. } | StoreError::VersionAhead { .. } => {
            classes::VersionError::new_err(words)
        }
        StoreError::ReadOnly { .. } | StoreError::Follows { .. } | StoreError::Fixed { .. } => {
            classes::ReadOnlyError::new_err(words)
        }
        StoreError::Locked { .. } => classes::LockedError::new_err(words),
        StoreError::Forked { .. } => {
            let more = ", or open the graph for reading before the fork";
            classes::LockedError::new_err(words + more)
        }
        StoreError::OutputLength { .. }
        | StoreError::PutLength { .. }
        | StoreError::PutTooLarge { .. }
        | StoreError::Plan(_) => classes::ShapeError::new_err(words),
        _ => classes::StoreError::new_err(words),
    }
}

fn damaged(words: String, file: &Path, page: Option<u64>) -> PyErr {
    classes::DamagedError::new_err((words, file.to_owned(), page))
}

fn of_client(error: &ClientError, words: String) -> PyErr {
    match error {
        ClientError::Store(error) => of_store(error, words),
        ClientError::Schedule(error) => of_schedule(error, words),
        ClientError::UnknownTensor { .. } => classes::UnknownTensorError::new_err(words),
        ClientError::UnknownNode { node, .. } => classes::IdError::new_err((words, node.0)),
        ClientError::BufferSize { .. }
        | ClientError::TooManyRows { .. }
        | ClientError::PutTooLarge { .. } => classes::ShapeError::new_err(words),
        ClientError::NoVersion { .. }
        | ClientError::OtherHistory { .. }
        | ClientError::Unpinned { .. } => classes::VersionError::new_err(words),
        ClientError::Deadline { .. } => classes::DeadlineError::new_err(words),
        ClientError::Forked { .. } => classes::LockedError::new_err(words),
        ClientError::Volatile(_)
        | ClientError::Declare(_)
        | ClientError::BadVolatile { .. }
        | ClientError::VolatileDiffers { .. }
        | ClientError::NotClaimed { .. }
        | ClientError::ClaimsLost { .. } => classes::VolatileError::new_err(words),
        ClientError::Refused { failure, .. } => refused(failure, words),
        ClientError::HotSet(_)
        | ClientError::Halo(_)
        | ClientError::Topology(_)
        | ClientError::Tier(_)
        | ClientError::Device(_)
        | ClientError::Panicked { .. } => classes::StoreError::new_err(words),
        _ => classes::ServerError::new_err(words),
    }
}

fn refused(failure: &Failure, words: String) -> PyErr {
    match failure.code {
        FailureCode::Overloaded => {
            let after = Duration::as_secs_f64(&failure.retry_after);
            classes::OverloadedError::new_err((words, after))
        }
        FailureCode::Deadline => classes::DeadlineError::new_err(words),
        FailureCode::ReadOnly => classes::ReadOnlyError::new_err(words),
        FailureCode::Held | FailureCode::NotOwned | FailureCode::Older => {
            classes::VolatileError::new_err(words)
        }
        FailureCode::OtherVersion | FailureCode::OtherHistory => {
            classes::VersionError::new_err(words)
        }
        FailureCode::Damaged => classes::DamagedError::new_err(words),
        _ => classes::ServerError::new_err(words),
    }
}

fn of_import(error: &lodestore_import::Error, words: String) -> PyErr {
    use lodestore_import::Error as Import;
    match error {
        Import::Source(SourceError::Shape { .. } | SourceError::RowCount { .. })
        | Import::Weights { .. } => classes::ShapeError::new_err(words),
        Import::Source(SourceError::Dtype { .. }) => classes::DtypeError::new_err(words),
        Import::Store(error) => of_store(error, words),
        Import::Topology(error) => of_topology(error, words),
        _ => classes::StoreError::new_err(words),
    }
}

fn of_topology(error: &TopologyError, words: String) -> PyErr {
    match error {
        TopologyError::File { path, .. } => damaged(words, path, None),
        _ => classes::StoreError::new_err(words),
    }
}

fn of_schedule(error: &ScheduleError, words: String) -> PyErr {
    match error {
        ScheduleError::Root { position, found, .. } => {
            classes::IdError::new_err((words, found.0, *position))
        }
        ScheduleError::Damaged { path, .. }
        | ScheduleError::Block { path, .. }
        | ScheduleError::Format { path, .. } => damaged(words, path, None),
        ScheduleError::Io { .. } => classes::StoreError::new_err(words),
        ScheduleError::Busy { .. } => classes::LockedError::new_err(words),
        _ => classes::ScheduleError::new_err(words),
    }
}
