//! The rows of a segment and of its overlay, streamed into a segment.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use super::Compaction;
use crate::catalog::{OverlayRow, RowKeys};
use crate::codec::{CodecChoice, SegmentCodec, choose};
use crate::device::Device;
use crate::error::StoreError;
use crate::overlay::split;
use crate::plan::{DeviceProfile, ReadPlan};
use crate::reader::{PreadReader, RowReader};
use crate::row::RowIdx;
use crate::segment::{SegmentDigest, SegmentIdentity, SegmentWriter};

/// Rows are read and written in pieces of about this many bytes: several reads at once.
const PIECE_BYTES: usize = 4 << 20;

/// Writes the segment `identity` at `path` and syncs it.
///
/// Every page of the old segment that holds a row which stays is checked as it is read; one that
/// holds only rows that were put anew is not looked at. Memory: some MiB, whatever the rows, and
/// what the writer holds per page.
pub(super) fn rewrite(
    compaction: &Compaction<'_>,
    device: &dyn Device,
    path: &Path,
    identity: &SegmentIdentity,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<SegmentDigest, StoreError> {
    let row_bytes = compaction.spec.row_bytes();
    let piece_rows = (PIECE_BYTES / row_bytes).max(1).min(identity.n_rows as usize) as u32;
    let mut pieces = Pieces::open(compaction)?;
    let mut piece = vec![0; piece_rows as usize * row_bytes];
    let codec = codec(compaction, &mut pieces, identity.n_rows)?;
    let mut writer = SegmentWriter::create(device, path, identity, codec)?;
    let mut first = 0;
    while first < identity.n_rows {
        let n_rows = piece_rows.min(identity.n_rows - first);
        let bytes = &mut piece[..n_rows as usize * row_bytes];
        pieces.read(first, n_rows, bytes)?;
        writer.write_rows(bytes)?;
        if progress(bytes.len() as u64).is_break() {
            return Err(StoreError::Stopped);
        }
        first += n_rows;
    }
    writer.finish()
}

/// The codec of the old segment; where that is not one that rows were imported with, the one that
/// serves the rows best. What stands for a lost segment has row groups of its own, as large as can
/// be, and so has what older releases made of it.
fn codec(
    compaction: &Compaction<'_>,
    pieces: &mut Pieces<'_>,
    n_rows: u32,
) -> Result<SegmentCodec, StoreError> {
    let Compaction { catalog, spec, pinned, .. } = compaction;
    let (old, zstd) = (pinned.base.segment(), SegmentCodec::zstd_for(spec.row_bytes()));
    let lost = catalog.lost_segment(&spec.name, pinned.base.version())?;
    let is_stub = lost.is_some_and(|lost| lost.segment != old.identity().segment);
    if old.codec() == SegmentCodec::Raw || (old.codec() == zstd && !is_stub) {
        return Ok(old.codec());
    }
    choose(CodecChoice::Auto, old.path(), n_rows, spec.row_bytes(), |first, rows| {
        pieces.read(first, (rows.len() / spec.row_bytes()) as u32, rows)
    })
}

/// Reads neighbouring rows, each from where its newest committed value is.
struct Pieces<'a> {
    compaction: &'a Compaction<'a>,
    base: PreadReader,
    rows: Vec<(RowIdx, u32)>,
    overlaid: Vec<OverlayRow>,
    plan: ReadPlan,
    keys: RowKeys,
}

impl<'a> Pieces<'a> {
    fn open(compaction: &'a Compaction<'a>) -> Result<Self, StoreError> {
        let base = PreadReader::open(Arc::clone(compaction.pinned.base.segment()))?;
        let (rows, overlaid) = (Vec::new(), Vec::new());
        let (plan, keys) = (ReadPlan::default(), RowKeys::default());
        Ok(Self { compaction, base, rows, overlaid, plan, keys })
    }

    fn read(&mut self, first: u32, n_rows: u32, out: &mut [u8]) -> Result<(), StoreError> {
        let Compaction { pinned, catalog, spec, .. } = self.compaction;
        self.rows.clear();
        self.rows.extend((0..n_rows).map(|out_row| (RowIdx(first + out_row), out_row)));
        self.overlaid.clear();
        split(&mut self.rows, &mut self.overlaid, |row| pinned.version_of(row));
        let profile = DeviceProfile::default();
        self.base.gather(&self.rows, &profile, &mut self.plan, out)?;
        catalog.read_rows(spec, &mut self.overlaid, out, &mut self.keys)
    }
}
