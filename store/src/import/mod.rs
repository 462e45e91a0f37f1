//! Import: a graph is built in a staging folder beside its place and appears there whole or not at
//! all.
//!
//! Crash argument: everything is written under `<out>.importing-<uuid>`, and every file and folder
//! of it is synced. One rename moves it to `<out>`, which must not exist, and the parent folder is
//! synced. Before the rename there is no graph, after it there is a whole one. An import that fails
//! removes its staging folder. One that is killed leaves it behind under that name, safe to delete.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::PartId;
use lodestore_graph::relabel::Relabelling;
use lodestore_graph::topology::Direction;
use thiserror::Error;
use uuid::Uuid;

use crate::catalog::{Catalog, SegmentRecord};
use crate::codec::{CodecChoice, SampledTable, SegmentCodec};
use crate::dtype::Dtype;
use crate::embedded::EmbeddedStore;
use crate::error::StoreError;
use crate::file_system::{Disk, FileSystem};
use crate::graph::{self, Graph, META_FILE, check_digest};
use crate::meta::GraphMeta;
use crate::nan::{NanPolicy, first_nan};
use crate::new_file::check_moves;
use crate::plan::DiskProfile;
use crate::segment::{SegmentIdentity, SegmentWriter};
use crate::source::{SourceError, TensorSource, check_source};
use crate::tensor::TensorSpec;
use crate::verify::read_back;

/// The tensor that every graph has: `i64`, width 1, the input's id of each node.
pub const EXTERNAL_ID_TENSOR: &str = "external_id";

/// Version of the segments that an import writes.
const FIRST_VERSION: u32 = 1;

/// Rows are copied from the source in pieces of about this many bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// How the rows of a tensor are imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorOptions {
    /// Treatment of NaN.
    pub nan: NanPolicy,
    /// How to store the rows.
    pub codec: CodecChoice,
}

/// Why a graph could not be imported. Nothing is left behind.
#[derive(Debug, Error)]
pub enum ImportError {
    /// Something is at the place already.
    #[error("{} exists already; an import never overwrites, choose another place", out.display())]
    Exists {
        /// Place asked for.
        out: PathBuf,
    },
    /// A tensor by a name that is taken.
    #[error("tensor `{name}` is there already (`{EXTERNAL_ID_TENSOR}` is always made by import)")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// The input is not as it must be.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The graph could not be written, or did not read back as written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A graph that is being built.
#[derive(Debug)]
pub struct Importer {
    fs: Arc<dyn FileSystem>,
    out: PathBuf,
    staging: PathBuf,
    uuid: Uuid,
    tensors: Vec<TensorSpec>,
    records: Vec<(PartId, SegmentRecord)>,
    committed: bool,
}

impl Importer {
    /// Starts an import to `out`, which must not exist while its parent folder must.
    ///
    /// Fails with [`StoreError::Unsuited`] on a file system where the graph could not be written to.
    pub fn begin(out: &Path) -> Result<Self, ImportError> {
        Self::begin_on(Arc::new(Disk), out)
    }

    /// Like [`Importer::begin`], on any file system.
    pub fn begin_on(fs: Arc<dyn FileSystem>, out: &Path) -> Result<Self, ImportError> {
        if fs.exists(out) {
            return Err(ImportError::Exists { out: out.to_owned() });
        }
        let uuid = Uuid::new_v4();
        let mut name = out.file_name().unwrap_or_default().to_owned();
        name.push(format!(".importing-{uuid}"));
        let staging = out.with_file_name(name);
        fs.create_dir(&staging).map_err(StoreError::io(&staging, "create"))?;
        let (tensors, records) = (Vec::new(), Vec::new());
        let (out, committed) = (out.to_owned(), false);
        let this = Self { fs, out, staging, uuid, tensors, records, committed };
        // What a graph needs once it is written to is tried before hours of work.
        check_moves(&*this.fs, &this.staging)?;
        Ok(this)
    }

    /// Returns the identity of the graph, to be written to its topology and halo files.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the staging folder; gone once the import is committed or given up.
    #[must_use]
    pub fn staging_dir(&self) -> &Path {
        &self.staging
    }

    /// Makes the staged folder of a partition, if it is not there yet.
    pub fn part_dir(&self, part: PartId) -> Result<PathBuf, ImportError> {
        let dir = graph::part_dir(&self.staging, part);
        self.fs.create_dir(&dir).map_err(StoreError::io(&dir, "create"))?;
        Ok(dir)
    }

