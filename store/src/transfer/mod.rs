//! A partition on its way into a graph's folder. It comes together in a folder beside its place,
//! with a catalog, until it is there as a whole.
//!
//! `docs/replication.md` has the steps. The side that releases a partition is
//! [`PartCopy`](crate::update::PartCopy).

mod moved;
mod owner;
pub(crate) mod piece;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodestore_graph::PartId;

use crate::catalog::{Catalog, lock_folder};
use crate::error::StoreError;
use crate::file_system::{Disk, FileSystem, FileWriter, Guard};
use crate::follow::Manifest;
use crate::graph::{
    Graph, META_FILE, catalog_dir, halo_path, is_segment_file, part_dir, topology_path,
};
use crate::import::EXTERNAL_ID_TENSOR;
use crate::new_file::{remove_if_there, temporary_of};
use crate::row::RowIdx;
use crate::verify::verify_lists;

/// Suffix of the name of a partition's folder, before the number of the move.
const SUFFIX: &str = ".copy-";

/// Versions after the committed one that rows may be pending for: the next one, and while a commit
/// is under way the one after that.
const VERSIONS_AHEAD: u32 = 2;

/// A partition that comes to the folder of a graph: a graph of its own with one partition, until it
/// is taken.
#[derive(Debug)]
pub struct Arrival {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    part: PartId,
    id: u64,
    staging: PathBuf,
    /// Suffix of the folder in which it is made, by one mover.
    _lock: Guard,
}

impl Arrival {
    /// Returns the arrival of a partition in `dir` that an earlier run has begun. Without one, the
    /// first step of a new one with the number `id`, for which the folder is made.
    ///
    /// Fails if the partition is there, or another process brings it at this moment.
    pub fn find_or_begin(dir: &Path, part: PartId, id: u64) -> Result<Self, StoreError> {
        Self::find_or_begin_on(Arc::new(Disk), dir, part, id)
    }

    /// Like [`Arrival::find_or_begin`], on any file system.
    pub fn find_or_begin_on(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        part: PartId,
        id: u64,
    ) -> Result<Self, StoreError> {
        if !fs.exists(dir) {
            fs.create_dir(dir).map_err(StoreError::io(dir, "create"))?;
            let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            fs.sync(parent).map_err(StoreError::io(parent, "sync"))?;
        }
        // Held until one has its own lock: of two concurrent starts the second finds the folder of
        // the first.
        let _alone = lock_folder(&*fs, dir)?;
        let place = part_dir(dir, part);
        if let Some(found) = find(&*fs, dir, part)? {
            let staging = staging_dir(dir, part, found);
            let lock = locked(&*fs, &staging, part)?;
            let dir_owned = dir.to_owned();
            let this = Self { fs, dir: dir_owned, part, id: found, staging, _lock: lock };
            let has_content = this.fs.exists(&part_dir(&this.staging, part));
            if has_content || this.fs.exists(&place) {
                return Ok(this);
            }
            // Cut off as it was made, or taken and moved on since. The source may have given the
            // partition up under its number, which so must not come again.
            this.remove()?;
            return Self::begin(this.fs, dir, part, id);
        }
        if fs.exists(&place) {
            let reason = format!("{} is there already", place.display());
            return Err(StoreError::MoveRefused { part, reason });
        }
        Self::begin(fs, dir, part, id)
    }

    fn begin(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        part: PartId,
        id: u64,
    ) -> Result<Self, StoreError> {
        let staging = staging_dir(dir, part, id);
        for dir in [&staging, &part_dir(&staging, part)] {
            fs.create_dir(dir).map_err(StoreError::io(dir, "create"))?;
        }
        let lock = locked(&*fs, &staging, part)?;
        Ok(Self { fs, dir: dir.to_owned(), part, id, staging, _lock: lock })
    }

    /// Returns whether an earlier run has begun an arrival that is not over.
    pub fn is_begun(dir: &Path, part: PartId) -> Result<bool, StoreError> {
        Ok(Disk.exists(dir) && find(&Disk, dir, part)?.is_some())
    }

