//! Deltas: pending rows, or the rows of several deltas, written into a new file.
//!
//! Crash argument: the file is written under a temporary name, synced and renamed, and its folder
//! is synced, before the catalog names it. A crash before that leaves a file that no record names,
//! and the next opening for writing removes it. Before the rename the file is read back from disk
//! and verified page by page: its source rows are removed once a record names the file, which then
//! has the only copy.

use std::ops::{ControlFlow, Range};

use super::TensorVersion;
use super::tensor::PendingRows;
use crate::catalog::{Catalog, DeltaRecord};
use crate::codec::SegmentCodec;
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::graph::{Graph, delta_file};
use crate::new_file::write_new_file;
use crate::plan::{DiskProfile, ReadPlan};
use crate::row::RowIdx;
use crate::segment::{Segment, SegmentIdentity, SegmentWriter};
use crate::tensor::TensorSpec;
use crate::verify::read_back_fast;
use crate::version_id::{CommitId, SegmentMask, VersionId};
use lodestore_graph::PartId;

/// Approximate bytes of a piece of rows that is handed to the writer.
const PIECE_BYTES: usize = 1 << 20;

/// Graph, partition and tensor for which deltas are written.
pub(super) struct DeltaPlace<'a> {
    pub(super) graph: &'a Graph,
    pub(super) part: PartId,
    pub(super) spec: &'a TensorSpec,
}

/// An open and pinned delta that no record names yet, with its record.
pub(super) type Written = (DeltaRecord, Segment);

