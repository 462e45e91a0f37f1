//! Files of versions that the catalog has not committed.
//!
//! An interrupted commit leaves a delta that no record names, whose rows are still pending. Such a
//! file may be removed once that is verified. Any other file of a later version is from a commit
//! that the catalog has lost: the catalog was restored from an older copy, or its log has lost its
//! end. Then the file may be the only copy of committed rows.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use lodestore_graph::PartId;

use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::graph::Graph;
use crate::plan::{DiskProfile, ReadPlan};
use crate::reader::{PreadReader, RowReader};
use crate::row::RowIdx;
use crate::segment::Segment;
use crate::tensor::TensorSpec;

/// Approximate bytes of rows that are compared at once.
const PIECE_BYTES: usize = 1 << 20;

/// Returns whether `file`, by its name a segment or delta of `version`, has only rows that are
/// pending for that version with the same bytes. `false` for a damaged file.
///
/// Fails on I/O errors of the file or the catalog.
pub(crate) fn holds_only_pending(
    graph: &Graph,
    part: PartId,
    catalog: &Catalog,
    tensor: &TensorSpec,
    file: &str,
    version: u32,
) -> Result<bool, StoreError> {
    let opened = graph.open_as_named(part, tensor, file, version);
    let compared = opened.and_then(|segment| match segment {
        Some(segment) if segment.identity().delta_of.is_some() => {
            are_pending(&Arc::new(segment), catalog, tensor, version)
        }
        _ => Ok(false),
    });
    match compared {
        Err(error) if error.origin() == ErrorOrigin::Damage => Ok(false),
        compared => compared,
    }
}

/// Returns whether all rows of a delta are pending for `version`, with the same bytes.
fn are_pending(
    delta: &Arc<Segment>,
    catalog: &Catalog,
    tensor: &TensorSpec,
    version: u32,
) -> Result<bool, StoreError> {
    let mut rows = DeltaRows::new(delta, tensor.row_bytes());
    let mut are_same = true;
    catalog.scan_pending(&tensor.name, version, RowIdx(0), |row, bytes| {
        let Some(next) = rows.next_row() else { return Ok(ControlFlow::Break(())) };
        if row < next {
            return Ok(ControlFlow::Continue(()));
        }
        are_same = row == next && rows.take()? == bytes;
        Ok(if are_same { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(are_same && rows.next_row().is_none())
}

/// Iterates over the rows of a delta.
struct DeltaRows<'a> {
    delta: &'a Segment,
    reader: PreadReader,
    row_bytes: usize,
    /// Position of the next row in the file.
    next: usize,
    /// Positions of the buffered rows, and their bytes.
    read: Range<usize>,
    bytes: Vec<u8>,
    plan: ReadPlan,
}

impl<'a> DeltaRows<'a> {
    fn new(delta: &'a Arc<Segment>, row_bytes: usize) -> Self {
        Self {
            delta,
            reader: PreadReader::new(Arc::clone(delta)),
            row_bytes,
            next: 0,
            read: 0..0,
            bytes: Vec::new(),
            plan: ReadPlan::default(),
        }
    }

    /// Returns the partition's row number of the next row.
    fn next_row(&self) -> Option<RowIdx> {
        self.delta.listed_rows().get(self.next).map(|&row| RowIdx(row))
    }

    /// Returns the bytes of the next row, which must exist, and advances.
    fn take(&mut self) -> Result<&[u8], StoreError> {
        if !self.read.contains(&self.next) {
            let n_rows = (PIECE_BYTES / self.row_bytes).max(1);
            let end = self.delta.listed_rows().len().min(self.next + n_rows);
            self.read = self.next..end;
            let rows: Vec<(RowIdx, u32)> =
                self.read.clone().zip(0u32..).map(|(at, out)| (RowIdx(at as u32), out)).collect();
            self.bytes.resize(rows.len() * self.row_bytes, 0);
            let profile = DiskProfile::default();
            self.reader.gather(&rows, &profile, &mut self.plan, &mut self.bytes)?;
        }
        let start = (self.next - self.read.start) * self.row_bytes;
        self.next += 1;
        Ok(&self.bytes[start..start + self.row_bytes])
    }
}
