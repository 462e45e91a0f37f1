//! The uncommitted rows of a sealed partition, as a move transfers them.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::super::{GraphHandle, Layer, PartHandle, TensorHandle};
use crate::error::StoreError;
use crate::plan::{DiskProfile, ReadPlan};
use crate::row::RowIdx;
use crate::transfer::piece;

/// Pending rows that are not transferred yet, by tensor and version.
///
/// They include rows that a commit has prepared, for the prepared version. The same commit prepares
/// them again at the new owner.
#[derive(Debug)]
pub(super) struct UncommittedRows(VecDeque<Stretch>);

/// The pending rows of a tensor for a version.
#[derive(Debug)]
struct Stretch {
    tensor: Arc<TensorHandle>,
    /// Position of the tensor in the graph's description.
    position: u16,
    version: u32,
    /// The delta of a prepared commit; `None` for rows in the catalog.
    prepared: Option<Arc<Layer>>,
    /// The next row of the partition, or of the file.
    next: u32,
}

impl UncommittedRows {
    /// Lists the pending rows of a sealed partition from its catalog, because a failed commit may
    /// have recorded more than is known in memory.
    pub(super) fn of(live: &GraphHandle, part: &PartHandle) -> Result<Self, StoreError> {
        let (catalog, mut all) = (&part.catalog, VecDeque::new());
        let prepared_version = catalog.prepared_version()?.map(|it| it.number);
        for (tensor, position) in part.listed().zip(0u16..) {
            let spec = tensor.spec();
            let mut push = |version, prepared| {
                let tensor = Arc::clone(tensor);
                all.push_back(Stretch { tensor, position, version, prepared, next: 0 });
            };
            if let Some(version) = prepared_version
                && let Some(delta) = catalog.prepared_delta(&spec.name, version)?
            {
                let segment = live.graph.open_delta(part.part, spec, &delta)?;
                push(version, Some(Layer::open(segment, version, live.reader)?));
            }
            let mut after = part.version();
            while let Some(version) = catalog.first_put_after(&spec.name, after)? {
                push(version, None);
                after = version;
            }
        }
        Ok(Self(all))
    }

    /// Returns whether all rows were read.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends the next rows to `out`; see
    /// [`PartCopy::next_pending`](super::PartCopy::next_pending).
    pub(super) fn next(
        &mut self,
        part: &PartHandle,
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        while let Some(stretch) = self.0.front_mut() {
            let row_bytes = stretch.tensor.spec().row_bytes();
            let mut room = piece::rows_within(limit.saturating_sub(out.len()), row_bytes);
            if room == 0 {
                if !out.is_empty() {
                    return Ok(false);
                }
                room = 1;
            }
            let (rows, bytes) = stretch.read(part, room)?;
            if !rows.is_empty() {
                piece::push(out, stretch.position, stretch.version, &rows, &bytes);
            }
            if rows.len() == room {
                return Ok(false);
            }
            self.0.pop_front();
        }
        Ok(true)
    }
}

impl Stretch {
    /// Reads the numbers and bytes of the next rows, at most `most`. Fewer than `most` are the last
    /// ones.
    fn read(&mut self, part: &PartHandle, most: usize) -> Result<(Vec<u32>, Vec<u8>), StoreError> {
        let spec = self.tensor.spec().clone();
        let row_bytes = spec.row_bytes();
        let (mut rows, mut bytes) = (Vec::new(), Vec::new());
        if let Some(layer) = &self.prepared {
            let listed = layer.segment().listed_rows().iter().zip(0u32..);
            let chosen: Vec<_> = listed.skip(self.next as usize).take(most).collect();
            let places: Vec<_> =
                chosen.iter().zip(0u32..).map(|((_, at), to)| (RowIdx(*at), to)).collect();
            bytes.resize(chosen.len() * row_bytes, 0);
            let (profile, mut plan) = (DiskProfile::default(), ReadPlan::default());
            layer.reader().gather(&places, &profile, &mut plan, &mut bytes)?;
            rows.extend(chosen.iter().map(|(row, _)| **row));
            self.next += rows.len() as u32;
            return Ok((rows, bytes));
        }
        let version = self.version;
        part.catalog.scan_pending(&spec.name, version, RowIdx(self.next), |row, value| {
            if value.len() != row_bytes {
                let found = value.len();
                let reason = format!("expected {row_bytes} bytes, found {found}");
                let (dir, tensor) = (part.catalog.dir().to_owned(), spec.name.clone());
                return Err(StoreError::DamagedPending { dir, tensor, version, row, reason });
            }
            rows.push(row.0);
            bytes.extend_from_slice(value);
            let is_full = rows.len() == most;
            Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        self.next = rows.last().map_or(self.next, |last| last.saturating_add(1));
        Ok((rows, bytes))
    }
}