    /// Returns the partitions that are on their way to a folder, ascending.
    pub fn begun_in(graph: &Graph) -> Result<Vec<PartId>, StoreError> {
        let folders = Self::folders_in(graph)?;
        let begun: BTreeSet<&str> =
            folders.iter().filter_map(|name| Some(name.split_once(SUFFIX)?.0)).collect();
        let is_begun = |part: &PartId| begun.contains(&*name_of(&part_dir(graph.dir(), *part)));
        Ok(if begun.is_empty() {
            Vec::new()
        } else {
            graph.book().parts().filter(is_begun).collect()
        })
    }

    /// Names of the folders in which partitions come to a graph's folder, ascending.
    ///
    /// None is made while the graph's folder is locked.
    pub(crate) fn folders_in(graph: &Graph) -> Result<Vec<String>, StoreError> {
        let entries = graph.file_system().list(graph.dir());
        let entries = entries.map_err(StoreError::io(graph.dir(), "list"))?;
        let names = entries.into_iter().map(|entry| entry.name);
        Ok(names.filter(|name| name.contains(SUFFIX)).collect())
    }

    /// Returns the name of the folder in which move `id` brings a partition, if the graph's folder
    /// has none.
    #[must_use]
    pub fn missing_at(graph: &Graph, part: PartId, id: u64) -> Option<String> {
        let staging = staging_dir(graph.dir(), part, id);
        (!graph.file_system().exists(&staging)).then(|| name_of(&staging))
    }

