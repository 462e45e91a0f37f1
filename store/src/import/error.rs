//! Errors of an import.

use std::path::PathBuf;

use thiserror::Error;

use super::EXTERNAL_ID_TENSOR;
use crate::error::StoreError;
use crate::source::SourceError;

/// Why a graph could not be imported. Nothing is left behind.
#[derive(Debug, Error)]
pub enum ImportError {
    /// Something is at the place already.
    #[error("{} exists already; an import never overwrites, choose another place", out.display())]
    Exists {
        /// Place asked for.
        out: PathBuf,
    },
    /// A tensor by a name that is taken.
    #[error("tensor `{name}` is there already (`{EXTERNAL_ID_TENSOR}` is always made by import)")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// The input is not as it must be.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The graph could not be written, or did not read back as written.
    #[error(transparent)]
    Store(#[from] StoreError),
}
