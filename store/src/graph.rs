//! A stored graph: a folder with `graph.toml` and self-contained partitions.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lodestore_graph::halo::{Halo, HaloError};
use lodestore_graph::topology::{Topology, TopologyError};
use lodestore_graph::{PartId, PartitionBook};
use uuid::Uuid;

use crate::catalog::{Catalog, DeltaRecord, SegmentRecord};
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::file_system::{Disk, FileSystem};
use crate::limits::MAX_META_BYTES;
use crate::meta::{GraphMeta, MetaError};
use crate::sealed_text::read_text;
use crate::segment::{Segment, SegmentIdentity, identity_of};
use crate::tensor::TensorSpec;

/// Name of the file that makes a folder a graph.
pub const META_FILE: &str = "graph.toml";

/// Folder in a graph's where servers remember which rows were resident; nothing depends on it.
pub const HOT_ROWS_DIR: &str = "hot-rows";

/// Suffix of a segment's name while it is being written.
pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";

/// Fresh looks at a catalog for a segment that a compaction moves.
const MAX_ATTEMPTS: usize = 8;
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// An open graph; partitions are looked at when they are asked for, so that a machine may hold
/// only some of them.
#[derive(Clone, Debug)]
pub struct Graph {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    meta: GraphMeta,
    book: PartitionBook,
}

