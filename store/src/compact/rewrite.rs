//! The newest rows of all layers, streamed into a segment.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use super::Compaction;
use crate::codec::{CodecChoice, SampledTable, SegmentCodec};
use crate::error::StoreError;
use crate::file_system::FileSystem;
use crate::plan::{DiskProfile, ReadPlan};
use crate::reader::{PreadReader, RowReader};
use crate::row::RowIdx;
use crate::segment::{SegmentDigest, SegmentIdentity, SegmentWriter};
use crate::update::LayerRows;

/// Rows are read and written in pieces of about this many bytes, by several concurrent reads.
const PIECE_BYTES: usize = 4 << 20;

/// Writes the segment `identity` at `path` and syncs it.
///
/// Every page that holds the newest value of a row is checked as it is read; others are not looked
/// at. Memory: some MiB for any rows, and what the writer holds per page.
pub(super) fn rewrite(
    compaction: &Compaction<'_>,
    device: &dyn FileSystem,
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

/// Returns the codec of the old segment; where that is not one that rows were imported with, the
/// one that serves the rows best. The replacement of a lost segment has row groups of its own, as
/// large as possible. The same holds for what older releases made of it.
fn codec(
    compaction: &Compaction<'_>,
    pieces: &mut Pieces<'_>,
    n_rows: u32,
) -> Result<SegmentCodec, StoreError> {
    let Compaction { catalog, spec, seen, .. } = compaction;
    let (old, zstd) = (seen.base().segment(), SegmentCodec::zstd_for(spec.row_bytes()));
    let lost = catalog.lost_segment(&spec.name, seen.base().version())?;
    let is_stub = lost.is_some_and(|lost| lost.segment != old.identity().segment);
    if old.codec() == SegmentCodec::Raw || (old.codec() == zstd && !is_stub) {
        return Ok(old.codec());
    }
    let (file, row_bytes) = (old.path().to_owned(), spec.row_bytes());
    let table = SampledTable::new(file, n_rows, row_bytes, DiskProfile::default());
    table.choose(CodecChoice::Auto, |first, rows| {
        pieces.read(first, (rows.len() / row_bytes) as u32, rows)
    })
}

/// Reads neighbouring rows, each from the layer that has its newest value.
struct Pieces<'a> {
    compaction: &'a Compaction<'a>,
    /// Readers past the page cache, by layer: a compaction reads each page once.
    readers: Vec<PreadReader>,
    rows: Vec<(RowIdx, u32)>,
    split: LayerRows,
    plan: ReadPlan,
}

impl<'a> Pieces<'a> {
    fn open(compaction: &'a Compaction<'a>) -> Result<Self, StoreError> {
        let layers = compaction.seen.layers().iter();
        let readers = layers.map(|layer| PreadReader::open(Arc::clone(layer.segment())));
        let readers = readers.collect::<Result<_, _>>()?;
        let (rows, split, plan) = (Vec::new(), LayerRows::default(), ReadPlan::default());
        Ok(Self { compaction, readers, rows, split, plan })
    }

    fn read(&mut self, first: u32, n_rows: u32, out: &mut [u8]) -> Result<(), StoreError> {
        self.rows.clear();
        self.rows.extend((0..n_rows).map(|out_row| (RowIdx(first + out_row), out_row)));
        self.compaction.seen.split(&self.rows, &mut self.split);
        let profile = DiskProfile::default();
        for (layer, rows) in self.split.iter() {
            self.readers[layer].gather(rows, &profile, &mut self.plan, out)?;
        }
        Ok(())
    }
}
