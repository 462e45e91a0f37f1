//! Records of layers: which segment a tensor has, which deltas are over it, which are prepared.

use std::ops::ControlFlow;

use super::{Catalog, SegmentRecord, broken, commits, failed, keys};
use crate::error::StoreError;
use crate::file_system::Change;

/// A delta segment as the catalog knows it, under its newest version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeltaRecord {
    /// The oldest version that it has rows of.
    pub(crate) first: u32,
    /// The newest one: the version of its segment.
    pub(crate) version: u32,
    /// The file.
    pub(crate) record: SegmentRecord,
}

/// The layers of a tensor at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerRecords {
    /// Version and record of the segment that has every row.
    pub(crate) base: (u32, SegmentRecord),
    /// Deltas over it, oldest first.
    pub(crate) deltas: Vec<DeltaRecord>,
}

impl DeltaRecord {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        [&self.first.to_le_bytes()[..], &self.record.to_bytes()].concat()
    }

    /// Returns the format of a record that only a later release reads.
    pub(super) fn newer_format(bytes: &[u8]) -> Option<u32> {
        bytes.split_first_chunk::<4>().and_then(|(_, record)| SegmentRecord::newer_format(record))
    }

    pub(super) fn from_bytes(version: u32, bytes: &[u8]) -> Result<Self, String> {
        let (first, record) = bytes.split_first_chunk().ok_or("it is too short")?;
        let (first, record) = (u32::from_le_bytes(*first), SegmentRecord::from_bytes(record)?);
        if first == 0 || first > version {
            return Err(format!("expected a first version from 1 to {version}, found {first}"));
        }
        Ok(Self { first, version, record })
    }
}

impl Catalog {
    /// Returns the segment of `tensor` at `version`, that of the newest record up to it, with the
    /// version of the record. Returns `None` if there is no such record.
    pub fn segment(
        &self,
        tensor: &str,
        version: u32,
    ) -> Result<Option<(u32, SegmentRecord)>, StoreError> {
        let newest = self.segments(tensor)?.into_iter().rfind(|(of, _)| *of <= version);
        Ok(newest)
    }

    /// Returns all records of segments of a tensor with their versions, ascending; those of a
    /// tensor that has just come into `graph.toml` as well.
    pub fn segments(&self, tensor: &str) -> Result<Vec<(u32, SegmentRecord)>, StoreError> {
        let read = |version, value: &[u8]| Ok((version, SegmentRecord::from_bytes(value)?));
        let found = self.records(tensor, &keys::segments_of(tensor), read)?;
        if !found.is_empty() {
            return Ok(found);
        }
        self.records(tensor, &keys::new_segments_of(tensor), read)
    }

    /// Returns all records of deltas of a tensor, oldest first.
    pub(crate) fn deltas(&self, tensor: &str) -> Result<Vec<DeltaRecord>, StoreError> {
        self.records(tensor, &keys::deltas_of(tensor), DeltaRecord::from_bytes)
    }

    /// Returns the delta of a tensor that is prepared for `version`, if there is one.
    pub(crate) fn prepared_delta(
        &self,
        tensor: &str,
        version: u32,
    ) -> Result<Option<DeltaRecord>, StoreError> {
        let found = self.get(&keys::prepared(tensor, version))?;
        let found = found.map(|value| DeltaRecord::from_bytes(version, &value)).transpose();
        found.map_err(|reason| {
            broken(&self.dir, format!("prepared delta of `{tensor}`, version {version}: {reason}"))
        })
    }

    /// Returns the layers of `tensor` at `version`; `None` without a segment up to it.
    ///
    /// Fails for a delta that has rows of versions on both sides of the segment's or of `version`.
    pub(crate) fn layers(
        &self,
        tensor: &str,
        version: u32,
    ) -> Result<Option<LayerRecords>, StoreError> {
        let Some(base) = self.segment(tensor, version)? else { return Ok(None) };
        let mut deltas = self.deltas(tensor)?;
        deltas.retain(|delta| delta.version > base.0 && delta.version <= version);
        let mut newest = base.0;
        for delta in &deltas {
            if delta.first <= newest {
                let (first, last) = (delta.first, delta.version);
                let reason = format!(
                    "the delta of `{tensor}` for versions {first} to {last} overlaps version {newest}"
                );
                return Err(broken(&self.dir, reason));
            }
            newest = delta.version;
        }
        Ok(Some(LayerRecords { base, deltas }))
    }

    /// Returns the version that a commit has prepared and not published, if there is one.
    pub(crate) fn prepared_version(&self) -> Result<Option<u32>, StoreError> {
        let Some(bytes) = self.get(keys::PREPARED)? else { return Ok(None) };
        let bytes = <[u8; 4]>::try_from(bytes.as_slice())
            .map_err(|_| broken(&self.dir, "the prepared version cannot be read".to_owned()))?;
        Ok(Some(u32::from_le_bytes(bytes)))
    }