    /// Returns the number of the move.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns whether it is in its place, and only what it was made in is left.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        !self.fs.exists(&part_dir(&self.staging, self.part))
            && self.fs.exists(&part_dir(&self.dir, self.part))
    }

    /// Returns whether a file has come as a whole.
    pub fn has(&self, name: &str, n_bytes: u64) -> Result<bool, StoreError> {
        let path = self.path(name)?;
        if !self.fs.exists(&path) {
            return Ok(false);
        }
        let len = self.fs.open(&path).and_then(|file| file.len_bytes());
        Ok(len.map_err(StoreError::io(&path, "open"))? == n_bytes)
    }

    /// Begins a file.
    pub fn file(&self, name: &str) -> Result<ArrivingFile, StoreError> {
        ArrivingFile::create(&self.fs, &self.path(name)?)
    }

    /// Returns the graph that has come, of this partition. Its description must have come.
    pub fn graph(&self) -> Result<Graph, StoreError> {
        Graph::open_on(Arc::clone(&self.fs), &self.staging)
    }

    /// Does as [`Arrival::graph`]; fails where the folder has another graph, or one with other
    /// tensors.
    pub fn check_graph(&self) -> Result<Graph, StoreError> {
        let coming = self.graph()?;
        if !self.fs.exists(&self.dir.join(META_FILE)) {
            return Ok(coming);
        }
        let here = Graph::open_on(Arc::clone(&self.fs), &self.dir)?;
        if here.uuid() != coming.uuid() {
            return Err(StoreError::Misplaced {
                file: self.dir.clone(),
                field: "graph",
                expected: coming.uuid().to_string(),
                found: here.uuid().to_string(),
            });
        }
        if here.meta() == coming.meta() {
            return Ok(coming);
        }
        let only = |of: &Graph, other: &Graph| {
            let missing = of.meta().tensors.iter().filter(|it| !other.meta().tensors.contains(it));
            let names: Vec<&str> = missing.map(|it| it.name.as_str()).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let reason = format!(
            "{} describes the graph otherwise than the source: tensors only here: {}; only there: {}; add \
             or drop them, or, where the folder follows the \
             source, remove it and start again",
            self.dir.join(META_FILE).display(),
            only(&here, &coming),
            only(&coming, &here),
        );
        Err(StoreError::MoveRefused { part: self.part, reason })
    }

    /// Begins the catalog, and removes one that is there: rows that an earlier run has fetched may
    /// have changed. The graph's description must have come.
    ///
    /// Fails as [`Arrival::check_graph`] does.
    pub fn catalog(&self) -> Result<ArrivingCatalog, StoreError> {
        let coming = self.check_graph()?;
        let dir = catalog_dir(&part_dir(&self.staging, self.part));
        if self.fs.exists(&dir) {
            self.fs.remove_dir_all(&dir).map_err(StoreError::io(&dir, "remove"))?;
        }
        let text = coming.meta().to_text();
        let catalog = Catalog::create(&*self.fs, &dir, coming.uuid(), self.part, &text)?;
        Ok(ArrivingCatalog { graph: coming, catalog })
    }

    /// Reads and checks the lists of edges, which must have come.
    ///
    /// Fails with [`StoreError::MoveRefused`] if anything is damaged, and removes the folder then:
    /// a new run begins from nothing.
    pub fn check_lists(&self) -> Result<(), StoreError> {
        let report = verify_lists(&self.graph()?, self.part)?;
        let Some(damage) = report.damaged.first() else { return Ok(()) };
        self.remove()?;
        let reason = format!("its copy is damaged ({}); nothing has changed", damage.reason);
        Err(StoreError::MoveRefused { part: self.part, reason })
    }

    /// Hands what has come to the owner of the folder, if that is another user than the one that
    /// brings it. The folder's server must be able to open it.
    ///
    /// Fails with [`StoreError::MoveRefused`] where only the superuser, or that user, could.
    pub fn give_to_owner(&self) -> Result<(), StoreError> {
        owner::give(&self.staging, &self.dir, self.part)
    }

    /// Makes durable which files there are; each was synced when it was finished.
    pub fn sync(&self) -> Result<(), StoreError> {
        let part_dir = part_dir(&self.staging, self.part);
        for dir in [&catalog_dir(&part_dir), &part_dir, &self.staging, &self.dir] {
            self.fs.sync(dir).map_err(StoreError::io(dir, "sync"))?;
        }
        Ok(())
    }

    /// Checks what has come, installs its version, and moves the partition to its place. All of its
    /// files have come.
    pub fn install(self, manifest: &Manifest) -> Result<(), StoreError> {
        self.check_lists()?;
        let catalog = self.catalog()?;
        catalog.install(manifest)?;
        catalog.close()?;
        self.sync()?;
        self.take()
    }

    /// Moves the partition to its place: from then on it is this folder's. The graph's description
    /// that it came with stays where the folder had none.
    pub fn take(self) -> Result<(), StoreError> {
        let (from, to) = (part_dir(&self.staging, self.part), part_dir(&self.dir, self.part));
        let meta = self.dir.join(META_FILE);
        if self.is_taken() {
            // An earlier run may have been ended before its sync.
            self.fs.sync(&self.dir).map_err(StoreError::io(&self.dir, "sync"))?;
            return self.remove();
        }
        if !self.fs.exists(&meta) {
            // Durable before the partition is: without it no run could open that.
            self.move_to(&self.staging.join(META_FILE), &meta)?;
        }
        self.move_to(&from, &to)?;
        self.remove()
    }

    /// Moves a file or folder to its place, durably.
    ///
    /// After a sync that has failed, later ones prove nothing of the name, so that it is taken
    /// back: the next run sets it again.
    fn move_to(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.fs.rename(from, to).map_err(StoreError::io(to, "move what has come to"))?;
        self.fs.sync(&self.dir).map_err(StoreError::io(&self.dir, "sync")).inspect_err(|_| {
            if let Err(error) = self.fs.rename(to, from) {
                let (to, from) = (to.display(), from.display());
                tracing::warn!("{to}: cannot be moved back to {from}: {error}");
            }
        })
    }

    /// Removes what has come.
    pub fn remove(&self) -> Result<(), StoreError> {
        let removed = self.fs.remove_dir_all(&self.staging);
        removed.map_err(StoreError::io(&self.staging, "remove"))
    }

    /// Returns where a file goes; names come from outside.
    fn path(&self, name: &str) -> Result<PathBuf, StoreError> {
        let dir = part_dir(&self.staging, self.part);
        let lists = [topology_path(&dir), halo_path(&dir)];
        if name == META_FILE {
            return Ok(self.staging.join(META_FILE));
        }
        let is_plain = !name.contains(['/', '\0']) && !name.starts_with('.');
        if is_plain && is_segment_file(name) {
            return Ok(dir.join(name));
        }
        let list = lists.into_iter().find(|path| name_of(path) == name);
        list.ok_or_else(|| StoreError::MoveRefused {
            part: self.part,
            reason: format!("the source names a file {name:?}, which no partition has"),
        })
    }
}

/// The catalog of a partition on its way: it names the files that have come, and takes pending
/// rows.
#[derive(Debug)]
pub struct ArrivingCatalog {
    /// The graph that has come.
    graph: Graph,
    catalog: Catalog,
}

