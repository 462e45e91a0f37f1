//! Records of layers and their bytes: which segment a tensor has, which deltas are over it, which
//! are prepared.

use uuid::Uuid;

use super::{Catalog, ChangedParts, broken, commits, keys};
use crate::error::StoreError;
use crate::file_system::Change;
use crate::segment::{SegmentDigest, SegmentIdentity};
use crate::version_id::{CommitId, VersionId};

/// Newest format of a record that this release writes and reads.
const RECORD_FORMAT_VERSION: u32 = 2;

/// A segment as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRecord {
    /// Uuid in the segment's header.
    pub segment: Uuid,
    /// Number of rows.
    pub n_rows: u32,
    /// Bytes of one row.
    pub row_bytes: u32,
    /// BLAKE3 of the segment's tables: page checksums and group index, both padded.
    pub digest: SegmentDigest,
    /// Name of the file in the partition's folder.
    pub file: String,
}

impl SegmentRecord {
    /// Returns the record of the segment `identity` in a file of this name.
    pub(crate) fn new(identity: &SegmentIdentity, digest: SegmentDigest, file: String) -> Self {
        let (segment, n_rows) = (identity.segment, identity.n_rows);
        let row_bytes = identity.tensor.row_bytes() as u32;
        Self { segment, n_rows, row_bytes, digest, file }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = RECORD_FORMAT_VERSION.to_le_bytes().to_vec();
        bytes.extend_from_slice(self.segment.as_bytes());
        bytes.extend_from_slice(&self.n_rows.to_le_bytes());
        bytes.extend_from_slice(&self.row_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.digest);
        bytes.extend_from_slice(self.file.as_bytes());
        bytes
    }

    /// Returns the format of a record that only a later release reads.
    pub(super) fn newer_format(bytes: &[u8]) -> Option<u32> {
        let format = Fields(bytes).u32().ok()?;
        (format > RECORD_FORMAT_VERSION).then_some(format)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let mut fields = Fields(bytes);
        let format = fields.u32()?;
        if format > RECORD_FORMAT_VERSION {
            return Err(format!("format {format}, this release reads {RECORD_FORMAT_VERSION}"));
        }
        let segment = Uuid::from_bytes(fields.take()?);
        let (n_rows, row_bytes, digest) = (fields.u32()?, fields.u32()?, fields.take()?);
        let file = std::str::from_utf8(fields.0).map_err(|_| "file name is not UTF-8")?;
        // A name from a file never becomes a path that leads out of the partition's folder.
        if file.is_empty() || file.starts_with('.') || file.contains(['/', '\0']) {
            return Err(format!("{file:?} is not a plain file name"));
        }
        Ok(Self { segment, n_rows, row_bytes, digest, file: file.to_owned() })
    }
}

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

impl DeltaRecord {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        [&self.first.to_le_bytes()[..], &self.record.to_bytes()].concat()
    }

    /// Returns the format of a record that only a later release reads.
    pub(super) fn newer_format(bytes: &[u8]) -> Option<u32> {
        bytes.split_first_chunk::<4>().and_then(|(_, record)| SegmentRecord::newer_format(record))
    }

    pub(super) fn from_bytes(version: u32, bytes: &[u8]) -> Result<Self, String> {
        let mut fields = Fields(bytes);
        let (first, record) = (fields.u32()?, SegmentRecord::from_bytes(fields.0)?);
        if first == 0 || first > version {
            return Err(format!("expected a first version from 1 to {version}, found {first}"));
        }
        Ok(Self { first, version, record })
    }
}

/// Returns the change that records the version that a commit has prepared.
pub(super) fn prepared_change(version: VersionId) -> Change {
    let mut value = version.number.to_le_bytes().to_vec();
    value.extend_from_slice(&version.commit.to_bytes());
    Change::Put(keys::PREPARED.to_vec(), value)
}

