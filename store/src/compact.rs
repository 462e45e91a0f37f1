//! Compaction of all layers of a tensor into one segment.
//!
//! Crash argument, for each tensor of each partition:
//!
//! 1. The segment is written beside the old one under a temporary name, synced, read back and
//!    checked page by page. A crash leaves a file that the next opening for writing removes.
//! 2. It is moved to its name, and the folder is synced. A crash leaves a file that no record
//!    names, removed in the same way.
//! 3. One synced batch of the catalog puts its record in the place of those of its layers. Before
//!    it the layers count, after it the segment; both have the same rows.
//! 4. The catalog's log goes into a table, and then the old files are removed when no view needs
//!    them. A crash leaves them to the next opening for writing.
//!
//! A failure before step 3 removes what was written and changes nothing. Deltas are folded into one
//! in the same four steps, but that they are not read back.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use lodestore_graph::PartId;
use serde::Serialize;

use crate::catalog::{Catalog, SegmentRecord};
use crate::codec::{CodecChoice, SampledTable, SegmentCodec};
use crate::error::StoreError;
use crate::graph::{Graph, segment_file};
use crate::new_file::write_new_file;
use crate::plan::{DiskProfile, ReadPlan};
use crate::reader::{PreadReader, RowReader};
use crate::row::RowIdx;
use crate::segment::{Segment, SegmentDigest, SegmentIdentity, SegmentWriter};
use crate::tensor::TensorSpec;
use crate::update::{LayerRows, TensorVersion};
use crate::verify::read_back_while;
use crate::version_id::{CommitId, SegmentMask};

/// Rows are read and written in pieces of about this many bytes, by several concurrent reads.
const PIECE_BYTES: usize = 4 << 20;

/// Result of a compaction for one tensor of one partition; the keys of `lode compact --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compacted {
    /// Partition.
    pub part: u16,
    /// Tensor.
    pub tensor: String,
    /// Version of its segment.
    pub version: u32,
    /// Rows of deltas that were folded; 0 where there was none and nothing was done.
    pub rows: u64,
    /// Bytes of the segment that was written.
    pub bytes: u64,
    /// Seconds that it took.
    pub seconds: f64,
}

/// A tensor of a partition that is to be compacted.
#[derive(Debug)]
pub(crate) struct Compaction<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) part: PartId,
    pub(crate) catalog: &'a Catalog,
    pub(crate) spec: &'a TensorSpec,
    /// The layers.
    pub(crate) seen: &'a TensorVersion,
    /// The commit that made the version of the newest layer.
    pub(crate) commit: CommitId,
}

impl Compaction<'_> {
    /// Steps 1 and 2: a whole new segment under its name, open and pinned, which no record names
    /// yet; with its record. `progress` receives bytes of rows as they are written, and 0 as
    /// they are read back.
    pub(crate) fn write(
        &self,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(SegmentRecord, Segment), StoreError> {
        // That of the newest layer: versions after it changed no row. No record names a file of a
        // version that nothing has been folded into.
        let layers = self.seen.layers();
        let version = layers[layers.len() - 1].version();
        let name = segment_file(&self.spec.name, version);
        let old = self.seen.base().segment().identity();
        let mask = SegmentMask::new(self.part.0, &self.spec.name, 0, version);
        let segment = self.commit.segment_uuid(mask);
        let identity = SegmentIdentity { segment, version, ..old.clone() };
        write_new_file(self.graph, self.part, name, &identity, |path| {
            let digest = self.rewrite(path, &identity, progress)?;
            read_back_while(&**self.graph.file_system(), path, &identity, &mut || progress(0))?;
            Ok(digest)
        })
    }

    /// Writes the segment `identity` at `path` and syncs it.
    ///
    /// Every page that holds the newest value of a row is checked as it is read; others are not
    /// looked at. Memory: some MiB for any rows, and what the writer holds per page.
    fn rewrite(
        &self,
        path: &Path,
        identity: &SegmentIdentity,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<SegmentDigest, StoreError> {
        let row_bytes = self.spec.row_bytes();
        let piece_rows = (PIECE_BYTES / row_bytes).max(1).min(identity.n_rows as usize) as u32;
        let mut pieces = Pieces::new(self.seen);
        let mut piece = vec![0; piece_rows as usize * row_bytes];
        let codec = self.codec(&mut pieces, identity.n_rows)?;
        let fs = &**self.graph.file_system();
        let mut writer = SegmentWriter::create(fs, path, identity, codec)?;
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

    /// Returns the codec of the old segment; where that is not one that rows were imported with,
    /// the one that serves the rows best. The replacement of a lost segment has row groups of its
    /// own, as large as possible. The same holds for what older releases made of it.
    fn codec(&self, pieces: &mut Pieces<'_>, n_rows: u32) -> Result<SegmentCodec, StoreError> {
        let Self { catalog, spec, seen, .. } = self;
        let (old, zstd) = (seen.base().segment(), SegmentCodec::zstd_for(spec.row_bytes()));
        let lost = catalog.lost_segment(&spec.name, seen.base().version())?;
        let is_stub = lost.is_some_and(|lost| lost.segment != old.identity().segment);
        if old.codec() == SegmentCodec::Raw || (old.codec() == zstd && !is_stub) {
            return Ok(old.codec());
        }
        let (file, row_bytes) = (old.path().to_owned(), spec.row_bytes());
        let table = || SampledTable::new(file, n_rows, row_bytes, DiskProfile::default());
        CodecChoice::Auto.settle(row_bytes, table, |first, rows| {
            pieces.read(first, (rows.len() / row_bytes) as u32, rows)
        })
    }
}

/// Returns the report of one tensor.
pub(crate) fn report(
    compaction: &Compaction<'_>,
    rows: u64,
    new: Option<&Arc<Segment>>,
    start: Instant,
) -> Compacted {
    Compacted {
        part: compaction.part.0,
        tensor: compaction.spec.name.clone(),
        version: new.map_or(compaction.seen.base().version(), |new| new.identity().version),
        rows,
        bytes: new.map_or(0, |new| new.layout().file_bytes()),
        seconds: start.elapsed().as_secs_f64(),
    }
}

/// Reads neighbouring rows, each from the layer that has its newest value.
struct Pieces<'a> {
    seen: &'a TensorVersion,
    /// Readers past the page cache, by layer: a compaction reads each page once.
    readers: Vec<PreadReader>,
    rows: Vec<(RowIdx, u32)>,
    split: LayerRows,
    plan: ReadPlan,
}

impl<'a> Pieces<'a> {
    fn new(seen: &'a TensorVersion) -> Self {
        let layers = seen.layers().iter();
        let readers = layers.map(|layer| PreadReader::new(Arc::clone(layer.segment()))).collect();
        let (rows, split, plan) = (Vec::new(), LayerRows::default(), ReadPlan::default());
        Self { seen, readers, rows, split, plan }
    }

    fn read(&mut self, first: u32, n_rows: u32, out: &mut [u8]) -> Result<(), StoreError> {
        self.rows.clear();
        self.rows.extend((0..n_rows).map(|out_row| (RowIdx(first + out_row), out_row)));
        self.seen.split(&self.rows, &mut self.split);
        let profile = DiskProfile::default();
        for (layer, rows) in self.split.iter() {
            self.readers[layer].gather(rows, &profile, &mut self.plan, out)?;
        }
        Ok(())
    }
}
