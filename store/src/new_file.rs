//! New files of rows: whole under their names, or not there.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lodestore_graph::PartId;

use crate::catalog::SegmentRecord;
use crate::error::StoreError;
use crate::file_system::FileSystem;
use crate::graph::{Graph, TEMPORARY_SUFFIX, check_digest, open_pinned};
use crate::quarantine::quarantine;
use crate::segment::{Segment, SegmentDigest, SegmentIdentity};

/// Writes the file `name` of a partition, opens it and pins it; returns its record, which no
/// catalog has yet.
///
/// `write` fills the file of the path that it receives, and syncs it. The file is then moved to its
/// name, and its folder is synced. A failure removes what was written.
pub(crate) fn write_new_file(
    graph: &Graph,
    part: PartId,
    name: String,
    identity: &SegmentIdentity,
    write: impl FnOnce(&Path) -> Result<SegmentDigest, StoreError>,
) -> Result<(SegmentRecord, Segment), StoreError> {
    let (fs, dir) = (&**graph.file_system(), graph.part_dir(part));
    let path = dir.join(&name);
    let temporary = temporary_of(&path);
    // No record names these. An unfinished file is left from a failure; a finished one may be all
    // that is left of rows that a catalog restored from an old copy knows nothing of.
    remove_if_there(fs, &temporary)?;
    if fs.exists(&path) {
        let to = quarantine(fs, &path)?;
        let (path, to) = (path.display(), to.display());
        tracing::warn!("{path}: in the way, and named by no record; moved to {to}");
    }
    let written = write(&temporary).and_then(|digest| {
        fs.rename(&temporary, &path).map_err(StoreError::io(&path, "move a segment to"))?;
        fs.sync(&dir).map_err(StoreError::io(&dir, "sync"))?;
        let record = SegmentRecord::new(identity, digest, name);
        let segment = open_pinned(fs, &path, identity)?;
        check_digest(&segment, &record)?;
        Ok((record, segment))
    });
    if written.is_err() {
        [&temporary, &path].into_iter().for_each(|left| discard(fs, left));
    }
    written
}

/// Names that [`check_moves`] gives a file, which only a crash leaves.
pub(crate) const PROBE_NAMES: [&str; 2] = ["rename-probe.tmp", "rename-probe"];

/// Fails with [`StoreError::Unsuited`] where a file in `dir` cannot be moved to a free name. A commit
/// does that in its last step, so it is tried before anything is written.
///
/// `dir` is locked, or known to this process alone. Any other failure, such as a full disk, is left
/// to who meets it.
pub(crate) fn check_moves(fs: &dyn FileSystem, dir: &Path) -> Result<(), StoreError> {
    let [from, to] = PROBE_NAMES.map(|name| dir.join(name));
    // What a crash has left.
    [&from, &to].into_iter().for_each(|left| discard(fs, left));
    if fs.create(&from).is_err() {
        return Ok(());
    }
    let moved = fs.rename(&from, &to);
    [&from, &to].into_iter().for_each(|left| discard(fs, left));
    match moved {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            Err(StoreError::Unsuited { dir: dir.to_owned(), reason: error.to_string() })
        }
        _ => Ok(()),
    }
}

/// Returns the name that a file has while it is being written.
pub(crate) fn temporary_of(path: &Path) -> PathBuf {
    let mut temporary = path.to_owned().into_os_string();
    temporary.push(TEMPORARY_SUFFIX);
    temporary.into()
}

/// Puts a file of these bytes at `path`, whole and durably, or leaves what is there.
pub(crate) fn replace_file(
    fs: &dyn FileSystem,
    path: &Path,
    bytes: &[u8],
) -> Result<(), StoreError> {
    let temporary = temporary_of(path);
    remove_if_there(fs, &temporary)?;
    let write = || {
        let mut file = fs.create(&temporary)?;
        file.append(bytes)?;
        file.sync()?;
        fs.replace(&temporary, path)?;
        path.parent().map_or(Ok(()), |dir| fs.sync(dir))
    };
    write().map_err(StoreError::io(path, "write"))
}

/// Removes a file that no record names; the next opening for writing does it where that fails.
pub(crate) fn discard(fs: &dyn FileSystem, path: &Path) {
    if let Err(error) = remove_if_there(fs, path) {
        tracing::warn!("{error}; the next opening for writing removes it");
    }
}

/// Removes a file if there is one.
pub(crate) fn remove_if_there(fs: &dyn FileSystem, path: &Path) -> Result<(), StoreError> {
    if !fs.exists(path) {
        return Ok(());
    }
    fs.remove_file(path).map_err(StoreError::io(path, "remove"))
}