impl DeltaPlace<'_> {
    /// Writes the rows that are pending for the commit's version; `None` if there are none. Uses
    /// the codec `base`.
    pub(super) fn write_pending(
        &self,
        catalog: &Catalog,
        commit: VersionId,
        pending: &PendingRows,
        base: SegmentCodec,
    ) -> Result<Option<Written>, StoreError> {
        let version = commit.number;
        let rows: Vec<u32> = match pending.known() {
            Some(rows) => rows.iter().collect(),
            None => self.scan_rows(catalog, version)?,
        };
        if rows.is_empty() {
            return Ok(None);
        }
        let row_bytes = self.spec.row_bytes();
        let mut fill = |writer: &mut SegmentWriter| {
            let mut expected = rows.iter();
            let mut piece = Vec::new();
            catalog.scan_pending(&self.spec.name, version, RowIdx(0), |row, bytes| {
                if expected.next() != Some(&row.0) || bytes.len() != row_bytes {
                    return Err(self.damaged(catalog, version, row, bytes.len()));
                }
                piece.extend_from_slice(bytes);
                if piece.len() >= PIECE_BYTES {
                    writer.write_rows(&piece)?;
                    piece.clear();
                }
                Ok(ControlFlow::Continue(()))
            })?;
            if let Some(&missing) = expected.next() {
                return Err(self.damaged(catalog, version, RowIdx(missing), 0));
            }
            writer.write_rows(&piece)
        };
        match self.write(version, commit, &rows, base, &mut fill) {
            // The disk corrupted the file. The rows are still pending, so a second write is
            // possible.
            Err(error) if error.origin() != ErrorOrigin::System => {
                tracing::warn!("{error}; writing the delta again");
                self.write(version, commit, &rows, base, &mut fill).map(Some)
            }
            written => written.map(Some),
        }
    }

    /// Writes the deltas of `from` at these positions as one delta, which has the newest value of
    /// each row. `commit` made the version of the newest of them. `progress` receives the bytes
    /// written.
    pub(super) fn write_folded(
        &self,
        from: &TensorVersion,
        deltas: Range<usize>,
        commit: CommitId,
        base: SegmentCodec,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Written, StoreError> {
        let layers = &from.layers()[deltas];
        // Each row once, from the newest layer that has it.
        let mut places: Vec<(u32, u32, u32)> = Vec::new();
        for (layer, at) in layers.iter().zip(0u32..) {
            let rows = layer.segment().listed_rows().iter().zip(0u32..);
            places.extend(rows.map(|(&row, row_of_file)| (row, u32::MAX - at, row_of_file)));
        }
        places.sort_unstable();
        places.dedup_by_key(|(row, ..)| *row);
        let rows: Vec<u32> = places.iter().map(|(row, ..)| *row).collect();
        let first = layers[0].first_version();
        let last = VersionId::new(layers[layers.len() - 1].version(), commit);
        let row_bytes = self.spec.row_bytes();
        let per_piece = (4 * PIECE_BYTES / row_bytes).max(1);
        let (mut plan, profile) = (ReadPlan::default(), DiskProfile::default());
        let mut by_layer: Vec<Vec<(RowIdx, u32)>> = vec![Vec::new(); layers.len()];
        let mut piece = vec![0; per_piece.min(rows.len()) * row_bytes];
        self.write(first, last, &rows, base, &mut |writer| {
            for places in places.chunks(per_piece) {
                by_layer.iter_mut().for_each(Vec::clear);
                for (&(_, layer, row), out_row) in places.iter().zip(0u32..) {
                    by_layer[(u32::MAX - layer) as usize].push((RowIdx(row), out_row));
                }
                let bytes = &mut piece[..places.len() * row_bytes];
                for (layer, rows) in layers.iter().zip(&by_layer) {
                    if !rows.is_empty() {
                        layer.reader().gather(rows, &profile, &mut plan, bytes)?;
                    }
                }
                writer.write_rows(bytes)?;
                if progress(bytes.len() as u64).is_break() {
                    return Err(StoreError::Stopped);
                }
            }
            Ok(())
        })
    }

    /// Writes a delta of `rows`, whose bytes `fill` hands to the writer; removes it on failure.
    fn write(
        &self,
        first: u32,
        last: VersionId,
        rows: &[u32],
        base: SegmentCodec,
        fill: &mut dyn FnMut(&mut SegmentWriter) -> Result<(), StoreError>,
    ) -> Result<Written, StoreError> {
        let version = last.number;
        let name = delta_file(&self.spec.name, first, version);
        let mask = SegmentMask::new(self.part.0, &self.spec.name, first, version);
        let uuid = last.commit.segment_uuid(mask);
        let whole = self.graph.segment_identity(self.part, self.spec, version, uuid);
        let (n_rows, delta_of) = (rows.len() as u32, Some(whole.n_rows));
        let identity = SegmentIdentity { n_rows, delta_of, ..whole };
        let codec = match base {
            SegmentCodec::Raw => SegmentCodec::Raw,
            SegmentCodec::Zstd { .. } => SegmentCodec::zstd_for(self.spec.row_bytes()),
        };
        let written = write_new_file(self.graph, self.part, name, &identity, |path| {
            let fs = &**self.graph.file_system();
            let mut writer = SegmentWriter::create_delta(fs, path, &identity, codec, rows)?;
            fill(&mut writer)?;
            let digest = writer.finish()?;
            // The source rows are removed once a record names the file.
            read_back_fast(fs, path, &identity)?;
            Ok(digest)
        });
        written.map(|(record, segment)| (DeltaRecord { first, version, record }, segment))
    }

    /// Returns the rows that are pending for `version` in the catalog.
    fn scan_rows(&self, catalog: &Catalog, version: u32) -> Result<Vec<u32>, StoreError> {
        let range = self.graph.book().range(self.part);
        let n_rows = range.end - range.start;
        let mut rows = Vec::new();
        catalog.scan_pending(&self.spec.name, version, RowIdx(0), |row, bytes| {
            if row.0 >= n_rows {
                return Err(self.damaged(catalog, version, row, bytes.len()));
            }
            rows.push(row.0);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(rows)
    }

    fn damaged(&self, catalog: &Catalog, version: u32, row: RowIdx, n_bytes: usize) -> StoreError {
        let (expected, range) = (self.spec.row_bytes(), self.graph.book().range(self.part));
        let n_rows = range.end - range.start;
        let reason =
            format!("expected a row below {n_rows} of {expected} bytes, found {n_bytes} bytes");
        let (dir, tensor) = (catalog.dir().to_owned(), self.spec.name.clone());
        StoreError::DamagedPending { dir, tensor, version, row, reason }
    }
}