    /// Returns where the staged topology of a partition goes; the folder is for
    /// [`Importer::part_dir`].
    #[must_use]
    pub fn topology_path(&self, part: PartId) -> PathBuf {
        graph::topology_path(&graph::part_dir(&self.staging, part))
    }

    /// Returns where the staged halo of a partition goes; the folder is for [`Importer::part_dir`].
    #[must_use]
    pub fn halo_path(&self, part: PartId) -> PathBuf {
        graph::halo_path(&graph::part_dir(&self.staging, part))
    }

    /// Writes the rows of `source` as tensor `name`: one segment per partition, synced, read back
    /// and checked. The source's row of a node is its external id in `nodes`.
    ///
    /// Memory: about 3 MiB, and 4 bytes per page of the longest segment. `progress` receives rows
    /// done and rows in all.
    pub fn add_tensor(
        &mut self,
        name: &str,
        source: &dyn TensorSource,
        options: TensorOptions,
        nodes: &Relabelling,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), ImportError> {
        if name == EXTERNAL_ID_TENSOR {
            return Err(ImportError::DuplicateTensor { name: name.to_owned() });
        }
        self.write_tensor(name, source, options, nodes, progress)
    }

    /// Adds [`EXTERNAL_ID_TENSOR`], catalogs and `graph.toml`, syncs everything, and moves the
    /// graph to its place. `edges` counts the stored in-edges.
    pub fn commit(
        mut self,
        nodes: &Relabelling,
        edges: u64,
        direction: Direction,
    ) -> Result<Graph, ImportError> {
        let (book, ids) = (&nodes.book, ExternalIds { external_of: &nodes.external_of });
        // Ids are looked up one by one.
        let options = TensorOptions { nan: NanPolicy::Keep, codec: CodecChoice::Raw };
        self.write_tensor(EXTERNAL_ID_TENSOR, &ids, options, nodes, &mut |_, _| {})?;
        let meta = GraphMeta::new(self.uuid, book, edges, direction, self.tensors.clone());
        for part in book.parts() {
            self.write_catalog(part, &meta)?;
        }
        let meta_path = self.staging.join(META_FILE);
        let written = self.fs.create(&meta_path);
        written
            .and_then(|mut file| file.append(meta.to_text().as_bytes()))
            .map_err(StoreError::io(&meta_path, "write"))?;
        // What readers will do first must work before anybody can see the graph.
        let staged = Graph::open_on(Arc::clone(&self.fs), &self.staging)?;
        for part in book.parts() {
            // One after the other: all of them may be more files than a process may have open.
            EmbeddedStore::from_graph(staged.clone(), Some(&[part]))?;
        }
        sync_tree(&*self.fs, &self.staging)?;
        self.publish()?;
        let (fs, out) = (Arc::clone(&self.fs), self.out.clone());
        Ok(Graph::open_on(fs, &out)?)
    }

    fn write_tensor(
        &mut self,
        name: &str,
        source: &dyn TensorSource,
        options: TensorOptions,
        nodes: &Relabelling,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), ImportError> {
        let Relabelling { book, external_of, .. } = nodes;
        assert_eq!(external_of.len(), book.n_nodes() as usize, "one external id per node");
        if self.tensors.iter().any(|tensor| tensor.name == name) {
            return Err(ImportError::DuplicateTensor { name: name.to_owned() });
        }
        let tensor = check_source(name, source, book.n_nodes())?;
        let (dir, row_bytes) = (parent_of(&self.out), tensor.row_bytes());
        let table = || {
            let disk = DiskProfile::load(&*self.fs, dir);
            SampledTable::new(dir.join(name), book.n_nodes(), row_bytes, disk)
        };
        let codec = options.codec.settle(row_bytes, table, |first, sample| {
            let first = first as usize;
            let rows = &external_of[first..first + sample.len() / row_bytes];
            Ok::<_, ImportError>(source.copy_rows(rows, sample)?)
        })?;
        let total = u64::from(book.n_nodes());
        for part in book.parts() {
            let range = book.range(part);
            let rows = &external_of[range.start as usize..range.end as usize];
            let identity = SegmentIdentity {
                graph: self.uuid,
                segment: Uuid::new_v4(),
                part,
                version: FIRST_VERSION,
                tensor: tensor.clone(),
                n_rows: range.end - range.start,
                delta_of: None,
            };
            let path = self.part_dir(part)?.join(graph::segment_file(name, FIRST_VERSION));
            let mut report = |done: u64| progress(u64::from(range.start) + done, total);
            let rows = SourceRows { source, nan: options.nan, codec, rows };
            let record = write_segment(&*self.fs, &path, &identity, rows, &mut report)?;
            self.records.push((part, record));
        }
        self.tensors.push(tensor);
        Ok(())
    }

