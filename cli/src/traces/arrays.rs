//! Traces as NumPy arrays: ids, and where batches start in them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lodestore_cache::Trace;
use lodestore_cache::trace::TraceBuilder;
use lodestore_graph::npy::{NpyArray, NpyType, NpyWriter};
use lodestore_store::source::Npz;

use crate::ids::{check_integers, integer};

const IDS: &str = "ids.npy";
const OFFSETS: &str = "offsets.npy";

/// Division of ids into batches and epochs.
pub(super) struct Cut {
    /// Batches of this many ids, where there are no offsets.
    pub(super) batch_ids: Option<usize>,
    /// Accesses to take, from the front.
    pub(super) limit: Option<u64>,
    /// Batches per epoch.
    pub(super) epoch_batches: Option<u32>,
}

/// Reads a trace from `.npz`, or from `.npy` with its offsets in another. Ids must be below
/// `n_nodes`, or fit 32 bits.
pub(super) fn read(
    path: &Path,
    offsets: Option<&Path>,
    cut: &Cut,
    n_nodes: Option<u32>,
) -> Result<Trace> {
    let is_archive = path.extension().is_some_and(|ending| ending == "npz");
    if !is_archive {
        let ids = NpyArray::open(path)?;
        let offsets = offsets.map(NpyArray::open).transpose()?;
        let ids = Integers::of(ids.path(), "ids", ids.dtype(), ids.shape(), ids.bytes())?;
        let offsets = offsets.as_ref().map(|offsets| {
            let (dtype, shape) = (offsets.dtype(), offsets.shape());
            Integers::of(offsets.path(), "offsets", dtype, shape, offsets.bytes())
        });
        return trace(&ids, offsets.transpose()?.as_ref(), cut, n_nodes);
    }
    if offsets.is_some() {
        bail!("{}: offsets are in the archive; leave --offsets out", path.display());
    }
    let mut archive = Npz::open(path)?;
    let ids = archive.array(IDS)?;
    let ids = Integers::of(path, "ids", ids.dtype(), ids.shape(), ids.bytes())?;
    if cut.batch_ids.is_some() {
        return trace(&ids, None, cut, n_nodes);
    }
    let offsets = archive.array(OFFSETS).context("without offsets, give --batch")?;
    let (dtype, shape) = (offsets.dtype(), offsets.shape());
    let offsets = Integers::of(path, "offsets", dtype, shape, offsets.bytes())?;
    trace(&ids, Some(&offsets), cut, n_nodes)
}

fn trace(
    ids: &Integers<'_>,
    offsets: Option<&Integers<'_>>,
    cut: &Cut,
    n_nodes: Option<u32>,
) -> Result<Trace> {
    let n_ids = cut.limit.map_or(ids.len(), |limit| ids.len().min(limit as usize));
    if n_ids > Trace::MAX_IDS {
        bail!("{}: {n_ids} ids, but at most {}; add --limit", ids.path.display(), Trace::MAX_IDS);
    }
    let (mut builder, mut batch) = (TraceBuilder::default(), Vec::new());
    let n_batches = match offsets {
        Some(offsets) => offsets.check_offsets(ids.len())?,
        None => n_ids.div_ceil(cut.batch_ids.unwrap_or(1)),
    };
    let bound = |batch: usize| match offsets {
        Some(offsets) if batch < offsets.len() => offsets.get(batch) as usize,
        Some(_) => ids.len(),
        None => batch.saturating_mul(cut.batch_ids.unwrap_or(1)),
    };
    for number in 0..n_batches {
        let (start, end) = (bound(number), bound(number + 1).min(n_ids));
        if start > n_ids || (start == n_ids && n_ids < ids.len()) {
            break;
        }
        if cut.epoch_batches.is_some_and(|batches| number.is_multiple_of(batches as usize)) {
            builder.begin_epoch();
        }
        batch.clear();
        for at in start..end {
            batch.push(ids.id(at, n_nodes)?);
        }
        builder.push_batch(&batch)?;
    }
    Ok(builder.finish(n_nodes))
}

/// A list of whole numbers in a file.
struct Integers<'a> {
    path: &'a Path,
    what: &'static str,
    dtype: NpyType,
    bytes: &'a [u8],
}

impl<'a> Integers<'a> {
    fn of(
        path: &'a Path,
        what: &'static str,
        dtype: NpyType,
        shape: &[u64],
        bytes: &'a [u8],
    ) -> Result<Self> {
        check_integers(path, what, dtype, shape)?;
        Ok(Self { path, what, dtype, bytes })
    }

    fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size_bytes()
    }

    fn get(&self, at: usize) -> i128 {
        integer(self.dtype, self.bytes, at)
    }

    fn id(&self, at: usize, n_nodes: Option<u32>) -> Result<u32> {
        let id = self.get(at);
        let most = n_nodes.map_or(i128::from(u32::MAX), |n_nodes| i128::from(n_nodes) - 1);
        if (0..=most).contains(&id) {
            return Ok(id as u32);
        }
        bail!("{}: id {at} is {id}, expected 0 to {most}", self.path.display())
    }

    /// Returns the number of batches, if these are offsets into `n_ids` ids. The end of the last
    /// batch may stand at their end.
    fn check_offsets(&self, n_ids: usize) -> Result<usize> {
        let (path, what) = (self.path.display(), self.what);
        let mut last = 0;
        for at in 0..self.len() {
            let found = self.get(at);
            let starts = at > 0 || found == 0;
            if !starts || found < last || found > n_ids as i128 {
                bail!(
                    "{path}: {what} must rise from 0 to at most {n_ids}, the number of ids; \
                     number {at} is {found}"
                );
            }
            last = found;
        }
        if self.len() == 0 && n_ids > 0 {
            bail!("{path}: {what} are empty, but there are {n_ids} ids");
        }
        let is_closed = self.len() > 0 && last == n_ids as i128;
        Ok(self.len() - usize::from(is_closed))
    }
}

/// Returns the files that [`write_trace`] writes: of ids, and of where batches start in them.
#[must_use]
pub fn trace_paths(prefix: &Path) -> [PathBuf; 2] {
    [".ids.npy", ".offsets.npy"].map(|ending| {
        let mut name = prefix.as_os_str().to_owned();
        name.push(OsStr::new(ending));
        PathBuf::from(name)
    })
}

/// Writes `PREFIX.ids.npy` and `PREFIX.offsets.npy`, replaced if they exist; returns their names.
/// `offsets` are where each batch starts, then where the last one ends.
pub fn write_trace(prefix: &Path, ids: &[u32], offsets: &[u64]) -> Result<[PathBuf; 2]> {
    let paths = trace_paths(prefix);
    let (n_ids, n_offsets) = (ids.len() as u64, offsets.len() as u64);
    NpyWriter::write(&paths[0], NpyType::U32, &[n_ids], bytemuck::cast_slice(ids))?;
    NpyWriter::write(&paths[1], NpyType::U64, &[n_offsets], bytemuck::cast_slice(offsets))?;
    Ok(paths)
}
