//! A file that a follower fetches: continued where an earlier try was cut off, and believed only when
//! all of it has been read and checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Manifest, ManifestTensor};
use crate::catalog::{DeltaRecord, SegmentRecord};
use crate::device::{Device, FileWriter};
use crate::error::StoreError;
use crate::graph::{Graph, TEMPORARY_SUFFIX, check_digest};
use crate::live::LiveGraph;
use crate::new_file::discard;
use crate::segment::{Segment, SegmentIdentity};
use crate::verify::read_back;

/// A file of a manifest that is coming.
#[derive(Debug)]
pub struct FetchedFile {
    graph: Graph,
    device: Arc<dyn Device>,
    path: PathBuf,
    temporary: PathBuf,
    identity: SegmentIdentity,
    record: SegmentRecord,
    file: Box<dyn FileWriter>,
    n_bytes: u64,
}

impl FetchedFile {
    /// Begins a file of a manifest in the folder of its partition, or continues it; `None` where it
    /// is there as a whole, of `expected` bytes. A file that has its name stays until it is
    /// replaced.
    ///
    /// Fails for a name that the manifest does not have.
    pub fn begin(
        graph: &Graph,
        manifest: &Manifest,
        name: &str,
        expected: u64,
    ) -> Result<Option<Self>, StoreError> {
        let (identity, record) = find(graph, manifest, name)?;
        let device = Arc::clone(graph.device());
        let path = graph.part_dir(manifest.part).join(name);
        if device.exists(&path) {
            // It was checked when it was given its name.
            let open = Segment::open(&*device, &path, &identity);
            if open.and_then(|segment| check_digest(&segment, &record)).is_ok() {
                return Ok(None);
            }
        }
        let mut temporary = path.clone().into_os_string();
        temporary.push(TEMPORARY_SUFFIX);
        let temporary = PathBuf::from(temporary);
        let (file, n_bytes) = open_end(&*device, &temporary, expected)?;
        let graph = graph.clone();
        Ok(Some(Self { graph, device, path, temporary, identity, record, file, n_bytes }))
    }

    /// As [`FetchedFile::begin`], in the folder of `live`. Fails for a manifest that does not follow
    /// what is there: its files may have the names of those that are served.
    pub fn begin_next(
        live: &LiveGraph,
        manifest: &Manifest,
        name: &str,
        expected: u64,
    ) -> Result<Option<Self>, StoreError> {
        live.check_follows(manifest)?;
        Self::begin(live.graph(), manifest, name, expected)
    }

    /// Bytes that have come.
    #[must_use]
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Appends what has come next.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.append(bytes).map_err(StoreError::io(&self.temporary, "write"))?;
        self.n_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Syncs the file, reads and checks all of it, and gives it its name.
    ///
    /// What is damaged or cannot be synced is removed, so that the next try begins with nothing: a
    /// later sync would not say what the system has forgotten.
    pub fn finish(mut self) -> Result<(), StoreError> {
        let synced = self.file.sync().map_err(StoreError::io(&self.temporary, "sync"));
        if let Err(error) = synced.and_then(|()| self.check()) {
            let removed = self.device.remove_file(&self.temporary);
            removed.map_err(StoreError::io(&self.temporary, "remove"))?;
            return Err(error);
        }
        let renamed = self.device.replace(&self.temporary, &self.path);
        renamed.map_err(StoreError::io(&self.path, "rename to"))?;
        let dir = self.graph.part_dir(self.identity.part);
        self.device.sync(&dir).map_err(StoreError::io(&dir, "sync")).inspect_err(|_| {
            // The name may be lost with the power whatever is synced later: it is made again.
            discard(&*self.device, &self.path);
        })
    }

    fn check(&self) -> Result<(), StoreError> {
        check_digest(&read_back(&*self.device, &self.temporary, &self.identity)?, &self.record)
    }
}

/// Opens a file for what comes next; returns how much of it there is.
fn open_end(
    device: &dyn Device,
    path: &Path,
    most: u64,
) -> Result<(Box<dyn FileWriter>, u64), StoreError> {
    if device.exists(path) {
        let len = device.open(path).and_then(|file| file.len_bytes());
        let n_bytes = len.map_err(StoreError::io(path, "read the length of"))?;
        if n_bytes <= most
            && let Ok(file) = device.append(path)
        {
            return Ok((file, n_bytes));
        }
        device.remove_file(path).map_err(StoreError::io(path, "remove"))?;
    }
    Ok((device.create(path).map_err(StoreError::io(path, "create"))?, 0))
}

/// What a file of a manifest must be.
fn find(
    graph: &Graph,
    manifest: &Manifest,
    name: &str,
) -> Result<(SegmentIdentity, SegmentRecord), StoreError> {
    for ManifestTensor { name: tensor, base: (version, base), deltas } in &manifest.tensors {
        if base.file == name {
            return Ok((
                graph.identity_of_base(manifest.part, tensor, *version, base)?,
                base.clone(),
            ));
        }
        if let Some(delta) = deltas.iter().find(|delta| delta.record.file == name) {
            let identity = graph.identity_of_delta(manifest.part, tensor, delta)?;
            return Ok((identity, delta.record.clone()));
        }
    }
    let reason = format!("the writer has a file {name:?} that its manifest does not name");
    Err(StoreError::FollowRefused { part: manifest.part, reason })
}

impl Graph {
    /// What a segment with every row of a partition must be.
    pub(crate) fn identity_of_base(
        &self,
        part: lodestore_graph::PartId,
        tensor: &str,
        version: u32,
        record: &SegmentRecord,
    ) -> Result<SegmentIdentity, StoreError> {
        let range = self.book().range(part);
        Ok(SegmentIdentity {
            graph: self.uuid(),
            segment: record.segment,
            part,
            version,
            tensor: self.tensor(tensor)?.clone(),
            n_rows: range.end - range.start,
            delta_of: None,
        })
    }

    /// What a delta of a partition must be.
    fn identity_of_delta(
        &self,
        part: lodestore_graph::PartId,
        tensor: &str,
        delta: &DeltaRecord,
    ) -> Result<SegmentIdentity, StoreError> {
        let range = self.book().range(part);
        Ok(SegmentIdentity {
            version: delta.version,
            n_rows: delta.record.n_rows,
            delta_of: Some(range.end - range.start),
            ..self.identity_of_base(part, tensor, delta.version, &delta.record)?
        })
    }
}