    fn write_catalog(&self, part: PartId, meta: &GraphMeta) -> Result<(), ImportError> {
        let dir = graph::catalog_dir(&self.part_dir(part)?);
        let catalog = Catalog::create(&*self.fs, &dir, self.uuid, part, &meta.to_text())?;
        let records = self.records.iter().filter(|(of, _)| *of == part);
        let segments = self.tensors.iter().zip(records);
        let segments = segments.map(|(tensor, (_, record))| (tensor.name.as_str(), record));
        catalog.commit_version(FIRST_VERSION, segments)?;
        catalog.flush()?;
        Ok(())
    }

    /// Moves the staged folder to its place, which must still be free.
    fn publish(&mut self) -> Result<(), ImportError> {
        match self.fs.rename(&self.staging, &self.out) {
            Ok(()) => self.committed = true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(ImportError::Exists { out: self.out.clone() });
            }
            Err(error) => {
                return Err(StoreError::io(&self.out, "move the graph to")(error).into());
            }
        }
        Ok(sync(&*self.fs, parent_of(&self.out))?)
    }
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        if !self.committed
            && let Err(error) = self.fs.remove_dir_all(&self.staging)
        {
            tracing::warn!("cannot remove {}: {error}; delete it", self.staging.display());
        }
    }
}

/// Syncs every file and folder below `dir`, and `dir` itself last.
fn sync_tree(fs: &dyn FileSystem, dir: &Path) -> Result<(), StoreError> {
    for entry in fs.list(dir).map_err(StoreError::io(dir, "list"))? {
        let path = dir.join(&entry.name);
        if entry.is_dir { sync_tree(fs, &path)? } else { sync(fs, &path)? }
    }
    sync(fs, dir)
}

fn sync(fs: &dyn FileSystem, path: &Path) -> Result<(), StoreError> {
    fs.sync(path).map_err(StoreError::io(path, "sync"))
}

/// Rows of a source, by their numbers in it, and how they are imported.
#[derive(Clone, Copy)]
pub(crate) struct SourceRows<'a> {
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) nan: NanPolicy,
    /// One for all partitions of the tensor.
    pub(crate) codec: SegmentCodec,
    pub(crate) rows: &'a [u32],
}

/// Writes rows of a source as the segment `path`; `report` receives the rows done.
pub(crate) fn write_segment(
    fs: &dyn FileSystem,
    path: &Path,
    identity: &SegmentIdentity,
    rows: SourceRows<'_>,
    report: &mut dyn FnMut(u64),
) -> Result<SegmentRecord, ImportError> {
    let SourceRows { source, nan, codec, rows } = rows;
    let row_bytes = identity.tensor.row_bytes();
    let mut writer = SegmentWriter::create(fs, path, identity, codec)?;
    let chunk_rows = (CHUNK_BYTES / row_bytes).max(1);
    let mut buffer = vec![0u8; chunk_rows.min(rows.len()) * row_bytes];
    let mut done = 0;
    for rows in rows.chunks(chunk_rows) {
        let bytes = &mut buffer[..rows.len() * row_bytes];
        source.copy_rows(rows, bytes)?;
        if nan == NanPolicy::Refuse {
            refuse_nan(source, &identity.tensor, rows, bytes)?;
        }
        writer.write_rows(bytes)?;
        done += rows.len() as u64;
        report(done);
    }
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let record = SegmentRecord::new(identity, writer.finish()?, file);
    check_digest(&read_back(fs, path, identity)?, &record)?;
    Ok(record)
}

fn refuse_nan(
    source: &dyn TensorSource,
    tensor: &TensorSpec,
    rows: &[u32],
    bytes: &[u8],
) -> Result<(), SourceError> {
    let Some(element) = first_nan(tensor.dtype, bytes) else { return Ok(()) };
    let width = tensor.width as usize;
    let (row, column) = (rows[element / width], element % width);
    Err(SourceError::Nan { file: source.path().to_owned(), row, column })
}

/// External ids as a source: row `e` holds the number `e`.
struct ExternalIds<'a> {
    external_of: &'a [u32],
}

impl TensorSource for ExternalIds<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::I64
    }

    fn width(&self) -> u64 {
        1
    }

    fn n_rows(&self) -> u64 {
        self.external_of.len() as u64
    }

    fn path(&self) -> &Path {
        Path::new(EXTERNAL_ID_TENSOR)
    }

    fn copy_rows(&self, rows: &[u32], out: &mut [u8]) -> Result<(), SourceError> {
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(8)) {
            out.copy_from_slice(&i64::from(row).to_le_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
