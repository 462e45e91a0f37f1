//! The files of a partition that is copied, held open: what a compaction removes can still be read.

use std::path::{Path, PathBuf};

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
    let dir = graph.part_dir(part.part);
    let mut paths = vec![graph.dir().join(META_FILE)];
    let lists = [graph.topology_path(part.part), graph.halo_path(part.part)];
    paths.extend(lists.into_iter().filter(|path| graph.device().exists(path)));
    for tensor in &part.tensors {
        let (current, prepared) = (tensor.current(), tensor.prepared());
        let layers = current.layers().iter().chain(&prepared);
        paths.extend(layers.map(|layer| layer.segment().path().to_owned()));
    }
    debug_assert!(paths[1..].iter().all(|path| path.parent() == Some(&dir)));
    paths.into_iter().map(|path| open_file(graph, path)).collect()
}

fn open_file(graph: &Graph, path: PathBuf) -> Result<CopiedFile, StoreError> {
    let open = |path: &Path| {
        let file = graph.device().open(path)?;
        Ok((file.len_bytes()?, file))
    };
    let (n_bytes, file) = open(&path).map_err(StoreError::io(&path, "open"))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(CopiedFile { name, path, n_bytes, file })
}
