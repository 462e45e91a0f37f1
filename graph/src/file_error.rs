//! Failures of the system at files.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// An action that failed on a file, and its cause.
#[derive(Debug, Error)]
#[error("{}: cannot {action}: {source}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The operation.
    pub action: String,
    /// The system's reason.
    pub source: io::Error,
}

impl FileError {
    /// Returns a function that makes errors of the system those of `action` on `path`.
    pub(crate) fn at(path: &Path, action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { path: path.to_owned(), action: action.into(), source }
    }
}
