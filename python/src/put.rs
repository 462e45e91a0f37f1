//! Puts: rows of arrays, durable when they return.

use std::ops::Range;
use std::sync::Arc;

use lodestore_client::TensorInfo;
use lodestore_graph::NodeId;
use pyo3::prelude::*;

use crate::arrays::{RowShape, read_rows};
use crate::error::Error;
use crate::opened::{Opened, Place};
use crate::signals;

/// Most bytes of rows that one put of the store or of the servers carries.
const PIECE_BYTES: usize = 64 << 20;

/// Puts the rows of `ids`, in pieces.
pub(crate) fn put(
    py: Python<'_>,
    opened: &Arc<Opened>,
    info: &TensorInfo,
    ids: Vec<NodeId>,
    rows: &Bound<'_, PyAny>,
) -> Result<(), Error> {
    let shape = RowShape::of(info, ids.len());
    // The caller's array may change while another thread puts.
    let rows = read_rows(rows, (info.dtype, shape), |rows| Ok(rows.to_vec()))?;
    let (opened, name, row_bytes) = (Arc::clone(opened), info.name.clone(), info.row_bytes());
    signals::run(py, move || {
        pieces(ids.len(), row_bytes).try_for_each(|piece| {
            let bytes = &rows[piece.start * row_bytes..piece.end * row_bytes];
            opened.put(&name, &ids[piece], bytes)
        })
    })
}

/// Cuts `n_rows` rows into pieces.
fn pieces(n_rows: usize, row_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let n_piece = (PIECE_BYTES / row_bytes.max(1)).max(1);
    (0..n_rows).step_by(n_piece).map(move |start| start..n_rows.min(start + n_piece))
}

impl Opened {
    fn put(&self, name: &str, ids: &[NodeId], rows: &[u8]) -> Result<(), Error> {
        match self.place() {
            Place::Files(files) => drop(files.live.put_rows(name, ids, rows)?),
            Place::Servers(servers) => drop(servers.client.put_rows(name, ids, rows)?),
        }
        Ok(())
    }

    /// Makes a version of all that was put; returns its number.
    pub(crate) fn commit(&self) -> Result<u32, Error> {
        match self.place() {
            Place::Files(files) => Ok(files.live.commit_version()?),
            Place::Servers(servers) => Ok(servers.client.commit()?),
        }
    }
}
