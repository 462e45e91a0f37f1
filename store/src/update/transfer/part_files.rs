//! The files of a partition's newest version, for followers and moves: open and pinned across later
//! commits and compactions.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::PartId;

use super::super::{GraphHandle, GraphVersion, Layer, PartHandle, TensorHandle, TensorVersion};
use crate::catalog::{DeltaRecord, SegmentRecord};
use crate::error::StoreError;
use crate::file_system::FileReader;
use crate::follow::{Manifest, ManifestTensor};
use crate::graph::{Graph, META_FILE};
use crate::layout::DATA_OFFSET;
use crate::limits::PAGE_BYTES;

/// Attempts to read a partition while a commit switches its tensors one by one.
const LOOKS_MAX: usize = 100;

/// The files of a partition at a version; holding this keeps them.
#[derive(Debug)]
pub struct PartFiles {
    manifest: Manifest,
    files: Vec<OpenFile>,
    /// Pins of the files.
    layers: Vec<Arc<Layer>>,
}

/// An open file, which stays readable when a compaction removes it.
#[derive(Debug)]
struct OpenFile {
    name: String,
    path: PathBuf,
    n_bytes: u64,
    file: Box<dyn FileReader>,
}

impl GraphHandle {
    /// Returns the committed version of a partition with its files, which include `graph.toml` and
    /// the lists of edges.
    pub fn part_files(&self, part: PartId) -> Result<PartFiles, StoreError> {
        let open = self.open_part(part)?;
        let (version, tensors) = one_version(&open)?;
        self.files_of(&open, version, &tensors)
    }

    /// Like [`GraphHandle::part_files`], for a pinned version.
    ///
    /// Fails with [`StoreError::NoVersion`] for a partition that was opened after the pin.
    pub fn part_files_at(
        &self,
        part: PartId,
        pinned: &GraphVersion,
    ) -> Result<PartFiles, StoreError> {
        let (open, version) = (self.open_part(part)?, pinned.version());
        let mut tensors = Vec::new();
        for (position, tensor) in open.tensors.iter().enumerate() {
            if tensor.is_dropped() {
                continue;
            }
            let at = pinned.tensor(part, position).ok_or_else(|| self.no_version(version))?;
            tensors.push((Arc::clone(tensor), Arc::clone(at)));
        }
        self.files_of(&open, version, &tensors)
    }

    fn files_of(
        &self,
        open: &PartHandle,
        version: u32,
        tensors: &[TensorAt],
    ) -> Result<PartFiles, StoreError> {
        let part = open.part;
        let mut files = open_lists(&self.graph, part)?;
        let mut layers = Vec::new();
        for (_, tensor) in tensors {
            for layer in tensor.layers() {
                let path = layer.segment().path().to_owned();
                files.push(open_file(&self.graph, path)?);
                layers.push(Arc::clone(layer));
            }
        }
        let tensors = tensors.iter().map(|(of, tensor)| manifest_of(of, tensor)).collect();
        let commits = open.catalog.commits(version)?;
        let manifest = Manifest { graph: self.graph.uuid(), part, version, tensors, commits };
        Ok(PartFiles { manifest, files, layers })
    }
}

impl PartFiles {
    /// Returns the manifest, which lists the files of rows.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns names and sizes in bytes of all files; `graph.toml` is the first.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.files.iter().map(|file| (file.name.as_str(), file.n_bytes))
    }

    /// Verifies the pages of rows in `bytes`, which are those of file `at` from `offset` on, a
    /// multiple of the page size. A page that `bytes` ends within is not verified.
    pub fn check(&self, at: usize, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let Some(file) = self.files.get(at) else { return Ok(()) };
        let segment = self.layers.iter().map(|layer| layer.segment());
        let Some(segment) = segment.into_iter().find(|it| it.path() == file.path) else {
            return Ok(());
        };
        let n_pages = segment.layout().n_pages();
        let pages = bytes.as_chunks::<{ PAGE_BYTES as usize }>().0;
        for (place, page) in (offset / PAGE_BYTES..).zip(pages) {
            // The first page of a file is its header.
            let number = place.checked_sub(DATA_OFFSET / PAGE_BYTES);
            if let Some(number) = number.filter(|number| *number < n_pages) {
                segment.check_page(number, page)?;
            }
        }
        Ok(())
    }

    /// Appends bytes of file `at` from `offset` on to `out`, at most `limit`; returns `true` at the
    /// end of the file.
    pub fn read(
        &self,
        at: usize,
        offset: u64,
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        let Some(file) = self.files.get(at) else {
            let reason = format!("no file {at}, the partition has {}", self.files.len());
            return Err(StoreError::FollowRefused { part: self.manifest.part(), reason });
        };
        let left = file.n_bytes.saturating_sub(offset);
        let n_bytes = usize::try_from(left).unwrap_or(limit).min(limit);
        let start = out.len();
        out.resize(start + n_bytes, 0);
        let read = file.file.read_exact_at(&mut out[start..], offset);
        read.map_err(StoreError::io(&file.path, "read"))?;
        Ok(n_bytes as u64 == left)
    }
}

type TensorAt = (Arc<TensorHandle>, Arc<TensorVersion>);

/// Returns the tensors of a partition at the partition's version.
fn one_version(part: &PartHandle) -> Result<(u32, Vec<TensorAt>), StoreError> {
    for _ in 0..LOOKS_MAX {
        let version = part.version();
        let tensors = part.listed().map(|it| Some((Arc::clone(it), it.at(version)?)));
        if let Some(tensors) = tensors.collect::<Option<Vec<_>>>() {
            return Ok((version, tensors));
        }
        std::thread::yield_now();
    }
    Err(super::busy(part.part, "commits follow each other too fast to read one version"))
}

fn manifest_of(of: &TensorHandle, tensor: &TensorVersion) -> ManifestTensor {
    let record = |layer: &Layer| {
        let segment = layer.segment();
        let file = segment.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        SegmentRecord::new(segment.identity(), *segment.digest(), file)
    };
    let base = tensor.base();
    let delta = |layer: &Arc<Layer>| DeltaRecord {
        first: layer.first_version(),
        version: layer.version(),
        record: record(layer),
    };
    ManifestTensor {
        name: of.spec().name.clone(),
        uuid: of.uuid(),
        base: (base.version(), record(base)),
        deltas: tensor.layers()[1..].iter().map(delta).collect(),
    }
}

/// Opens the description of the graph, and the lists of edges of a partition.
fn open_lists(graph: &Graph, part: PartId) -> Result<Vec<OpenFile>, StoreError> {
    let lists = [graph.topology_path(part), graph.halo_path(part)];
    let lists = lists.into_iter().filter(|path| graph.file_system().exists(path));
    let paths = std::iter::once(graph.dir().join(META_FILE)).chain(lists);
    paths.map(|path| open_file(graph, path)).collect()
}

fn open_file(graph: &Graph, path: PathBuf) -> Result<OpenFile, StoreError> {
    let open = |path: &Path| {
        let file = graph.file_system().open(path)?;
        Ok((file.len_bytes()?, file))
    };
    let (n_bytes, file) = open(&path).map_err(StoreError::io(&path, "open"))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(OpenFile { name, path, n_bytes, file })
}
