//! Gathers: rows into arrays, while the interpreter's lock is released.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use lodestore_client::source::TensorInfo;
use lodestore_client::{EmbeddedSource, PullKind, RowSource};
use lodestore_graph::NodeId;
use numpy::Element;
use pyo3::prelude::*;

use crate::arrays::{RowArray, RowLayout, wanted, with_element};
use crate::error::Error;
use crate::open_graph::{Backend, Files, OpenGraph, Servers};
use crate::signals::{self, SignalWatch};

/// Bytes of the first piece of a gather.
const FIRST_BYTES: usize = 4 << 20;
/// Most bytes of a piece. Rows of a piece that are adjacent on disk are read together.
const MOST_BYTES: usize = 128 << 20;
/// Intended duration of a piece, which is the time between two checks for signals.
const PIECE_TIME: Duration = Duration::from_millis(40);

/// Options of a gather.
#[derive(Clone, Copy)]
pub(crate) struct GatherOptions<'a, 'py> {
    pub(crate) out: Option<&'a Bound<'py, PyAny>>,
    pub(crate) dtype: Option<&'a Bound<'py, PyAny>>,
    pub(crate) kind: PullKind,
}

impl GatherOptions<'_, '_> {
    /// Rows as stored, in a new array.
    pub(crate) const DEFAULT: Self = Self { out: None, dtype: None, kind: PullKind::Sync };
}

/// Gathers the rows of `ids`.
pub(crate) fn gather<'py>(
    py: Python<'py>,
    opened: &Arc<OpenGraph>,
    info: &TensorInfo,
    ids: Vec<NodeId>,
    options: GatherOptions<'_, 'py>,
) -> Result<Bound<'py, PyAny>, Error> {
    let dtype = wanted(info.dtype, options.dtype)?;
    let layout = RowLayout { dtype, ..RowLayout::new(info, ids.len()) };
    let as_f32 = dtype != info.dtype;
    let out = options.out.map(|out| RowArray::from_out(out, layout)).transpose()?;
    match opened.backend() {
        Backend::Files(files) => {
            let rows = match out {
                Some(out) => out,
                None => RowArray::new(py, layout)?,
            };
            rows.write(|rows| py.detach(|| files.gather(info, &ids, rows, as_f32)))?;
            Ok(rows.finish())
        }
        Backend::Servers(servers) => {
            let client = Arc::clone(&servers.client);
            let info = info.clone();
            let kind = options.kind;
            with_element!(dtype, T => {
                let pull = move || Servers::pull::<T>(&*client, &info, &ids, kind, as_f32);
                let rows: Vec<T> = signals::run(py, pull)?;
                deliver(py, rows, out, layout)
            })
        }
    }
}

/// Returns the rows as a new array, or in the caller's.
pub(crate) fn deliver<'py, T: Element + Pod>(
    py: Python<'py>,
    rows: Vec<T>,
    out: Option<RowArray<'py>>,
    layout: RowLayout,
) -> Result<Bound<'py, PyAny>, Error> {
    match out {
        Some(out) => out.filled(bytemuck::cast_slice(&rows)),
        None => Ok(RowArray::from_vec(py, rows, layout)?.finish()),
    }
}

impl Files {
    /// Gathers piece by piece, and checks for signals between pieces.
    fn gather(
        &self,
        info: &TensorInfo,
        ids: &[NodeId],
        out: &mut [u8],
        as_f32: bool,
    ) -> Result<(), Error> {
        let row_bytes =
            if as_f32 { info.width as usize * size_of::<f32>() } else { info.row_bytes() };
        let mut n_piece = (FIRST_BYTES / row_bytes.max(1)).max(1);
        let n_ids = ids.len();
        let mut done = 0;
        let mut watch = SignalWatch::new();
        // Pieces are of one version, whatever is committed between them.
        let pinned = if n_ids > n_piece { Some(self.pinned()?) } else { None };
        let store = pinned.as_ref().map_or(&self.store, EmbeddedSource::store);
        while done < ids.len() {
            let start = Instant::now();
            let end = ids.len().min(done + n_piece);
            let ids = &ids[done..end];
            let rows = &mut out[done * row_bytes..end * row_bytes];
            if as_f32 {
                store.gather_f32(&info.name, ids, bytemuck::cast_slice_mut(rows))?;
            } else {
                store.gather(&info.name, ids, rows)?;
            }
            done = end;
            if done < n_ids {
                watch.check()?;
                n_piece = next_piece(n_piece, start.elapsed(), row_bytes);
            }
        }
        Ok(())
    }
}

/// Returns the rows of the next piece: at most four times as many, for about [`PIECE_TIME`].
fn next_piece(n_rows: usize, elapsed: Duration, row_bytes: usize) -> usize {
    let ratio = PIECE_TIME.as_secs_f64() / elapsed.as_secs_f64().max(1e-6);
    let wanted = n_rows as f64 * ratio.clamp(0.1, 4.0);
    let most = (MOST_BYTES / row_bytes.max(1)).max(1);
    (wanted as usize).clamp(1, most)
}

impl Servers {
    /// Pulls rows into a new vector.
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
