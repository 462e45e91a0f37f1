//! Gathers: rows into arrays, without the interpreter's lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use lodestore_client::{PullKind, RowSource, TensorInfo};
use lodestore_graph::NodeId;
use lodestore_store::Dtype;
use numpy::Element;
use pyo3::prelude::*;

use crate::arrays::{RowArray, RowShape, wanted, with_element};
use crate::error::Error;
use crate::opened::{Files, Opened, Place, Servers};
use crate::signals::{self, Watch};

/// Bytes of the first piece of a gather.
const FIRST_BYTES: usize = 4 << 20;
/// Most bytes of a piece: rows of a piece that are neighbours on disk are read together.
const MOST_BYTES: usize = 128 << 20;
/// Time that a piece is to take, between two looks for signals.
const PIECE_TIME: Duration = Duration::from_millis(40);

/// What a caller wants of a gather, beside the ids.
#[derive(Clone, Copy)]
pub(crate) struct Wants<'a, 'py> {
    pub(crate) out: Option<&'a Bound<'py, PyAny>>,
    pub(crate) dtype: Option<&'a Bound<'py, PyAny>>,
    pub(crate) kind: PullKind,
}

impl Wants<'_, '_> {
    /// Wants rows as stored, in an array of their own.
    pub(crate) const NOTHING: Self = Self { out: None, dtype: None, kind: PullKind::Sync };
}

/// Gathers the rows of `ids`.
pub(crate) fn gather<'py>(
    py: Python<'py>,
    opened: &Arc<Opened>,
    info: &TensorInfo,
    ids: Vec<NodeId>,
    wants: Wants<'_, 'py>,
) -> Result<Bound<'py, PyAny>, Error> {
    let (dtype, shape) = (wanted(info.dtype, wants.dtype)?, RowShape::of(info, ids.len()));
    let as_f32 = dtype != info.dtype;
    let out = wants.out.map(|out| RowArray::of_out(out, dtype, shape)).transpose()?;
    match opened.place() {
        Place::Files(files) => {
            let rows = match out {
                Some(out) => out,
                None => RowArray::new(py, dtype, shape)?,
            };
            rows.write(|rows| py.detach(|| files.gather(info, &ids, rows, as_f32)))?;
            Ok(rows.finish())
        }
        Place::Servers(servers) => {
            let (client, info, kind) = (Arc::clone(&servers.client), info.clone(), wants.kind);
            with_element!(dtype, T => {
                let pull = move || Servers::pull::<T>(&*client, &info, &ids, kind, as_f32);
                let rows: Vec<T> = signals::run(py, pull)?;
                deliver(py, rows, out, (dtype, shape))
            })
        }
    }
}

/// Returns rows that have come as an array of their own, or in the caller's.
fn deliver<'py, T: Element + Pod>(
    py: Python<'py>,
    rows: Vec<T>,
    out: Option<RowArray<'py>>,
    (dtype, shape): (Dtype, RowShape),
) -> Result<Bound<'py, PyAny>, Error> {
    let Some(out) = out else {
        return Ok(RowArray::of_vec(py, rows, (dtype, shape))?.finish());
    };
    out.write(|bytes| {
        bytes.copy_from_slice(bytemuck::cast_slice(&rows));
        Ok(())
    })?;
    Ok(out.finish())
}

impl Files {
    /// Gathers piece by piece, and looks for signals between them.
    fn gather(
        &self,
        info: &TensorInfo,
        ids: &[NodeId],
        out: &mut [u8],
        as_f32: bool,
    ) -> Result<(), Error> {
        let row_bytes =
            if as_f32 { info.width as usize * size_of::<f32>() } else { info.row_bytes() };
        let (mut n_piece, mut done) = ((FIRST_BYTES / row_bytes.max(1)).max(1), 0);
        let mut watch = Watch::new();
        while done < ids.len() {
            let start = Instant::now();
            let end = ids.len().min(done + n_piece);
            let (ids, rows) = (&ids[done..end], &mut out[done * row_bytes..end * row_bytes]);
            if as_f32 {
                self.store.gather_f32(&info.name, ids, bytemuck::cast_slice_mut(rows))?;
            } else {
                self.store.gather(&info.name, ids, rows)?;
            }
            done = end;
            if done < n_total(out, row_bytes) {
                watch.look()?;
                n_piece = next_piece(n_piece, start.elapsed(), row_bytes);
            }
        }
        Ok(())
    }
}

fn n_total(out: &[u8], row_bytes: usize) -> usize {
    out.len() / row_bytes.max(1)
}

/// Returns the rows of the next piece: up to four times as many, for a piece to take its time.
fn next_piece(n_rows: usize, took: Duration, row_bytes: usize) -> usize {
    let ratio = PIECE_TIME.as_secs_f64() / took.as_secs_f64().max(1e-6);
    let wanted = n_rows as f64 * ratio.clamp(0.1, 4.0);
    let most = (MOST_BYTES / row_bytes.max(1)).max(1);
    (wanted as usize).clamp(1, most)
}

impl Servers {
    /// Pulls rows into memory of their own.
    fn pull<T: Pod>(
        client: &dyn RowSource,
        info: &TensorInfo,
        ids: &[NodeId],
        kind: PullKind,
        as_f32: bool,
    ) -> Result<Vec<T>, Error> {
        let n_elements = ids.len().saturating_mul(info.width as usize);
        let mut rows: Vec<T> = bytemuck::allocation::zeroed_vec(n_elements);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut rows);
        if !as_f32 {
            client.pull(&info.name, ids, bytes, kind)?;
            return Ok(rows);
        }
        let mut stored = vec![0; ids.len().saturating_mul(info.row_bytes())];
        client.pull(&info.name, ids, &mut stored, kind)?;
        info.dtype.widen(&stored, bytemuck::cast_slice_mut(bytes));
        Ok(rows)
    }
}
