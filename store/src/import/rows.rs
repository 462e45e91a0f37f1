//! One segment from a source: rows are copied, checked for NaN, written, synced, and read back.

use std::path::Path;

use super::ImportError;
use crate::catalog::SegmentRecord;
use crate::codec::{CodecChoice, SegmentCodec};
use crate::file_system::FileSystem;
use crate::graph::check_digest;
use crate::nan::{NanPolicy, first_nan};
use crate::segment::{SegmentIdentity, SegmentWriter};
use crate::source::{SourceError, TensorSource};
use crate::tensor::TensorSpec;
use crate::verify::read_back;

/// How the rows of a tensor are imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorOptions {
    /// Treatment of NaN.
    pub nan: NanPolicy,
    /// How to store the rows.
    pub codec: CodecChoice,
}

/// Rows are copied from the source in pieces of about this many bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Rows of a source, by their numbers in it, and how they are imported.
#[derive(Clone, Copy)]
pub(crate) struct SourceRows<'a> {
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) nan: NanPolicy,
    /// One for all partitions of the tensor.
    pub(crate) codec: SegmentCodec,
    pub(crate) rows: &'a [u32],
}

/// Writes rows of a source as the segment `path`; `report` receives the rows done.
pub(crate) fn write_segment(
    device: &dyn FileSystem,
    path: &Path,
    identity: &SegmentIdentity,
    rows: SourceRows<'_>,
    report: &mut dyn FnMut(u64),
) -> Result<SegmentRecord, ImportError> {
    let SourceRows { source, nan, codec, rows } = rows;
    let row_bytes = identity.tensor.row_bytes();
    let mut writer = SegmentWriter::create(device, path, identity, codec)?;
    let chunk_rows = (CHUNK_BYTES / row_bytes).max(1);
    let mut buffer = vec![0u8; chunk_rows.min(rows.len()) * row_bytes];
    let mut done = 0;
    for rows in rows.chunks(chunk_rows) {
        let bytes = &mut buffer[..rows.len() * row_bytes];
        source.copy_rows(rows, bytes)?;
        if nan == NanPolicy::Refuse {
            refuse_nan(source, &identity.tensor, rows, bytes)?;
        }
        writer.write_rows(bytes)?;
        done += rows.len() as u64;
        report(done);
    }
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (segment, n_rows, digest) = (identity.segment, identity.n_rows, writer.finish()?);
    let record = SegmentRecord { segment, n_rows, row_bytes: row_bytes as u32, digest, file };
    check_digest(&read_back(device, path, identity)?, &record)?;
    Ok(record)
}

fn refuse_nan(
    source: &dyn TensorSource,
    tensor: &TensorSpec,
    rows: &[u32],
    bytes: &[u8],
) -> Result<(), SourceError> {
    let Some(element) = first_nan(tensor.dtype, bytes) else { return Ok(()) };
    let width = tensor.width as usize;
    let (row, column) = (rows[element / width], element % width);
    Err(SourceError::Nan { file: source.path().to_owned(), row, column })
}