/// Returns the version that a commit has prepared, if the value is such a record. Older releases
/// recorded the number alone.
pub(super) fn prepared_of(value: &[u8]) -> Option<VersionId> {
    let (number, commit) = value.split_first_chunk::<4>()?;
    let commit = match commit {
        [] => CommitId::UNKNOWN,
        commit => CommitId::from_bytes(commit.try_into().ok()?),
    };
    Some(VersionId::new(u32::from_le_bytes(*number), commit))
}

/// Bytes of a record or a manifest that are left to be read.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (&field, rest) = self.0.split_first_chunk().ok_or("it is cut off")?;
        self.0 = rest;
        Ok(field)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }

    /// Reads a number u16.
    pub(crate) fn count(&mut self) -> Result<usize, String> {
        Ok(u16::from_le_bytes(self.take()?).into())
    }

    /// Reads a number u16, and as many bytes.
    pub(crate) fn list(&mut self) -> Result<&'a [u8], String> {
        let n_bytes = self.count()?;
        let (list, rest) = self.0.split_at_checked(n_bytes).ok_or("it is cut off")?;
        self.0 = rest;
        Ok(list)
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
        Ok(self.segments(tensor)?.into_iter().rfind(|(of, _)| *of <= version))
    }

    /// Returns all records of segments of a tensor with their versions, ascending; those of a
    /// tensor that has just come into `graph.toml` as well.
    pub fn segments(&self, tensor: &str) -> Result<Vec<(u32, SegmentRecord)>, StoreError> {
        let read = |version, value: &[u8]| Ok((version, SegmentRecord::from_bytes(value)?));
        let found = self.records(tensor, keys::SEGMENTS, read)?;
        if !found.is_empty() {
            return Ok(found);
        }
        self.records(tensor, keys::NEW_SEGMENTS, read)
    }

    /// Returns all records of deltas of a tensor, oldest first.
    pub(crate) fn deltas(&self, tensor: &str) -> Result<Vec<DeltaRecord>, StoreError> {
        self.records(tensor, keys::DELTAS, DeltaRecord::from_bytes)
    }

    /// Returns the delta of a tensor that is prepared for `version`, if there is one.
    pub(crate) fn prepared_delta(
        &self,
        tensor: &str,
        version: u32,
    ) -> Result<Option<DeltaRecord>, StoreError> {
        let found = self.get(&keys::of_version(keys::PREPARED_DELTAS, tensor, version))?;
        let found = found.map(|value| DeltaRecord::from_bytes(version, &value)).transpose();
        found.map_err(|reason| {
            broken(&self.dir, format!("prepared delta of `{tensor}`, version {version}: {reason}"))
        })
    }

    /// Returns the deltas of `tensor` at `version`, oldest first: those over the newest segment up
    /// to it.
    ///
    /// Fails for a delta that has rows of versions on both sides of the segment's or of `version`.
    pub(crate) fn deltas_at(
        &self,
        tensor: &str,
        version: u32,
    ) -> Result<Vec<DeltaRecord>, StoreError> {
        let Some((base, _)) = self.segment(tensor, version)? else { return Ok(Vec::new()) };
        let mut deltas = self.deltas(tensor)?;
        deltas.retain(|delta| delta.version > base && delta.version <= version);
        let mut newest = base;
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
        Ok(deltas)
    }

    /// Returns the version that a commit has prepared and not published, if there is one.
    pub(crate) fn prepared_version(&self) -> Result<Option<VersionId>, StoreError> {
        let Some(bytes) = self.get(keys::PREPARED)? else { return Ok(None) };
        let reason = || "the prepared version cannot be read".to_owned();
        prepared_of(&bytes).map(Some).ok_or_else(|| broken(&self.dir, reason()))
    }

    /// Records what a commit has written of a version, and removes the rows that were pending for
    /// it. All of it happens or nothing, and it is durable on return. Nothing of it is visible yet.
    pub(crate) fn prepare(
        &self,
        version: VersionId,
        deltas: &[(&str, DeltaRecord)],
    ) -> Result<(), StoreError> {
        let mut changes: Vec<Change> = vec![self.format_change()?];
        // A put for the version before may have lost its answer, and be repeated.
        let (from, to) = keys::put_ids_before(version.number.saturating_sub(1));
        changes.push(Change::DeleteRange(from, to));
        for (tensor, delta) in deltas {
            let record = delta.to_bytes();
            changes.push(keys::put(keys::PREPARED_DELTAS, tensor, version.number, record));
            let (from, to) = keys::row_range(tensor, 0, version.number);
            changes.push(Change::DeleteRange(from, to));
        }
        changes.push(prepared_change(version));
        self.write(&changes)
    }

    /// Makes `commit` the committed version, with the deltas that were prepared for it over the
    /// layers of these tensors. `changed` has the partitions that had rows of it. All of it happens
    /// or nothing, and it is durable on return.
    pub(crate) fn publish<'a>(
        &self,
        commit: VersionId,
        tensors: impl IntoIterator<Item = &'a str>,
        changed: &ChangedParts,
    ) -> Result<(), StoreError> {
        let version = commit.number;
        let mut changes = vec![self.format_change()?];
        for tensor in tensors {
            if let Some(delta) = self.prepared_delta(tensor, version)? {
                changes.push(keys::delete(keys::PREPARED_DELTAS, tensor, version));
                changes.push(keys::put(keys::DELTAS, tensor, version, delta.to_bytes()));
            }
        }
        changes.push(Change::Delete(keys::PREPARED.to_vec()));
        changes.push(Change::Put(keys::VERSION.to_vec(), version.to_le_bytes().to_vec()));
        changes.push(Change::Put(keys::CHANGED.to_vec(), changed.to_bytes()));
        changes.extend(commits::noted(commit));
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
        let put = keys::put(keys::DELTAS, tensor, delta.version, delta.to_bytes());
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
        // That of a tensor which came a short while ago, too.
        let kinds = [keys::SEGMENTS, keys::NEW_SEGMENTS];
        let old = old.flat_map(|(of, _)| kinds.map(|kind| keys::delete(kind, tensor, of)));
        let mut changes: Vec<Change> = old.collect();
        let folded = self.deltas(tensor)?.into_iter().filter(|delta| delta.version <= version);
        changes.extend(folded.map(|delta| keys::delete(keys::DELTAS, tensor, delta.version)));
        changes.push(keys::put(keys::SEGMENTS, tensor, version, record.to_bytes()));
        self.write(&changes)
    }

    /// Puts one delta in the place of all deltas of `tensor` whose versions it spans: all of it or
    /// nothing, and durable when it returns.
    pub(crate) fn switch_deltas(&self, tensor: &str, by: &DeltaRecord) -> Result<(), StoreError> {
        let folded = self.deltas(tensor)?.into_iter();
        let folded = folded.filter(|it| it.first >= by.first && it.version <= by.version);
        let mut changes: Vec<Change> =
            folded.map(|it| keys::delete(keys::DELTAS, tensor, it.version)).collect();
        changes.push(keys::put(keys::DELTAS, tensor, by.version, by.to_bytes()));
        self.write(&changes)
    }

    /// Returns all records of a kind of a tensor, ascending by version.
    fn records<T>(
        &self,
        tensor: &str,
        kind: &[u8],
        read: impl Fn(u32, &[u8]) -> Result<T, String>,
    ) -> Result<Vec<T>, StoreError> {
        let prefix = keys::of_tensor(kind, tensor);
        let mut records = Vec::new();
        self.scan(&prefix, |key, value| {
            let version = keys::number(&key[prefix.len()..]).ok_or("no version");
            let record = version.map_err(str::to_owned).and_then(|version| read(version, value));
            records.push(record.map_err(|reason| {
                broken(&self.dir, format!("record of `{tensor}`, key {key:02x?}: {reason}"))
            })?);
            Ok(())
        })?;
        Ok(records)
    }
}