impl Graph {
    /// Reads and checks `graph.toml` in `dir`.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_on(Arc::new(Disk), dir)
    }

    /// Like [`Graph::open`], on any file system.
    pub fn open_on(fs: Arc<dyn FileSystem>, dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(META_FILE);
        let text = read_text(&*fs, &path, MAX_META_BYTES);
        let text = text.map_err(StoreError::io(&path, "read"))?;
        let (meta, book) = GraphMeta::parse(&text).map_err(|source| match source {
            MetaError::Newer { found } => StoreError::NewerFormat {
                file: path,
                found,
                supported: crate::meta::GRAPH_FORMAT_VERSION,
            },
            source => StoreError::Meta { file: path, source },
        })?;
        Ok(Self { fs, dir: dir.to_owned(), meta, book })
    }

    /// Returns a graph whose description comes from elsewhere than its `graph.toml`.
    pub(crate) fn of(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        meta: GraphMeta,
        book: PartitionBook,
    ) -> Self {
        Self { fs, dir: dir.to_owned(), meta, book }
    }

    /// Returns what `graph.toml` says.
    #[must_use]
    pub fn meta(&self) -> &GraphMeta {
        &self.meta
    }

    /// Returns the identity of the graph.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.meta.uuid
    }

    /// Returns which partition owns which node.
    #[must_use]
    pub fn book(&self) -> &PartitionBook {
        &self.book
    }

    /// Returns where the graph's files live.
    #[must_use]
    pub fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// Returns the folder of the graph.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the folder of a partition; it need not exist on this machine.
    #[must_use]
    pub fn part_dir(&self, part: PartId) -> PathBuf {
        part_dir(&self.dir, part)
    }

    /// Returns the partitions whose folders are on this machine, ascending.
    #[must_use]
    pub fn local_parts(&self) -> Vec<PartId> {
        self.book.parts().filter(|&part| self.fs.exists(&self.part_dir(part))).collect()
    }

    /// Fails with [`StoreError::NoPart`] for a partition that the graph does not have.
    pub(crate) fn check_part(&self, part: PartId) -> Result<(), StoreError> {
        if part.0 < self.book.n_parts() {
            return Ok(());
        }
        let opened = format!("0 to {}", self.book.n_parts() - 1);
        Err(StoreError::NoPart { part, opened })
    }

    /// In-neighbours of the nodes of a partition.
    #[must_use]
    pub fn topology_path(&self, part: PartId) -> PathBuf {
        topology_path(&self.part_dir(part))
    }

    /// Returns the halo of a partition.
    #[must_use]
    pub fn halo_path(&self, part: PartId) -> PathBuf {
        halo_path(&self.part_dir(part))
    }

    /// Returns the tensor called `name`.
    pub fn tensor(&self, name: &str) -> Result<&TensorSpec, StoreError> {
        self.meta.tensor(name).ok_or_else(|| {
            let known: Vec<&str> = self.meta.tensors.iter().map(|t| t.name.as_str()).collect();
            StoreError::NoTensor { tensor: name.to_owned(), known: known.join(", ") }
        })
    }

    /// Returns the position of the tensor called `name` in the graph's description.
    pub(crate) fn tensor_position(&self, name: &str) -> Result<usize, StoreError> {
        let position = self.meta.tensors.iter().position(|tensor| tensor.name == name);
        position.map_or_else(|| self.tensor(name).map(|_| 0), Ok)
    }

    /// Opens the topology of all partitions.
    pub fn open_topology(&self) -> Result<Topology, TopologyError> {
        let paths: Vec<PathBuf> =
            self.book().parts().map(|part| self.topology_path(part)).collect();
        Topology::open(&paths, self.book(), *self.uuid().as_bytes())
    }

    /// Opens the halo of a partition.
    pub fn open_halo(&self, part: PartId) -> Result<Halo, HaloError> {
        Halo::open(&self.halo_path(part), self.book(), part, *self.uuid().as_bytes())
    }

    /// Returns the overlap ratio R(v) of each node (CaPGNN, Eq. 2): the number of halos that it is
    /// in.
    pub fn overlap_ratios(&self) -> Result<Vec<u16>, HaloError> {
        let mut ratios = vec![0; self.book().n_nodes() as usize];
        for part in self.book().parts() {
            let halo = self.open_halo(part)?;
            for (id, ratio) in halo.ids.iter().zip(halo.overlap) {
                ratios[id.index()] = ratio;
            }
        }
        Ok(ratios)
    }

    /// Opens the catalog of a partition for reading.
    pub fn catalog(&self, part: PartId) -> Result<Catalog, StoreError> {
        let dir = self.catalog_dir(part)?;
        Catalog::open_read_only(&*self.fs, &dir, self.meta.uuid, part)
    }

    /// Opens the catalog of a partition for writing, by one process at a time.
    pub(crate) fn catalog_for_writing(&self, part: PartId) -> Result<Catalog, StoreError> {
        let dir = self.catalog_dir(part)?;
        Catalog::open_for_writing(&*self.fs, &dir, self.meta.uuid, part)
    }

    /// Opens the segment under `tensor` in a partition and checks all of it but its rows.
    ///
    /// Rows that were committed since are in deltas: see
    /// [`GraphHandle`](crate::update::GraphHandle).
    pub fn segment(&self, part: PartId, tensor: &str) -> Result<Segment, StoreError> {
        let tensor = self.tensor(tensor)?;
        self.with_catalog(part, |catalog| self.segment_of(&catalog, part, tensor))
    }

    /// Calls `read` with the catalog of a partition, and again with a fresh one if a file is gone
    /// that it names. A compaction in another process has then replaced the file.
    pub(crate) fn with_catalog<T>(
        &self,
        part: PartId,
        read: impl Fn(Catalog) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        for _ in 1..MAX_ATTEMPTS {
            match self.catalog(part).and_then(&read) {
                Err(error) if error.is_gone() && self.fs.waits() => thread::sleep(RETRY_PAUSE),
                Err(error) if error.is_gone() => {}
                done => return done,
            }
        }
        self.catalog(part).and_then(&read)
    }

    /// Returns the segment under `tensor` at the partition's committed version.
    pub(crate) fn segment_of(
        &self,
        catalog: &Catalog,
        part: PartId,
        tensor: &TensorSpec,
    ) -> Result<Segment, StoreError> {
        let committed = catalog.current_version()?;
        let (version, record) = self.segment_record(catalog, part, tensor, committed)?;
        self.open_base(part, tensor, version, &record)
    }

    /// Returns the record of the segment under `tensor` at `version`, with its version.
    pub(crate) fn segment_record(
        &self,
        catalog: &Catalog,
        part: PartId,
        tensor: &TensorSpec,
        version: u32,
    ) -> Result<(u32, SegmentRecord), StoreError> {
        let found = catalog.segment(&tensor.name, version)?;
        found.ok_or_else(|| StoreError::Catalog {
            dir: self.part_dir(part),
            reason: format!("no segment of `{}` up to version {version}", tensor.name),
            origin: ErrorOrigin::Damage,
        })
    }

    /// Opens a segment with every row of a partition, and pins it for as long as it is open.
    pub(crate) fn open_base(
        &self,
        part: PartId,
        tensor: &TensorSpec,
        version: u32,
        record: &SegmentRecord,
    ) -> Result<Segment, StoreError> {
        self.open_file(&self.segment_identity(part, tensor, version, record.segment), record)
    }

    /// Opens a delta that the catalog names, and pins it for as long as it is open.
    pub(crate) fn open_delta(
        &self,
        part: PartId,
        tensor: &TensorSpec,
        delta: &DeltaRecord,
    ) -> Result<Segment, StoreError> {
        self.open_file(&self.delta_identity(part, tensor, delta), &delta.record)
    }

    /// Opens a file of a partition that no record may name, as it describes itself; `None` unless
    /// it says that it is the segment or delta of `tensor` whose newest version, by its name, is
    /// `version`.
    pub(crate) fn open_as_named(
        &self,
        part: PartId,
        tensor: &TensorSpec,
        file: &str,
        version: u32,
    ) -> Result<Option<Segment>, StoreError> {
        let path = self.part_dir(part).join(file);
        let reader = self.fs.open(&path).map_err(StoreError::io(&path, "open"))?;
        let Some(found) = identity_of(&*reader) else { return Ok(None) };
        let mut expected = self.segment_identity(part, tensor, version, found.segment);
        if file.ends_with(".delta") {
            expected.delta_of = Some(expected.n_rows);
            expected.n_rows = found.n_rows;
        }
        Segment::open(&*self.fs, &path, &expected).map(Some)
    }

    fn open_file(
        &self,
        identity: &SegmentIdentity,
        record: &SegmentRecord,
    ) -> Result<Segment, StoreError> {
        let path = self.part_dir(identity.part).join(&record.file);
        let segment = open_pinned(&*self.fs, &path, identity)?;
        check_digest(&segment, record)?;
        Ok(segment)
    }

    /// Returns the properties of a segment with every row of a partition.
    pub(crate) fn segment_identity(
        &self,
        part: PartId,
        tensor: &TensorSpec,
        version: u32,
        segment: Uuid,
    ) -> SegmentIdentity {
        let range = self.book.range(part);
        SegmentIdentity {
            graph: self.meta.uuid,
            segment,
            part,
            version,
            tensor: tensor.clone(),
            n_rows: range.end - range.start,
            delta_of: None,
        }
    }

    /// Returns the properties of a delta of a partition.
    pub(crate) fn delta_identity(
        &self,
        part: PartId,
        tensor: &TensorSpec,
        delta: &DeltaRecord,
    ) -> SegmentIdentity {
        let whole = self.segment_identity(part, tensor, delta.version, delta.record.segment);
        SegmentIdentity { n_rows: delta.record.n_rows, delta_of: Some(whole.n_rows), ..whole }
    }

    fn catalog_dir(&self, part: PartId) -> Result<PathBuf, StoreError> {
        self.check_part(part)?;
        Ok(catalog_dir(&self.part_dir(part)))
    }
}

