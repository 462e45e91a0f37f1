//! The files of a version of a partition, as a writer lists them for its followers.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use lodestore_graph::PartId;
use uuid::Uuid;

use crate::catalog::{DeltaRecord, Fields, SegmentRecord, TensorDelta, TensorRecord};
use crate::graph::{delta_file, segment_file};
use crate::limits::COMMITS_LISTED;
use crate::version_id::{CommitId, VersionId};

/// First bytes of a manifest.
const MAGIC: &[u8; 8] = b"LODEMAN3";
/// First bytes of a manifest of a release that knew tensors by their names alone.
const MAGIC_WITHOUT_UUIDS: &[u8; 8] = b"LODEMAN2";
/// Bytes of the checksum at its end.
const CHECKSUM_BYTES: usize = 32;

/// The files of a partition at a version: for each tensor the segment with all rows, and the deltas
/// over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub(crate) graph: Uuid,
    pub(crate) part: PartId,
    pub(crate) version: u32,
    /// In the order of the graph's description.
    pub(crate) tensors: Vec<ManifestTensor>,
    /// The last commits up to the version, ascending.
    pub(crate) commits: Vec<VersionId>,
}

/// How two manifests of a partition relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Succession {
    /// The same version of one history.
    Same,
    /// A later version of the same history.
    Later,
    /// An earlier version of the same history.
    Earlier,
    /// They have made a version by different commits: two histories.
    Apart,
    /// The later one no longer knows the commit of the earlier one: too many were made since.
    Unknown,
}

/// The files of a tensor, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestTensor {
    pub(crate) name: String,
    /// Identity of the tensor; nil in a manifest that has none.
    pub(crate) uuid: Uuid,
    /// Version and record of the segment that has every row.
    pub(crate) base: (u32, SegmentRecord),
    pub(crate) deltas: Vec<DeltaRecord>,
}

impl Manifest {
    /// Returns the graph.
    #[must_use]
    pub fn graph(&self) -> Uuid {
        self.graph
    }

    /// Returns the partition.
    #[must_use]
    pub fn part(&self) -> PartId {
        self.part
    }

    /// Returns the version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the version, with the commit that made it.
    #[must_use]
    pub fn version_id(&self) -> VersionId {
        VersionId::new(self.version, self.commit_of(self.version))
    }

    /// Returns the commit that made a version, where it is among those that are listed.
    #[must_use]
    pub fn commit_of(&self, number: u32) -> CommitId {
        let listed = self.commits.iter().find(|commit| commit.number == number);
        listed.map_or(CommitId::UNKNOWN, |commit| commit.commit)
    }

    /// Returns how this manifest relates to another one of the same partition.
    #[must_use]
    pub fn succession(&self, other: &Self) -> Succession {
        let (earlier, later, result) = match self.version.cmp(&other.version) {
            Ordering::Equal => (other, self, Succession::Same),
            Ordering::Greater => (other, self, Succession::Later),
            Ordering::Less => (self, other, Succession::Earlier),
        };
        if self.graph != other.graph || self.part != other.part {
            return Succession::Apart;
        }
        let commit_of =
            |of: &Self| of.commits.iter().find(|it| it.number == earlier.version).copied();
        match (commit_of(earlier), commit_of(later)) {
            // The version of an import has none: every history of the graph begins with it.
            (None, None) if earlier.commits.is_empty() => result,
            (Some(ours), Some(theirs)) if ours == theirs => result,
            (Some(_), None) if later.begins_after(earlier.version) => Succession::Unknown,
            (None, _) | (Some(_), _) => Succession::Apart,
        }
    }

    /// Returns whether it has forgotten the commit of a version.
    fn begins_after(&self, version: u32) -> bool {
        self.commits.len() as u64 >= u64::from(COMMITS_LISTED)
            && self.commits.first().is_some_and(|oldest| oldest.number > version)
    }

    /// Returns whether two manifests have the same tensors.
    #[must_use]
    pub fn has_tensors_of(&self, other: &Self) -> bool {
        let pairs = self.tensors.iter().zip(&other.tensors);
        self.tensors.len() == other.tensors.len()
            && pairs.into_iter().all(|(ours, theirs)| ours.is_of(&theirs.name, theirs.uuid))
    }

