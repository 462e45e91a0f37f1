//! A folder that follows the partitions of a writer: what it fetches, and what it may install.
//!
//! A follower has the files of a version that the writer had, and a catalog of its own that names
//! them. It takes no puts. Its folder says so in a file of its own, so that no process opens it for
//! writing by mistake. The writer's side is [`PartFiles`](crate::update::PartFiles).

mod coverage;
mod fetch;
mod likeness;
mod manifest;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::PartId;

use crate::error::StoreError;
use crate::file_system::{Disk, FileSystem};
use crate::graph::{Graph, META_FILE, TEMPORARY_SUFFIX, is_segment_file};
use crate::meta::FOLLOWS_FILE;
use crate::new_file::{remove_if_there, replace_file};
use crate::update::remove_unpinned;

pub use coverage::Coverage;
pub use fetch::{FetchCheck, FetchedFile};
pub use likeness::CommonFiles;
pub(crate) use manifest::ManifestTensor;
pub use manifest::{Manifest, Succession};

/// Most bytes of that file.
const FOLLOWS_BYTES_MAX: u64 = 4096;

/// A folder that follows, from its beginning on.
#[derive(Debug)]
pub struct FollowedFolder {
    dir: PathBuf,
}

impl FollowedFolder {
    /// Makes `dir` a follower's folder of the writers at these addresses, or finds it so.
    ///
    /// Fails with [`StoreError::FollowRefused`] for a folder with partitions of its own.
    pub fn open(dir: &Path, writers: &str) -> Result<Self, StoreError> {
        let fs = Disk;
        if !fs.exists(dir) {
            fs.create_dir(dir).map_err(StoreError::io(dir, "create"))?;
        }
        let file = dir.join(FOLLOWS_FILE);
        if !fs.exists(&file) && fs.exists(&dir.join(META_FILE)) {
            let graph = Graph::open(dir)?;
            if let Some(&part) = graph.local_parts().first() {
                let reason = format!(
                    "{} has it, and is no follower's folder; follow in an empty one",
                    graph.part_dir(part).display()
                );
                return Err(StoreError::FollowRefused { part, reason });
            }
        }
        replace_file(&fs, &file, writers.as_bytes())?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Makes a follower's folder one that may be written again, durably; another folder stays as it
    /// is.
    pub fn end(dir: &Path) -> Result<(), StoreError> {
        let (fs, file) = (Disk, dir.join(FOLLOWS_FILE));
        remove_if_there(&fs, &file)?;
        fs.sync(dir).map_err(StoreError::io(dir, "sync"))
    }

    /// Fails where the folder has a graph that is another than that of this manifest.
    pub fn check_graph(&self, manifest: &Manifest) -> Result<(), StoreError> {
        if !Disk.exists(&self.dir.join(META_FILE)) {
            return Ok(());
        }
        let here = Graph::open(&self.dir)?;
        if here.uuid() == manifest.graph() {
            return Ok(());
        }
        let reason = format!(
            "{} is of graph {}, and the writer serves graph {}; follow in an empty folder",
            self.dir.display(),
            here.uuid(),
            manifest.graph()
        );
        Err(StoreError::FollowRefused { part: manifest.part(), reason })
    }

    /// Returns the partitions that have come as a whole before, ascending.
    pub fn parts(&self) -> Result<Vec<PartId>, StoreError> {
        if !Disk.exists(&self.dir.join(META_FILE)) {
            return Ok(Vec::new());
        }
        Ok(Graph::open(&self.dir)?.local_parts())
    }

    /// Returns whether a partition has come as a whole before.
    pub fn has(&self, part: PartId) -> Result<bool, StoreError> {
        if !Disk.exists(&self.dir.join(META_FILE)) {
            return Ok(false);
        }
        let graph = Graph::open(&self.dir)?;
        Ok(graph.file_system().exists(&graph.part_dir(part)))
    }
}

impl Graph {
    /// Returns the writer's addresses, where the graph's folder is a follower's.
    pub(crate) fn follows(&self) -> Result<Option<String>, StoreError> {
        let path = self.dir().join(FOLLOWS_FILE);
        let fs: &Arc<dyn FileSystem> = self.file_system();
        let file = match fs.open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(StoreError::io(&path, "open"))?,
        };
        let read = (|| {
            let mut text = vec![0; file.len_bytes()?.min(FOLLOWS_BYTES_MAX) as usize];
            file.read_exact_at(&mut text, 0)?;
            Ok(String::from_utf8_lossy(&text).trim().to_owned())
        })();
        read.map(Some).map_err(StoreError::io(&path, "read"))
    }

    /// Removes files of a partition that a manifest does not name: those of a fetch that was cut
    /// off and is over. Files that a process reads stay.
    pub fn remove_strays(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let (fs, dir) = (&**self.file_system(), self.part_dir(manifest.part));
        let entries = fs.list(&dir).map_err(StoreError::io(&dir, "list"))?;
        for entry in entries {
            let name = entry.name.strip_suffix(TEMPORARY_SUFFIX).unwrap_or(&entry.name);
            if is_segment_file(name) && !manifest.files().any(|it| it == entry.name) {
                remove_unpinned(fs, &dir.join(&entry.name));
            }
        }
        Ok(())
    }

    /// Fails for a follower's folder, which its writer alone changes.
    pub(crate) fn check_owned(&self) -> Result<(), StoreError> {
        match self.follows()? {
            None => Ok(()),
            Some(writer) => Err(StoreError::Follows { dir: self.dir().to_owned(), writer }),
        }
    }
}
