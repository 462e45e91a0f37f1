//! The partitions that are here, locked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lodestore_graph::PartId;
use lodestore_graph::file_check::{FORMAT_VERSION, FileKind, unknown_version};

use super::actions::{RepairActions, RepairFolder};
use super::as_damage;
use crate::catalog::{CATALOG_FORMAT_VERSION, Catalog, lock_partition};
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::file_system::Access;
use crate::graph::{catalog_dir, halo_path, part_dir, topology_path};
use crate::probe::{PROFILE_FORMAT_VERSION, StoredProfile};
use crate::segment::{FoundEnds, SEGMENT_FORMAT_VERSION};
use crate::verify::read_head;

/// A partition's folder and its catalog as it is.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) part: PartId,
    pub(super) dir: PathBuf,
    /// Open, without a check of its owner; locked, unless this is a dry run. An error when it
    /// cannot be opened.
    pub(super) catalog: Result<Catalog, StoreError>,
}

/// Opens the catalogs of `parts`, or of all partitions in `dir`, against concurrent writers.
/// Finishes or clears away what an earlier repair has begun.
///
/// Fails with [`StoreError::Locked`] when another process writes or repairs one, and has done
/// nothing then: the locks come before any look. A dry run takes none.
pub(super) fn open_all(
    actions: &mut RepairActions,
    dir: &Path,
    parts: Option<&[PartId]>,
) -> Result<BTreeMap<PartId, Partition>, StoreError> {
    let mut dirs = Vec::new();
    for entry in actions.fs.list(dir).map_err(StoreError::io(dir, "list"))? {
        let Some(part) = part_of(&entry.name) else { continue };
        if parts.is_some_and(|parts| !parts.contains(&part)) {
            continue;
        }
        let dir = dir.join(&entry.name);
        if entry.is_dir || is_link_to_folder(actions, &dir)? {
            dirs.push((part, dir));
        }
    }
    if !actions.is_dry_run() {
        for (_, dir) in &dirs {
            actions.guards.push(lock_partition(&*actions.fs, dir)?);
        }
    }
    let mut partitions = BTreeMap::new();
    for (part, dir) in dirs {
        let catalog = open(actions, &dir)?;
        partitions.insert(part, Partition { part, dir, catalog });
    }
    actions.resume(dir, RepairFolder::Graph)?;
    for partition in partitions.values_mut() {
        actions.resume(&partition.dir, RepairFolder::Partition)?;
        if partition.catalog.is_err() {
            partition.catalog = open(actions, &partition.dir)?;
        }
    }
    Ok(partitions)
}

fn open(
    actions: &RepairActions,
    part_dir: &Path,
) -> Result<Result<Catalog, StoreError>, StoreError> {
    let access = if actions.is_dry_run() { Access::Read } else { Access::Write };
    let opened = Catalog::open_unchecked(&*actions.fs, &catalog_dir(part_dir), access);
    match opened {
        // What the system refuses to show may be sound.
        Err(error) if error.origin() != ErrorOrigin::Damage => Err(error),
        Err(error) => is_hidden(actions, part_dir).map_or(Ok(Err(error)), Err),
        opened => Ok(opened),
    }
}

/// Returns the reason why the presence of the catalog is unknown, if it is.
fn is_hidden(actions: &RepairActions, part_dir: &Path) -> Option<StoreError> {
    let path = catalog_dir(part_dir).join("CURRENT");
    let error = actions.fs.open(&path).err().map(StoreError::io(&path, "open"))?;
    (error.origin() != ErrorOrigin::Damage).then_some(error)
}

/// Fails when any file is of a later format.
pub(super) fn refuse_newer<'a>(
    actions: &RepairActions,
    dir: &Path,
    partitions: impl Iterator<Item = &'a Partition>,
) -> Result<(), StoreError> {
    let fs = &*actions.fs;
    if let Err(error) = StoredProfile::read(fs, dir) {
        refuse(&error.file, error.newer_format, PROFILE_FORMAT_VERSION)?;
    }
    for partition in partitions {
        if let Ok(catalog) = &partition.catalog {
            refuse_newer_catalog(catalog)?;
        }
        let topology = (topology_path(&partition.dir), FileKind::Topology);
        for (path, kind) in [topology, (halo_path(&partition.dir), FileKind::Halo)] {
            if let Some((_, head)) = sound(read_head(fs, &path))? {
                refuse(&path, unknown_version(kind, &head), FORMAT_VERSION)?;
            }
        }
        let list = fs.list(&partition.dir).map_err(StoreError::io(&partition.dir, "list"))?;
        for entry in list.into_iter().filter(|entry| !entry.is_dir) {
            if !entry.name.ends_with(".seg") && !entry.name.ends_with(".delta") {
                continue;
            }
            let path = partition.dir.join(entry.name);
            let ends = fs.open(&path).and_then(|file| FoundEnds::read(&*file));
            if let Some(ends) = sound(ends.map_err(StoreError::io(&path, "open")))? {
                refuse(&path, ends.newer, SEGMENT_FORMAT_VERSION)?;
            }
        }
    }
    Ok(())
}

/// Fails when anything in a catalog is of a later format, and looks at all that can be read.
pub(super) fn refuse_newer_catalog(catalog: &Catalog) -> Result<(), StoreError> {
    sound(catalog.identity())?;
    let newer = sound(catalog.newer_format())?.flatten();
    refuse(catalog.dir(), newer, CATALOG_FORMAT_VERSION)
}

fn refuse(file: &Path, newer: Option<u32>, supported: u32) -> Result<(), StoreError> {
    match newer {
        Some(found) => Err(StoreError::NewerFormat { file: file.to_owned(), found, supported }),
        None => Ok(()),
    }
}

/// Returns what was read; `None` if it is damaged.
fn sound<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) => as_damage(error).map(|_| None),
    }
}

/// Returns whether a link leads to a folder: partitions may be on other disks.
fn is_link_to_folder(actions: &RepairActions, path: &Path) -> Result<bool, StoreError> {
    match actions.fs.list(path).map_err(StoreError::io(path, "list")) {
        Ok(_) => Ok(true),
        Err(error) if error.origin() == ErrorOrigin::Damage => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the partition that [`part_dir`] made this name of.
fn part_of(name: &str) -> Option<PartId> {
    let part = PartId(name.strip_prefix("part-")?.parse().ok()?);
    (part_dir(Path::new(""), part) == Path::new(name)).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_partitions_are_known_by_name() {
        for (name, part) in [("part-000", 0), ("part-017", 17), ("part-65534", 65_534)] {
            assert_eq!(part_of(name), Some(PartId(part)), "{name}");
        }
        for name in ["part-", "part-1", "part-0001", "part-70000", "part-00x", "parts-000", "x"] {
            assert_eq!(part_of(name), None, "{name}");
        }
    }
}