impl ArrivingCatalog {
    /// Names the files of a manifest, all of which have come, and its version.
    pub fn install(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let (records, deltas) = manifest.records();
        self.catalog.take_over(&records, &deltas, manifest.version, &manifest.commits)
    }

    /// Puts a piece of the pending rows of the source, which are over the version of `manifest`;
    /// durable when it returns.
    ///
    /// Fails with [`StoreError::MoveRefused`] for bytes that are no such piece, and for rows that
    /// this partition cannot have.
    pub fn put(&self, manifest: &Manifest, mut bytes: &[u8]) -> Result<(), StoreError> {
        let (tensors, range) = (&self.graph.meta().tensors, self.graph.book().range(manifest.part));
        let (n_rows, version) = (range.end - range.start, manifest.version);
        let row_bytes = |tensor: u16| Some(tensors.get(usize::from(tensor))?.row_bytes());
        while !bytes.is_empty() {
            let stretch = piece::take(&mut bytes, row_bytes).filter(|stretch| {
                let versions = version.saturating_add(1)..=version.saturating_add(VERSIONS_AHEAD);
                let are_here = stretch.rows.iter().all(|row| *row < n_rows);
                let name = &tensors[usize::from(stretch.tensor)].name;
                versions.contains(&stretch.version) && are_here && name != EXTERNAL_ID_TENSOR
            });
            let Some(piece::RowStretch { tensor, version, rows, bytes }) = stretch else {
                let reason = "its pending rows came cut off, or are of no tensor, row or version that it \
                              may have; nothing has changed, move it again";
                let (part, reason) = (manifest.part, reason.to_owned());
                return Err(StoreError::MoveRefused { part, reason });
            };
            let spec = &tensors[usize::from(tensor)];
            let rows =
                rows.iter().map(|row| RowIdx(*row)).zip(bytes.chunks_exact(spec.row_bytes()));
            self.catalog.put_rows(&spec.name, version, rows, None)?;
        }
        Ok(())
    }

    /// Moves what was written into tables and closes it.
    pub fn close(self) -> Result<(), StoreError> {
        self.catalog.flush()
    }
}

/// Returns the number of an arrival that has been begun.
fn find(fs: &dyn FileSystem, dir: &Path, part: PartId) -> Result<Option<u64>, StoreError> {
    let prefix = format!("{}{SUFFIX}", name_of(&part_dir(dir, part)));
    let entries = fs.list(dir).map_err(StoreError::io(dir, "list"))?;
    let id = |name: &str| u64::from_str_radix(name.strip_prefix(&prefix)?, 16).ok();
    Ok(entries.iter().find_map(|entry| id(&entry.name)))
}

fn staging_dir(dir: &Path, part: PartId, id: u64) -> PathBuf {
    dir.join(format!("{}{SUFFIX}{id:016x}", name_of(&part_dir(dir, part))))
}

/// Returns the lock of the process that brings a partition; it ends with the process, in any way.
fn locked(fs: &dyn FileSystem, staging: &Path, part: PartId) -> Result<Guard, StoreError> {
    fs.lock(staging).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => StoreError::MoveRefused {
            part,
            reason: format!("another process brings it, in {}", staging.display()),
        },
        _ => StoreError::io(staging, "lock")(error),
    })
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A file that is being written, under another name until it is whole and synced.
#[derive(Debug)]
pub struct ArrivingFile {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
    temporary: PathBuf,
    file: Box<dyn FileWriter>,
}

impl ArrivingFile {
    fn create(fs: &Arc<dyn FileSystem>, path: &Path) -> Result<Self, StoreError> {
        let temporary = temporary_of(path);
        remove_if_there(&**fs, &temporary)?;
        let file = fs.create(&temporary).map_err(StoreError::io(&temporary, "create"))?;
        Ok(Self { fs: Arc::clone(fs), path: path.to_owned(), temporary, file })
    }

    /// Appends what has come.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.append(bytes).map_err(StoreError::io(&self.temporary, "write"))
    }

    /// Syncs it and returns it its name.
    pub fn finish(mut self) -> Result<(), StoreError> {
        self.file.sync().map_err(StoreError::io(&self.temporary, "sync"))?;
        let renamed = self.fs.replace(&self.temporary, &self.path);
        renamed.map_err(StoreError::io(&self.path, "rename to"))
    }
}
