//! Errors in the arrays of an import.

use std::io;
use std::path::{Path, PathBuf};

use lodestore_graph::npy::NpyError;
use thiserror::Error;

use crate::dtype::Dtype;
use crate::tensor::TensorSpecError;

/// Why a file is no source of rows.
#[derive(Debug, Error)]
pub enum SourceError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", file.display())]
    Io {
        /// File concerned.
        file: PathBuf,
        /// The operation.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is of another kind, or its content is not what such a file has.
    #[error("{}: {reason}", file.display())]
    Content {
        /// File concerned.
        file: PathBuf,
        /// The fault.
        reason: String,
    },
    /// The `.npy` file cannot be read.
    #[error(transparent)]
    Npy(#[from] NpyError),
    /// The array is neither one- nor two-dimensional.
    #[error(
        "{}: expected shape (nodes,) or (nodes, width), found {found:?}", file.display()
    )]
    Shape {
        /// File concerned.
        file: PathBuf,
        /// Shape found.
        found: Vec<u64>,
    },
    /// An element type that tensors do not have.
    #[error(
        "{}: element type {found} is no tensor type; \
         convert it to f32 f16 f64 u8 i8 i16 i32 or i64", file.display()
    )]
    Dtype {
        /// File concerned.
        file: PathBuf,
        /// Type found.
        found: String,
    },
    /// Not one row per node.
    #[error(
        "{}: expected {expected} rows, one per node, found {found}", file.display()
    )]
    RowCount {
        /// File concerned.
        file: PathBuf,
        /// Nodes of the graph.
        expected: u32,
        /// Rows found.
        found: u64,
    },
    /// The tensor cannot be stored.
    #[error("{}: {source}", file.display())]
    Spec {
        /// File concerned.
        file: PathBuf,
        /// The tensor's fault.
        source: TensorSpecError,
    },
    /// A row past the end of the source.
    #[error("{}: row {row} was asked for, there are {n_rows}", file.display())]
    NoRow {
        /// File concerned.
        file: PathBuf,
        /// Row asked for.
        row: u32,
        /// Rows there are.
        n_rows: u64,
    },
    /// An element that the type asked for cannot hold.
    #[error(
        "{}: row {row}, column {column} is {value}, which {dtype} cannot hold; \
         choose a wider type or keep the file's own", file.display()
    )]
    Unfit {
        /// File concerned.
        file: PathBuf,
        /// Row of the source.
        row: u32,
        /// Column of the source.
        column: usize,
        /// The element.
        value: String,
        /// Type asked for.
        dtype: Dtype,
    },
    /// Not a number, where that is refused.
    #[error(
        "{}: row {row}, column {column} is NaN; clean the data, or keep NaN on purpose",
        file.display()
    )]
    Nan {
        /// File concerned.
        file: PathBuf,
        /// Row of the source.
        row: u32,
        /// Column of the source.
        column: usize,
    },
}

impl SourceError {
    /// Returns an error of the content of `file`.
    pub(super) fn content(file: &Path, reason: impl Into<String>) -> Self {
        Self::Content { file: file.to_owned(), reason: reason.into() }
    }

    /// Turns an [`io::Error`] at `file` into a [`SourceError::Io`].
    pub(super) fn io(file: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self::Io { file, action, source }
    }
}
