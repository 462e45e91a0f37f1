//! Repair's changes of catalogs.

use super::segments::prepared_change;
use super::{Catalog, DeltaRecord, Pair, SegmentRecord, broken, keys};
use crate::error::StoreError;
use crate::file_system::Change;
use crate::version_id::{CommitId, SegmentMask, VersionId};

/// Pending rows are copied in batches of about this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// The record of a tensor's segment, and of the one that was given up for it, if any was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorRecord {
    pub(crate) tensor: String,
    pub(crate) version: u32,
    pub(crate) record: SegmentRecord,
    /// The record of the segment as it was written, rows of which were lost: a file that is brought
    /// back can be verified.
    pub(crate) lost: Option<SegmentRecord>,
}

/// A delta of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorDelta {
    pub(crate) tensor: String,
    pub(crate) delta: DeltaRecord,
    /// A commit has written it and not published it.
    pub(crate) is_prepared: bool,
}

impl Catalog {
    /// Replaces the records of the tensors in `records`, replaces all deltas, prepared ones too, by
    /// `deltas`, and commits `version`. Keeps `losses` until a repair has reported them. All of it
    /// happens or nothing.
    pub(crate) fn replace_records(
        &self,
        records: &[TensorRecord],
        deltas: &[TensorDelta],
        version: u32,
        losses: &[String],
    ) -> Result<(), StoreError> {
        let mut changes = self.record_changes(records, deltas, version)?;
        if !losses.is_empty() {
            let lines: Vec<String> = losses.iter().map(|loss| loss.replace('\n', " ")).collect();
            changes.push(Change::Put(keys::LOSSES.to_vec(), lines.join("\n").into_bytes()));
        }
        self.write(&changes)
    }

    /// Does the same for records of another catalog of the partition, together with its last
    /// commits.
    pub(crate) fn take_over(
        &self,
        records: &[TensorRecord],
        deltas: &[TensorDelta],
        version: u32,
        commits: &[VersionId],
    ) -> Result<(), StoreError> {
        let mut changes = self.record_changes(records, deltas, version)?;
        changes.extend(self.commit_changes(commits)?);
        self.write(&changes)
    }

    fn record_changes(
        &self,
        records: &[TensorRecord],
        deltas: &[TensorDelta],
        version: u32,
    ) -> Result<Vec<Change>, StoreError> {
        let version = version.to_le_bytes().to_vec();
        let mut changes = vec![Change::Put(keys::VERSION.to_vec(), version)];
        for TensorRecord { tensor, version, record, lost } in records {
            let old = self.segments(tensor)?.into_iter();
            changes.extend(old.map(|(of, _)| keys::delete(keys::SEGMENTS, tensor, of)));
            changes.push(keys::put(keys::SEGMENTS, tensor, *version, record.to_bytes()));
            let lost_key = keys::of_version(keys::LOST, tensor, *version);
            changes.push(Change::set(lost_key, lost.as_ref().map(SegmentRecord::to_bytes)));
        }
        for prefix in [keys::DELTAS, keys::PREPARED_DELTAS] {
            self.scan(prefix, |key, _| {
                changes.push(Change::Delete(key.to_vec()));
                Ok(())
            })?;
        }
        let mut prepared = None;
        let part = self.identity()?.1 as u16;
        for TensorDelta { tensor, delta, is_prepared } in deltas {
            let kind = if *is_prepared { keys::PREPARED_DELTAS } else { keys::DELTAS };
            changes.push(keys::put(kind, tensor, delta.version, delta.to_bytes()));
            if *is_prepared {
                let mask = SegmentMask::new(part, tensor, delta.first, delta.version);
                let commit = CommitId::of_segment(delta.record.segment, mask);
                prepared = prepared.or(Some(VersionId::new(delta.version, commit)));
            }
        }
        changes.push(match prepared {
            Some(version) => prepared_change(version),
            None => Change::Delete(keys::PREPARED.to_vec()),
        });
        // They are of a commit that another catalog has recorded.
        changes.push(Change::Delete(keys::CHANGED.to_vec()));
        changes.push(self.format_change()?);
        Ok(changes)
    }

    /// Returns the record that the segment of a tensor at `version` had before rows of it were
    /// given up; `None` where none were.
    pub(crate) fn lost_segment(
        &self,
        tensor: &str,
        version: u32,
    ) -> Result<Option<SegmentRecord>, StoreError> {
        let record = self.get(&keys::of_version(keys::LOST, tensor, version))?;
        let record = record.map(|record| SegmentRecord::from_bytes(&record)).transpose();
        record.map_err(|reason| broken(&self.dir, format!("lost record of `{tensor}`: {reason}")))
    }

    /// Returns whether it keeps losses that no repair has reported.
    pub(crate) fn has_losses(&self) -> Result<bool, StoreError> {
        Ok(self.get(keys::LOSSES)?.is_some())
    }

    /// Drops the losses that it keeps, since they are reported.
    pub(crate) fn forget_losses(&self) -> Result<(), StoreError> {
        self.write(&[Change::Delete(keys::LOSSES.to_vec())])
    }

    /// Copies pending rows of `from` to the version that `place` returns for each, if any.
    pub(crate) fn copy_rows(
        &self,
        from: &Self,
        place: &mut dyn FnMut(&Pair<'_>) -> Option<u32>,
    ) -> Result<(), StoreError> {
        let (mut batch, mut n_bytes) = (Vec::new(), 0);
        from.scan(b"", |key, value| {
            let pair = Pair::of(key, value);
            let Some(version) = place(&pair) else { return Ok(()) };
            let Pair::Row { tensor, row, bytes, .. } = pair else { return Ok(()) };
            let key = keys::row(tensor, version, row);
            n_bytes += key.len() + bytes.len();
            batch.push(Change::Put(key, bytes.to_vec()));
            if n_bytes < BATCH_BYTES {
                return Ok(());
            }
            n_bytes = 0;
            self.write(&std::mem::take(&mut batch))
        })?;
        self.write(&batch)
    }
}
