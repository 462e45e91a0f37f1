//! A stored graph: a folder with `graph.toml` and self-contained partitions.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::{PartId, PartitionBook};
use uuid::Uuid;

use crate::catalog::{Catalog, SegmentRecord};
use crate::device::{Device, Disk};
use crate::error::StoreError;
use crate::limits::MAX_META_BYTES;
use crate::meta::{GraphMeta, MetaError};
use crate::reader::MappedReader;
use crate::segment::{Segment, SegmentIdentity};
use crate::tensor::TensorSpec;

/// Name of the file that makes a folder a graph.
pub const META_FILE: &str = "graph.toml";

/// An open graph; partitions are looked at when they are asked for, so that a machine may hold
/// only some of them.
#[derive(Clone, Debug)]
pub struct Graph {
    device: Arc<dyn Device>,
    dir: PathBuf,
    meta: GraphMeta,
    book: PartitionBook,
}

impl Graph {
    /// Reads and checks `graph.toml` in `dir`.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_on(Arc::new(Disk), dir)
    }

    /// As [`Graph::open`], on any device.
    pub fn open_on(device: Arc<dyn Device>, dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(META_FILE);
        let text = read_meta(&*device, &path).map_err(StoreError::io(&path, "read"))?;
        // What is not UTF-8 changes here, and the checksum tells.
        let parsed = GraphMeta::parse(&String::from_utf8_lossy(&text));
        let (meta, book) = parsed.map_err(|source| match source {
            MetaError::Newer { found } => StoreError::NewerFormat {
                file: path,
                found,
                supported: crate::meta::GRAPH_FORMAT_VERSION,
            },
            source => StoreError::Meta { file: path, source },
        })?;
        Ok(Self { device, dir: dir.to_owned(), meta, book })
    }

    /// What `graph.toml` says.
    #[must_use]
    pub fn meta(&self) -> &GraphMeta {
        &self.meta
    }

    /// Identity of the graph.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.meta.uuid
    }

    /// Which partition owns which node.
    #[must_use]
    pub fn book(&self) -> &PartitionBook {
        &self.book
    }

    /// Where the graph's files live.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Folder of the graph.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Folder of a partition; it need not exist on this machine.
    #[must_use]
    pub fn part_dir(&self, part: PartId) -> PathBuf {
        part_dir(&self.dir, part)
    }

    /// In-neighbours of the nodes of a partition.
    #[must_use]
    pub fn topology_path(&self, part: PartId) -> PathBuf {
        topology_path(&self.part_dir(part))
    }

    /// Halo of a partition.
    #[must_use]
    pub fn halo_path(&self, part: PartId) -> PathBuf {
        halo_path(&self.part_dir(part))
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Result<&TensorSpec, StoreError> {
        self.meta.tensor(name).ok_or_else(|| {
            let known: Vec<&str> = self.meta.tensors.iter().map(|t| t.name.as_str()).collect();
            StoreError::NoTensor { tensor: name.to_owned(), known: known.join(", ") }
        })
    }

    /// Opens the catalog of a partition for reading.
    pub fn catalog(&self, part: PartId) -> Result<Catalog, StoreError> {
        if part.0 >= self.book.n_parts() {
            let opened = format!("0 to {}", self.book.n_parts() - 1);
            return Err(StoreError::NoPart { part, opened });
        }
        let dir = catalog_dir(&self.part_dir(part));
        Catalog::open_read_only(&*self.device, &dir, self.meta.uuid, part)
    }

    /// Opens the current segment of `tensor` in a partition and checks all of it but its rows.
    pub fn segment(&self, part: PartId, tensor: &str) -> Result<Segment, StoreError> {
        let catalog = self.catalog(part)?;
        self.segment_of(&catalog, part, self.tensor(tensor)?)
    }

    /// Opens a mapped reader of the current segment of `tensor` in a partition.
    pub fn reader(&self, part: PartId, tensor: &str) -> Result<MappedReader, StoreError> {
        MappedReader::open(self.segment(part, tensor)?)
    }

    /// As [`Graph::segment`], with the partition's catalog already open.
    pub(crate) fn segment_of(
        &self,
        catalog: &Catalog,
        part: PartId,
        tensor: &TensorSpec,
    ) -> Result<Segment, StoreError> {
        let version = catalog.current_version()?;
        let record =
            catalog.segment(&tensor.name, version)?.ok_or_else(|| StoreError::Catalog {
                dir: self.part_dir(part),
                reason: format!("no segment of `{}` at version {version}", tensor.name),
            })?;
        let range = self.book.range(part);
        let identity = SegmentIdentity {
            graph: self.meta.uuid,
            segment: record.segment,
            part,
            version,
            tensor: tensor.clone(),
            n_rows: range.end - range.start,
        };
        let segment =
            Segment::open(&*self.device, &self.part_dir(part).join(&record.file), &identity)?;
        check_digest(&segment, &record)?;
        Ok(segment)
    }
}

/// The bytes of a `graph.toml`; a longer file than any of ours is cut, and its checksum tells.
fn read_meta(device: &dyn Device, path: &Path) -> io::Result<Vec<u8>> {
    let file = device.open(path)?;
    let mut text = vec![0; file.len_bytes()?.min(MAX_META_BYTES) as usize];
    file.read_exact_at(&mut text, 0)?;
    Ok(text)
}

/// A table of checksums that agrees with itself may still be an old one.
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

/// Name of the file of a tensor at a version.
pub(crate) fn segment_file(tensor: &str, version: u32) -> String {
    format!("{tensor}.v{version}.seg")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use lodestore_graph::NodeId;

    use super::*;
    use crate::codec::SegmentCodec;
    use crate::device::Disk;
    use crate::embedded::EmbeddedStore;
    use crate::fixture::{Ring, WIDTH, files};
    use crate::inspect::inspect;
    use crate::segment::SegmentWriter;

    #[test]
    fn reading_a_graph_changes_no_file() {
        let ring = Ring::new(100, 2, 2);
        let graph = ring.import();
        let before = files(&ring.out());
        let store = EmbeddedStore::of(graph.clone(), None).unwrap();
        store.gather("feat", &[NodeId(3)], &mut [0; WIDTH]).unwrap();
        assert!(ring.verify().ok);
        inspect(&graph).unwrap();
        assert_eq!(files(&ring.out()), before);
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