/// Opens a segment and pins it. It is gone, with [`io::ErrorKind::NotFound`] or
/// [`io::ErrorKind::WouldBlock`], if it was removed or is about to be.
pub(crate) fn open_pinned(
    fs: &dyn FileSystem,
    path: &Path,
    identity: &SegmentIdentity,
) -> Result<Segment, StoreError> {
    let segment = Segment::open(fs, path, identity)?;
    segment.file().pin().map_err(StoreError::io(path, "pin"))?;
    if !fs.exists(path) {
        return Err(StoreError::io(path, "pin")(io::ErrorKind::NotFound.into()));
    }
    Ok(segment)
}

/// Checks the digest: a table of checksums that agrees with itself may still be an old one.
pub(crate) fn check_digest(segment: &Segment, record: &SegmentRecord) -> Result<(), StoreError> {
    if *segment.digest() == record.digest {
        return Ok(());
    }
    Err(StoreError::Misplaced {
        file: segment.path().to_owned(),
        field: "digest of the page table",
        expected: blake3::Hash::from(record.digest).to_hex().to_string(),
        found: blake3::Hash::from(*segment.digest()).to_hex().to_string(),
    })
}

pub(crate) fn part_dir(graph_dir: &Path, part: PartId) -> PathBuf {
    graph_dir.join(format!("part-{:03}", part.0))
}

pub(crate) fn topology_path(part_dir: &Path) -> PathBuf {
    part_dir.join("topology.csr")
}

pub(crate) fn halo_path(part_dir: &Path) -> PathBuf {
    part_dir.join("halo.bin")
}

pub(crate) fn catalog_dir(part_dir: &Path) -> PathBuf {
    part_dir.join("catalog")
}

/// Returns the name of the file of a tensor at a version.
pub(crate) fn segment_file(tensor: &str, version: u32) -> String {
    format!("{tensor}.v{version}.seg")
}

/// Returns the version that [`segment_file`] made this name of `tensor` from, if it did.
pub(crate) fn version_of_file(name: &str, tensor: &str) -> Option<u32> {
    let version =
        name.strip_prefix(tensor)?.strip_prefix(".v")?.strip_suffix(".seg")?.parse().ok()?;
    (segment_file(tensor, version) == name).then_some(version)
}

