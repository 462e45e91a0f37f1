//! The files of a partition that is copied, held open: what a compaction removes can still be read.

use std::path::{Path, PathBuf};

use lodestore_graph::PartId;

use super::super::LivePart;
use crate::device::FileReader;
use crate::error::StoreError;
use crate::graph::{Graph, META_FILE};

/// A file, open.
#[derive(Debug)]
pub(super) struct CopiedFile {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) n_bytes: u64,
    pub(super) file: Box<dyn FileReader>,
}

/// Opens what the folder of a partition has beside its catalog, and the description of the graph.
pub(super) fn open_files(graph: &Graph, part: &LivePart) -> Result<Vec<CopiedFile>, StoreError> {
    let mut files = open_lists(graph, part.part)?;
    for tensor in &part.tensors {
        let (current, prepared) = (tensor.current(), tensor.prepared());
        for layer in current.layers().iter().chain(&prepared) {
            files.push(open_file(graph, layer.segment().path().to_owned())?);
        }
    }
    Ok(files)
}

/// Opens the description of the graph, and the lists of edges of a partition.
pub(super) fn open_lists(graph: &Graph, part: PartId) -> Result<Vec<CopiedFile>, StoreError> {
    let lists = [graph.topology_path(part), graph.halo_path(part)];
    let lists = lists.into_iter().filter(|path| graph.device().exists(path));
    let paths = std::iter::once(graph.dir().join(META_FILE)).chain(lists);
    paths.map(|path| open_file(graph, path)).collect()
}

impl CopiedFile {
    /// Appends to `out` what the file has from `offset` on, at most `limit` bytes; `true` when that is
    /// its end.
    pub(super) fn read(
        &self,
        offset: u64,
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        let left = self.n_bytes.saturating_sub(offset);
        let n_bytes = usize::try_from(left).unwrap_or(limit).min(limit);
        let start = out.len();
        out.resize(start + n_bytes, 0);
        let read = self.file.read_exact_at(&mut out[start..], offset);
        read.map_err(StoreError::io(&self.path, "read"))?;
        Ok(n_bytes as u64 == left)
    }
}

pub(super) fn open_file(graph: &Graph, path: PathBuf) -> Result<CopiedFile, StoreError> {
    let open = |path: &Path| {
        let file = graph.device().open(path)?;
        Ok((file.len_bytes()?, file))
    };
    let (n_bytes, file) = open(&path).map_err(StoreError::io(&path, "open"))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(CopiedFile { name, path, n_bytes, file })
}