    /// Returns what identifies the bytes of a file: the uuid in its header and the digest of its
    /// tables.
    #[must_use]
    pub fn file_id(&self, file: &str) -> Option<[u8; 48]> {
        let record = self.segments().find(|record| record.file == file)?;
        let mut id = [0; 48];
        id[..16].copy_from_slice(record.segment.as_bytes());
        id[16..].copy_from_slice(&record.digest);
        Some(id)
    }

    /// Names of its files.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.segments().map(|record| record.file.as_str())
    }

    fn segments(&self) -> impl Iterator<Item = &SegmentRecord> {
        self.tensors.iter().flat_map(|tensor| {
            let deltas = tensor.deltas.iter().map(|delta| &delta.record);
            std::iter::once(&tensor.base.1).chain(deltas)
        })
    }

    /// Returns the records as a catalog keeps them.
    pub(crate) fn records(&self) -> (Vec<TensorRecord>, Vec<TensorDelta>) {
        let record = |tensor: &ManifestTensor| TensorRecord {
            tensor: tensor.name.clone(),
            version: tensor.base.0,
            record: tensor.base.1.clone(),
            lost: None,
        };
        let deltas = self.tensors.iter().flat_map(|tensor| {
            tensor.deltas.iter().map(|delta| TensorDelta {
                tensor: tensor.name.clone(),
                delta: delta.clone(),
                is_prepared: false,
            })
        });
        (self.tensors.iter().map(record).collect(), deltas.collect())
    }

    /// Returns the bytes of the manifest, little-endian:
    ///
    /// - magic 8, graph 16, partition u16, version u32;
    /// - number of tensors u16, and for each: name (u16 and bytes), uuid 16, version of the segment
    ///   u32, its record (u16 and bytes), number of deltas u16;
    /// - for each delta of the tensor: first version u32, version u32, record (u16 and bytes);
    /// - number of commits u16, and for each: version u32, id 16;
    /// - BLAKE3 of all that.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(self.graph.as_bytes());
        bytes.extend_from_slice(&self.part.0.to_le_bytes());
        bytes.extend_from_slice(&self.version.to_le_bytes());
        push_count(&mut bytes, self.tensors.len());
        for ManifestTensor { name, uuid, base: (version, record), deltas } in &self.tensors {
            push_list(&mut bytes, name.as_bytes());
            bytes.extend_from_slice(uuid.as_bytes());
            bytes.extend_from_slice(&version.to_le_bytes());
            push_list(&mut bytes, &record.to_bytes());
            push_count(&mut bytes, deltas.len());
            for delta in deltas {
                bytes.extend_from_slice(&delta.first.to_le_bytes());
                bytes.extend_from_slice(&delta.version.to_le_bytes());
                push_list(&mut bytes, &delta.record.to_bytes());
            }
        }
        push_count(&mut bytes, self.commits.len());
        for commit in &self.commits {
            bytes.extend_from_slice(&commit.number.to_le_bytes());
            bytes.extend_from_slice(&commit.commit.to_bytes());
        }
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        bytes
    }

    /// Reads a manifest; fails with what is wrong with it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let (body, checksum) = bytes
            .split_last_chunk::<CHECKSUM_BYTES>()
            .ok_or_else(|| format!("expected a manifest, found {} bytes", bytes.len()))?;
        if blake3::hash(body).as_bytes() != checksum {
            return Err("its checksum is another than that of its bytes".to_owned());
        }
        let mut fields = Fields(body);
        let magic = fields.take::<8>()?;
        if magic != *MAGIC && magic != *MAGIC_WITHOUT_UUIDS {
            let reason = "it is no manifest of this release; bring both servers to the same one";
            return Err(reason.to_owned());
        }
        let graph = Uuid::from_bytes(fields.take()?);
        let part = PartId(u16::from_le_bytes(fields.take()?));
        let version = fields.u32()?;
        let n_tensors = fields.count()?;
        let mut tensors = Vec::new();
        for _ in 0..n_tensors {
            let name = fields.list()?;
            let name = std::str::from_utf8(name).map_err(|_| "a name is not UTF-8")?.to_owned();
            let uuid = match magic == *MAGIC {
                true => Uuid::from_bytes(fields.take()?),
                false => Uuid::nil(),
            };
            let base = (fields.u32()?, SegmentRecord::from_bytes(fields.list()?)?);
            let (n_deltas, mut deltas, mut newest) = (fields.count()?, Vec::new(), base.0);
            for _ in 0..n_deltas {
                let (first, of) = (fields.u32()?, fields.u32()?);
                let record = SegmentRecord::from_bytes(fields.list()?)?;
                if first <= newest || of < first {
                    return Err(format!(
                        "a delta of `{name}` for versions {first} to {of} over version {newest}"
                    ));
                }
                newest = of;
                deltas.push(DeltaRecord { first, version: of, record });
            }
            if newest > version {
                return Err(format!("rows of `{name}` of version {newest} in version {version}"));
            }
            tensors.push(ManifestTensor { name, uuid, base, deltas });
        }
        let commits = take_commits(&mut fields, version)?;
        if !fields.0.is_empty() {
            return Err(format!("{} bytes too many", fields.0.len()));
        }
        let mut names = BTreeSet::new();
        for tensor in &tensors {
            tensor.check_files()?;
            if !names.insert(&tensor.name) {
                return Err(format!("it lists tensor `{}` twice", tensor.name));
            }
        }
        Ok(Self { graph, part, version, tensors, commits })
    }
}