    /// Records what a commit has written of `version`, and removes the rows that were pending for
    /// it. All of it happens or nothing, and it is durable on return. Nothing of it is visible yet.
    pub(crate) fn prepare(
        &self,
        version: u32,
        deltas: &[(&str, DeltaRecord)],
    ) -> Result<(), StoreError> {
        let mut changes: Vec<Change> = vec![self.format_change()?];
        for (tensor, delta) in deltas {
            changes.push(Change::Put(keys::prepared(tensor, version), delta.to_bytes()));
            let (from, to) = keys::row_range(tensor, 0, version);
            changes.push(Change::DeleteRange(from, to));
        }
        changes.push(Change::Put(keys::PREPARED.to_vec(), version.to_le_bytes().to_vec()));
        self.write(&changes)
    }

    /// Makes `version` the committed one, with the deltas that were prepared for it over the layers
    /// of these tensors. All of it happens or nothing, and it is durable on return.
    pub(crate) fn publish<'a>(
        &self,
        version: u32,
        tensors: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), StoreError> {
        let mut changes = Vec::new();
        for tensor in tensors {
            if let Some(delta) = self.prepared_delta(tensor, version)? {
                changes.push(Change::Delete(keys::prepared(tensor, version)));
                changes.push(Change::Put(keys::delta(tensor, version), delta.to_bytes()));
            }
        }
        changes.push(Change::Delete(keys::PREPARED.to_vec()));
        changes.push(Change::Put(keys::VERSION.to_vec(), version.to_le_bytes().to_vec()));
        changes.extend(commits::noted(version));
        self.write(&changes)
    }

    /// Records a delta of rows that an older release has committed as they were put, and removes
    /// these rows. All of it happens or nothing, and it is durable on return.
    pub(crate) fn bring_forward(
        &self,
        tensor: &str,
        delta: &DeltaRecord,
    ) -> Result<(), StoreError> {
        let (from, to) = keys::row_range(tensor, 0, delta.version);
        let put = Change::Put(keys::delta(tensor, delta.version), delta.to_bytes());
        self.write(&[self.format_change()?, put, Change::DeleteRange(from, to)])
    }

    /// Removes rows of versions up to `version`, which a segment has taken in.
    pub(crate) fn remove_rows(&self, tensor: &str, version: u32) -> Result<(), StoreError> {
        let (from, to) = keys::row_range(tensor, 0, version);
        self.write(&[Change::DeleteRange(from, to)])
    }

    /// Replaces all segments and deltas of `tensor` up to `version` by the record of a segment of
    /// it. All of it happens or nothing, and it is durable on return.
    pub fn switch_segment(
        &self,
        tensor: &str,
        version: u32,
        record: &SegmentRecord,
    ) -> Result<(), StoreError> {
        let old = self.segments(tensor)?.into_iter().filter(|(of, _)| *of != version);
        let old_keys = |of: u32| {
            // That of a tensor which came a short while ago.
            let new = [&keys::new_segments_of(tensor), of.to_be_bytes().as_slice()].concat();
            [keys::segment(tensor, of), new]
        };
        let mut changes: Vec<Change> =
            old.flat_map(|(of, _)| old_keys(of)).map(Change::Delete).collect();
        let folded = self.deltas(tensor)?.into_iter().filter(|delta| delta.version <= version);
        changes.extend(folded.map(|delta| Change::Delete(keys::delta(tensor, delta.version))));
        changes.push(Change::Put(keys::segment(tensor, version), record.to_bytes()));
        self.write(&changes)
    }

    /// Puts one delta in the place of all deltas of `tensor` whose versions it spans: all of it or
    /// nothing, and durable when it returns.
    pub(crate) fn switch_deltas(&self, tensor: &str, by: &DeltaRecord) -> Result<(), StoreError> {
        let folded = self.deltas(tensor)?.into_iter();
        let folded = folded.filter(|it| it.first >= by.first && it.version <= by.version);
        let mut changes: Vec<Change> =
            folded.map(|it| Change::Delete(keys::delta(tensor, it.version))).collect();
        changes.push(Change::Put(keys::delta(tensor, by.version), by.to_bytes()));
        self.write(&changes)
    }

    /// Returns all records whose keys are `prefix` and a version, ascending.
    fn records<T>(
        &self,
        tensor: &str,
        prefix: &[u8],
        read: impl Fn(u32, &[u8]) -> Result<T, String>,
    ) -> Result<Vec<T>, StoreError> {
        let mut records = Vec::new();
        let mut fault = None;
        let mut each = |key: &[u8], value: &[u8]| {
            let version = keys::segment_version(&key[prefix.len()..]).ok_or("no version");
            let record = version.map_err(str::to_owned).and_then(|version| read(version, value));
            match record {
                Ok(record) => records.push(record),
                Err(reason) => {
                    fault = Some(format!("record of `{tensor}`, key {key:02x?}: {reason}"));
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        };
        self.pairs.scan(prefix, &mut each).map_err(failed(&self.dir))?;
        fault.map_or(Ok(records), |reason| Err(broken(&self.dir, reason)))
    }
}