/// Returns the name of the file of a delta with rows of the versions from `first` to `last`.
pub(crate) fn delta_file(tensor: &str, first: u32, last: u32) -> String {
    match first == last {
        true => format!("{tensor}.v{last}.delta"),
        false => format!("{tensor}.v{first}-{last}.delta"),
    }
}

/// Returns the first and last version that [`delta_file`] made this name of `tensor` from, if it
/// did.
pub(crate) fn versions_of_delta(name: &str, tensor: &str) -> Option<(u32, u32)> {
    let versions = name.strip_prefix(tensor)?.strip_prefix(".v")?.strip_suffix(".delta")?;
    let (first, last) = versions.split_once('-').unwrap_or((versions, versions));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (delta_file(tensor, first, last) == name).then_some((first, last))
}

/// Returns the newest version of which a segment or delta of `tensor` with this name has rows, if
/// one of them has this name.
pub(crate) fn newest_version_of(name: &str, tensor: &str) -> Option<u32> {
    version_of_file(name, tensor).or_else(|| Some(versions_of_delta(name, tensor)?.1))
}

/// Returns the tensor that [`segment_file`] or [`delta_file`] made this name of, if one of them
/// did.
pub(crate) fn tensor_of_file(name: &str) -> Option<&str> {
    let (tensor, _) = name.rsplit_once(".v")?;
    let is_named =
        version_of_file(name, tensor).is_some() || versions_of_delta(name, tensor).is_some();
    (!tensor.is_empty() && is_named).then_some(tensor)
}

/// Returns whether [`segment_file`] or [`delta_file`] can have made this name.
pub(crate) fn is_segment_file(name: &str) -> bool {
    tensor_of_file(name).is_some()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use lodestore_graph::NodeId;

    use super::*;
    use crate::codec::SegmentCodec;
    use crate::embedded::EmbeddedStore;
    use crate::file_system::Disk;
    use crate::fixture::{Ring, WIDTH, files};
    use crate::inspect::inspect;
    use crate::segment::SegmentWriter;

    #[test]
    fn reading_a_graph_changes_no_file() {
        let ring = Ring::new(100, 2, 2);
        let graph = ring.import();
        let before = files(&ring.out());
        let store = EmbeddedStore::from_graph(graph.clone(), None).unwrap();
        store.gather("feat", &[NodeId(3)], &mut [0; WIDTH]).unwrap();
        assert!(ring.verify().ok);
        inspect(&graph).unwrap();
        assert_eq!(files(&ring.out()), before);
    }

    #[test]
    fn only_names_of_segments_have_versions() {
        assert_eq!(version_of_file("feat.v12.seg", "feat"), Some(12));
        assert_eq!(version_of_file(&segment_file("a-b", u32::MAX), "a-b"), Some(u32::MAX));
        for name in ["feat.v.seg", "feat.v01.seg", "feat.v+1.seg", "feat.v4294967296.seg"] {
            assert_eq!(version_of_file(name, "feat"), None, "{name}");
        }
        assert_eq!(version_of_file("feat.v1.seg", "fea"), None);
        assert_eq!(version_of_file("feat.v1.seg.tmp", "feat"), None);
        for (first, last) in [(1, 1), (3, 3), (3, 7), (1, u32::MAX)] {
            let name = delta_file("a-b", first, last);
            assert_eq!(versions_of_delta(&name, "a-b"), Some((first, last)), "{name}");
            assert!(is_segment_file(&name), "{name}");
        }
        for name in ["feat.v3-3.delta", "feat.v03.delta", "feat.v3-.delta", "feat.v3.delta.tmp"] {
            assert_eq!(versions_of_delta(name, "feat"), None, "{name}");
        }
    }

    #[test]
    fn an_old_state_of_a_segment_does_not_pass_for_the_new_one() {
        let ring = Ring::new(500, 2, 2);
        let graph = ring.import();
        let path = graph.part_dir(PartId(0)).join("feat.v1.seg");
        let identity = graph.segment(PartId(0), "feat").unwrap().identity().clone();
        fs::remove_file(&path).unwrap();
        let mut writer = SegmentWriter::create(&Disk, &path, &identity, SegmentCodec::Raw).unwrap();
        writer.write_rows(&vec![1; 250 * WIDTH]).unwrap();
        writer.finish().unwrap();
        Segment::open(&Disk, &path, &identity).unwrap();
        let error = graph.segment(PartId(0), "feat").unwrap_err();
        assert!(error.to_string().contains("digest"), "{error}");
    }
}