impl ManifestTensor {
    /// Returns whether it is of the tensor with this name and identity.
    pub(crate) fn is_of(&self, name: &str, uuid: Uuid) -> bool {
        let is_known = !self.uuid.is_nil() && !uuid.is_nil();
        self.name == name && (!is_known || self.uuid == uuid)
    }

    /// Fails for a file whose name is not that of its tensor and versions. It might be the name of
    /// another file in the folder of the partition.
    fn check_files(&self) -> Result<(), String> {
        let (version, base) = &self.base;
        let base = (segment_file(&self.name, *version), base);
        let of_delta = |it: &DeltaRecord| delta_file(&self.name, it.first, it.version);
        let deltas = self.deltas.iter().map(|it| (of_delta(it), &it.record));
        for (expected, record) in std::iter::once(base).chain(deltas) {
            if record.file != expected {
                let (found, tensor) = (&record.file, &self.name);
                return Err(format!("a file of `{tensor}` is {found:?}, expected {expected:?}"));
            }
        }
        Ok(())
    }
}

fn push_count(bytes: &mut Vec<u8>, n: usize) {
    let n = u16::try_from(n).expect("a graph has fewer tensors, and a tensor fewer layers");
    bytes.extend_from_slice(&n.to_le_bytes());
}

fn push_list(bytes: &mut Vec<u8>, list: &[u8]) {
    push_count(bytes, list.len());
    bytes.extend_from_slice(list);
}

