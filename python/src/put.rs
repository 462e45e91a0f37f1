//! Puts and commits.

use std::ops::Range;
use std::sync::Arc;

use lodestore_client::source::TensorInfo;
use lodestore_graph::NodeId;
use lodestore_store::nan::{NanPolicy, first_nan};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::{RowLayout, read_rows};
use crate::error::Error;
use crate::open_graph::{Backend, OpenGraph};
use crate::signals;

/// Most bytes of rows in one put of the store or of the servers.
const PIECE_BYTES: usize = 64 << 20;

/// Puts the rows of `ids`, in pieces.
pub(crate) fn put(
    py: Python<'_>,
    opened: &Arc<OpenGraph>,
    info: &TensorInfo,
    ids: Vec<NodeId>,
    rows: &Bound<'_, PyAny>,
    nan: NanPolicy,
) -> Result<(), Error> {
    let layout = RowLayout::new(info, ids.len());
    // Copied, since the caller may change the array during the put.
    let rows = read_rows(rows, layout, |rows| Ok(rows.to_vec()))?;
    if nan == NanPolicy::Refuse {
        refuse_nan(info, &rows)?;
    }
    let opened = Arc::clone(opened);
    let name = info.name.clone();
    let row_bytes = info.row_bytes();
    signals::run(py, move || {
        pieces(ids.len(), row_bytes).try_for_each(|piece| {
            let bytes = &rows[piece.start * row_bytes..piece.end * row_bytes];
            opened.put(&name, &ids[piece], bytes)
        })
    })
}

/// Parses how NaN is treated.
pub(crate) fn nan_policy(nan: &str) -> PyResult<NanPolicy> {
    match nan {
        "refuse" => Ok(NanPolicy::Refuse),
        "keep" => Ok(NanPolicy::Keep),
        _ => {
            let words = format!("nan must be 'refuse' or 'keep', found {nan:?}");
            Err(PyValueError::new_err(words))
        }
    }
}

/// Fails for the first NaN.
pub(crate) fn refuse_nan(info: &TensorInfo, rows: &[u8]) -> Result<(), Error> {
    let Some(at) = first_nan(info.dtype, rows) else { return Ok(()) };
    let width = (info.width as usize).max(1);
    let (row, column) = (at / width, at % width);
    Err(Error::Nan(format!(
        "{}: row {row}, column {column} of the rows is NaN; clean the data, or keep NaN on purpose \
         (nan=\"keep\")",
        info.name
    )))
}

/// Cuts `n_rows` rows into pieces.
fn pieces(n_rows: usize, row_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let n_piece = (PIECE_BYTES / row_bytes.max(1)).max(1);
    (0..n_rows).step_by(n_piece).map(move |start| start..n_rows.min(start + n_piece))
}

impl OpenGraph {
    fn put(&self, name: &str, ids: &[NodeId], rows: &[u8]) -> Result<(), Error> {
        match self.backend() {
            Backend::Files(files) => drop(files.live.put_rows(name, ids, rows)?),
            Backend::Servers(servers) => drop(servers.client.put_rows(name, ids, rows)?),
        }
        Ok(())
    }

    /// Commits all puts as a new version; returns its number.
    pub(crate) fn commit(&self) -> Result<u32, Error> {
        match self.backend() {
            Backend::Files(files) => Ok(files.live.commit_version()?),
            Backend::Servers(servers) => Ok(servers.client.commit()?),
        }
    }
}
