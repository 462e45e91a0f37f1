//! One segment from a source: rows are copied, checked for NaN, written, synced, and read back.

use std::path::Path;

use super::ImportError;
use crate::catalog::SegmentRecord;
use crate::codec::{CodecChoice, SampledTable, SegmentCodec};
use crate::file_system::FileSystem;
use crate::graph::check_digest;
use crate::nan::{NanPolicy, first_nan};
use crate::plan::DiskProfile;
use crate::reader::available_memory_bytes;
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

/// The rows of a new tensor on this machine, whose codec is one for all partitions.
#[derive(Debug)]
pub(crate) struct NewTable<'a> {
    pub(crate) device: &'a dyn FileSystem,
    /// The folder whose disk it comes to.
    pub(crate) dir: &'a Path,
    pub(crate) spec: &'a TensorSpec,
    pub(crate) n_rows: u32,
}

impl NewTable<'_> {
    /// Decides between raw and zstd, by a sample of the rows where `choice` does not. `copy_rows`
    /// fills a buffer with the rows from the given one on.
    pub(crate) fn settle(
        &self,
        choice: CodecChoice,
        copy_rows: impl FnMut(u32, &mut [u8]) -> Result<(), ImportError>,
    ) -> Result<CodecChoice, ImportError> {
        let (n_rows, row_bytes) = (self.n_rows, self.spec.row_bytes());
        let table_bytes = u64::from(n_rows) * row_bytes as u64;
        if choice != CodecChoice::Auto {
            return Ok(choice);
        }
        if table_bytes < CodecChoice::MIN_TABLE_BYTES {
            return Ok(CodecChoice::Raw);
        }
        let (file, memory_bytes) = (self.dir.join(&self.spec.name), available_memory_bytes());
        let (file, disk) = (&*file, DiskProfile::load(self.device, self.dir));
        let table = SampledTable { file, n_rows, row_bytes, table_bytes, disk, memory_bytes };
        let assessed = table.assess(copy_rows)?;
        let is_raw = assessed.is_none_or(|it| it.verdict.codec == SegmentCodec::Raw);
        Ok(if is_raw { CodecChoice::Raw } else { CodecChoice::Zstd })
    }
}

/// The file that a segment is written to.
pub(crate) struct SegmentPlace<'a> {
    pub(crate) device: &'a dyn FileSystem,
    pub(crate) dir: &'a Path,
    pub(crate) file: String,
}

/// Rows of a source, by their numbers in it, and how they are imported.
#[derive(Clone, Copy)]
pub(crate) struct SourceRows<'a> {
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) options: TensorOptions,
    pub(crate) rows: &'a [u32],
}

/// Writes rows of a source as a segment; `report` receives the rows done.
pub(crate) fn write_segment(
    place: SegmentPlace<'_>,
    identity: &SegmentIdentity,
    rows: SourceRows<'_>,
    report: &mut dyn FnMut(u64),
) -> Result<SegmentRecord, ImportError> {
    let SegmentPlace { device, dir, file } = place;
    let SourceRows { source, options, rows } = rows;
    let path = dir.join(&file);
    let row_bytes = identity.tensor.row_bytes();
    let codec = match options.codec {
        CodecChoice::Zstd => SegmentCodec::zstd_for(row_bytes),
        // [`NewTable::settle`] comes before.
        CodecChoice::Raw | CodecChoice::Auto => SegmentCodec::Raw,
    };
    let mut writer = SegmentWriter::create(device, &path, identity, codec)?;
    let chunk_rows = (CHUNK_BYTES / row_bytes).max(1);
    let mut buffer = vec![0u8; chunk_rows.min(rows.len()) * row_bytes];
    let mut done = 0;
    for rows in rows.chunks(chunk_rows) {
        let bytes = &mut buffer[..rows.len() * row_bytes];
        source.copy_rows(rows, bytes)?;
        if options.nan == NanPolicy::Refuse {
            refuse_nan(source, &identity.tensor, rows, bytes)?;
        }
        writer.write_rows(bytes)?;
        done += rows.len() as u64;
        report(done);
    }
    let digest = writer.finish()?;
    let (segment, n_rows) = (identity.segment, identity.n_rows);
    let record = SegmentRecord { segment, n_rows, row_bytes: row_bytes as u32, digest, file };
    check_digest(&read_back(device, &path, identity)?, &record)?;
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