/// Reads commits of versions up to `version`.
fn take_commits(fields: &mut Fields<'_>, version: u32) -> Result<Vec<VersionId>, String> {
    let n_commits = fields.count()?;
    let mut commits = Vec::<VersionId>::new();
    for _ in 0..n_commits {
        let number = fields.u32()?;
        let commit = VersionId::new(number, CommitId::from_bytes(fields.take()?));
        let after = commits.last().map_or(0, |before| before.number);
        if commit.number <= after || commit.number > version {
            let found = commit.number;
            return Err(format!(
                "a commit of version {found} after one of {after} in version {version}"
            ));
        }
        commits.push(commit);
    }
    Ok(commits)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn record(file: &str) -> SegmentRecord {
        let (segment, digest) = (Uuid::from_bytes([4; 16]), [9; 32]);
        SegmentRecord { segment, n_rows: 7, row_bytes: 12, digest, file: file.to_owned() }
    }

    pub(crate) fn manifest() -> Manifest {
        let delta = |first, version, file| DeltaRecord { first, version, record: record(file) };
        let deltas = vec![delta(2, 2, "feat.v2.delta"), delta(3, 6, "feat.v3-6.delta")];
        let tensor = |name: &str, deltas| ManifestTensor {
            name: name.to_owned(),
            uuid: Uuid::from_bytes([3; 16]),
            base: (1, record(&format!("{name}.v1.seg"))),
            deltas,
        };
        let tensors = vec![tensor("feat", deltas), tensor("label", Vec::new())];
        let commit = |number| VersionId::new(number, CommitId::from_bytes([number as u8; 16]));
        let (graph, commits) = (Uuid::from_bytes([7; 16]), vec![commit(7), commit(8)]);
        Manifest { graph, part: PartId(3), version: 8, tensors, commits }
    }

    #[test]
    fn manifests_come_out_as_they_went_in_and_every_other_byte_is_refused() {
        let whole = manifest();
        let bytes = whole.to_bytes();
        assert_eq!(Manifest::from_bytes(&bytes), Ok(whole.clone()));
        let files: Vec<&str> = whole.files().collect();
        assert_eq!(files, ["feat.v1.seg", "feat.v2.delta", "feat.v3-6.delta", "label.v1.seg"]);
        for at in 0..bytes.len() {
            assert!(Manifest::from_bytes(&bytes[..at]).is_err());
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Manifest::from_bytes(&changed).is_err(), "byte {at}");
        }
    }

    fn refused(change: fn(&mut Manifest)) -> String {
        let mut wrong = manifest();
        change(&mut wrong);
        Manifest::from_bytes(&wrong.to_bytes()).unwrap_err()
    }

    #[test]
    fn a_history_is_known_by_the_commit_of_the_earlier_version() {
        let at_8 = manifest();
        assert_eq!(at_8.succession(&at_8), Succession::Same);
        let commit = |number, id| VersionId::new(number, CommitId::from_bytes([id; 16]));
        let with = |version, commits| Manifest { version, commits, ..manifest() };
        let at_9 = with(9, vec![commit(8, 8), commit(9, 9)]);
        assert_eq!(at_9.succession(&at_8), Succession::Later);
        assert_eq!(at_8.succession(&at_9), Succession::Earlier);
        let other_8 = with(8, vec![commit(7, 7), commit(8, 1)]);
        assert_eq!(other_8.succession(&at_8), Succession::Apart);
        assert_eq!(other_8.succession(&at_9), Succession::Apart);
        let at_20 = with(20, vec![commit(19, 19), commit(20, 20)]);
        assert_eq!(at_20.succession(&at_8), Succession::Apart, "its commits were lost");
        let many = (9..9 + COMMITS_LISTED).map(|version| commit(version, 7)).collect();
        let long_after = with(8 + COMMITS_LISTED, many);
        assert_eq!(long_after.succession(&at_8), Succession::Unknown, "too long ago");
        assert_eq!(at_8.succession(&long_after), Succession::Unknown);
        assert_eq!(long_after.succession(&at_9), Succession::Apart, "another commit of 9");
        let imported = with(1, Vec::new());
        assert_eq!(at_8.succession(&imported), Succession::Later);
        assert_eq!(imported.succession(&imported), Succession::Same);
        assert_eq!(with(8, Vec::new()).succession(&at_8), Succession::Apart);
        let other_graph = Manifest { graph: Uuid::nil(), ..manifest() };
        assert_eq!(other_graph.succession(&at_8), Succession::Apart);
        assert!(at_8.has_tensors_of(&at_9));
        assert!(at_8.file_id("feat.v2.delta").is_some() && at_8.file_id("halo.bin").is_none());
    }

    /// Each would be written over, or read as, another file of the partition.
    #[test]
    fn files_that_are_not_named_by_tensor_and_versions_are_refused() {
        let halo = refused(|it| it.tensors[0].base.1.file = "halo.bin".to_owned());
        assert!(halo.contains("\"halo.bin\", expected \"feat.v1.seg\""), "{halo}");
        let other = refused(|it| it.tensors[1].base.1.file = "feat.v1.seg".to_owned());
        assert!(other.contains("expected \"label.v1.seg\""), "{other}");
        let delta = refused(|it| it.tensors[0].deltas[1].record.file = "feat.v3.delta".to_owned());
        assert!(delta.contains("expected \"feat.v3-6.delta\""), "{delta}");
        let twice = refused(|it| it.tensors[1] = it.tensors[0].clone());
        assert!(twice.contains("lists tensor `feat` twice"), "{twice}");
    }

    #[test]
    fn layers_that_overlap_or_are_of_later_versions_are_refused() {
        assert!(refused(|it| it.version = 5).contains("version 6 in version 5"));
        assert!(refused(|it| it.tensors[0].deltas[1].first = 2).contains("over version 2"));
        let backwards = refused(|it| it.tensors[0].deltas[1].version = 2);
        assert!(backwards.contains("versions 3 to 2"), "{backwards}");
        assert!(refused(|it| it.tensors[0].base.0 = 2).contains("over version 2"));
        let late = refused(|it| it.commits[1].number = 9);
        assert!(late.contains("version 9 after one of 7 in version 8"), "{late}");
        assert!(refused(|it| it.commits[1].number = 7).contains("version 7 after one of 7"));
        let leads_out = refused(|it| it.tensors[1].base.1.file = "../x".to_owned());
        assert!(leads_out.contains("plain file name"), "{leads_out}");
    }
}
