//! What repair does to catalogs.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, RangeInclusive};

use super::{Catalog, Pair, SegmentRecord, broken, keys};
use crate::device::Change;
use crate::error::StoreError;
use crate::row::RowIdx;

/// Overlay rows are copied in batches of about this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// The record of a tensor's segment, and of the one that was given up for it, if any was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorRecord {
    pub(crate) tensor: String,
    pub(crate) version: u32,
    pub(crate) record: SegmentRecord,
    /// The record of the segment as it was written, rows of which were lost: whoever brings it
    /// back can be believed.
    pub(crate) lost: Option<SegmentRecord>,
}

/// Rows of versions that a segment should have taken in, and has not.
#[derive(Clone, Debug)]
pub(crate) struct Carried {
    pub(crate) tensor: String,
    /// The version after the segment's: that which they are put for.
    pub(crate) version: u32,
    pub(crate) rows: BTreeMap<RowIdx, Vec<u8>>,
}

impl Catalog {
    /// Of the rows of a tensor that `wants` chooses the newest of the versions `from`, to be put for
    /// the version after; without those that were put for that one too.
    pub(crate) fn rows_to_carry(
        &self,
        tensor: &str,
        from: RangeInclusive<u32>,
        wants: impl Fn(RowIdx, &[u8]) -> bool,
    ) -> Result<Option<Carried>, StoreError> {
        let Some(after) = from.end().checked_add(1) else { return Ok(None) };
        let mut rows = BTreeMap::new();
        // Ascending versions: the last one stays.
        self.scan_all(&mut |_, pair| {
            if let Pair::Row { tensor: of, version, row, bytes } = pair
                && of == tensor
                && wants(row, bytes)
            {
                if from.contains(&version) {
                    rows.insert(row, bytes.to_vec());
                } else if version == after {
                    rows.remove(&row);
                }
            }
            ControlFlow::Continue(())
        })?;
        let tensor = tensor.to_owned();
        Ok((!rows.is_empty()).then_some(Carried { tensor, version: after, rows }))
    }

    /// Puts records in the place of those that their tensors have, and rows over them, and commits
    /// `version`: all of it or nothing.
    pub(crate) fn replace_records(
        &self,
        records: &[TensorRecord],
        carried: &[&Carried],
        version: u32,
    ) -> Result<(), StoreError> {
        let version = version.to_le_bytes().to_vec();
        let mut changes = vec![Change::Put(keys::VERSION.to_vec(), version)];
        for Carried { tensor, version, rows } in carried {
            let prefix = keys::rows_of(tensor);
            changes.extend(rows.iter().map(|(row, bytes)| {
                let mut key = prefix.clone();
                keys::push_row(&mut key, *version, *row);
                Change::Put(key, bytes.clone())
            }));
        }
        for TensorRecord { tensor, version, record, lost } in records {
            let old = self.segments(tensor)?.into_iter().map(|(of, _)| keys::segment(tensor, of));
            changes.extend(old.map(Change::Delete));
            changes.push(Change::Put(keys::segment(tensor, *version), record.to_bytes()));
            let lost_key = keys::lost(tensor, *version);
            changes.push(match lost {
                Some(lost) => Change::Put(lost_key, lost.to_bytes()),
                None => Change::Delete(lost_key),
            });
        }
        self.write(&changes)
    }

    /// The record that the segment of a tensor at `version` had before rows of it were given up;
    /// `None` where none were.
    pub(crate) fn lost_segment(
        &self,
        tensor: &str,
        version: u32,
    ) -> Result<Option<SegmentRecord>, StoreError> {
        let record = self.get(&keys::lost(tensor, version))?;
        let record = record.map(|record| SegmentRecord::from_bytes(&record)).transpose();
        record.map_err(|reason| broken(&self.dir, format!("lost record of `{tensor}`: {reason}")))
    }

    /// Keeps what could not be kept, for the day that nobody has been told of it.
    pub(crate) fn note_losses(&self, losses: &[String]) -> Result<(), StoreError> {
        let lines: Vec<String> = losses.iter().map(|loss| loss.replace('\n', " ")).collect();
        self.write(&[Change::Put(keys::LOSSES.to_vec(), lines.join("\n").into_bytes())])
    }

    /// Forgets what [`Catalog::note_losses`] has kept: it has been told.
    pub(crate) fn forget_losses(&self) -> Result<(), StoreError> {
        self.write(&[Change::Delete(keys::LOSSES.to_vec())])
    }

    /// Copies overlay rows of `from` to the version that `place` gives each, if it gives one.
    pub(crate) fn copy_rows(
        &self,
        from: &Self,
        place: &mut dyn FnMut(&Pair<'_>) -> Option<u32>,
    ) -> Result<(), StoreError> {
        let (mut batch, mut n_bytes, mut failure) = (Vec::new(), 0, None);
        from.scan_all(&mut |_, pair| {
            let Some(version) = place(&pair) else { return ControlFlow::Continue(()) };
            let Pair::Row { tensor, row, bytes, .. } = pair else {
                return ControlFlow::Continue(());
            };
            let mut key = keys::rows_of(tensor);
            keys::push_row(&mut key, version, row);
            n_bytes += key.len() + bytes.len();
            batch.push(Change::Put(key, bytes.to_vec()));
            if n_bytes < BATCH_BYTES {
                return ControlFlow::Continue(());
            }
            n_bytes = 0;
            match self.write(&std::mem::take(&mut batch)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failure.map_or_else(|| self.write(&batch), Err)
    }
}
