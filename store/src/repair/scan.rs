//! Descriptions in the files of a graph, before anything is touched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lodestore_graph::file_check::{FORMAT_VERSION, FileKind, facts, unknown_version};
use uuid::Uuid;

use super::actions::RepairActions;
use super::partitions::Partition;
use super::segment::{identity_of, newer_format_of};
use crate::catalog::CATALOG_FORMAT_VERSION;
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::file_system::FileReader;
use crate::graph::{halo_path, topology_path};
use crate::probe::{PROFILE_FORMAT_VERSION, StoredProfile};
use crate::segment::SEGMENT_FORMAT_VERSION;
use crate::verify::read_head;

/// Fails when any file is of a later format.
pub(super) fn refuse_newer<'a>(
    actions: &RepairActions,
    dir: &Path,
    partitions: impl Iterator<Item = &'a Partition>,
) -> Result<(), StoreError> {
    let refuse = |file: &Path, newer: Option<u32>, supported| match newer {
        Some(found) => Err(StoreError::NewerFormat { file: file.to_owned(), found, supported }),
        None => Ok(()),
    };
    if let Err(error) = StoredProfile::read(&*actions.device, dir) {
        refuse(&error.file, error.newer_format, PROFILE_FORMAT_VERSION)?;
    }
    for partition in partitions {
        if let Ok(catalog) = &partition.catalog {
            sound(catalog.identity())?;
            let newer = sound(catalog.newer_format())?.flatten();
            refuse(catalog.dir(), newer, CATALOG_FORMAT_VERSION)?;
        }
        for (path, kind) in lists(partition) {
            let head = sound(read_head(&*actions.device, &path))?;
            let newer = head.and_then(|(_, head)| unknown_version(kind, &head));
            refuse(&path, newer, FORMAT_VERSION)?;
        }
        for path in segments(actions, partition)? {
            let newer = open(actions, &path)?.and_then(|file| newer_format_of(&*file));
            refuse(&path, newer, SEGMENT_FORMAT_VERSION)?;
        }
    }
    Ok(())
}

/// Counts catalogs, files of lists and segments by the graph that they name. Those that cannot be
/// read, or are damaged there, do not count.
pub(super) fn owners<'a>(
    actions: &RepairActions,
    partitions: impl Iterator<Item = &'a Partition>,
) -> Result<BTreeMap<Uuid, usize>, StoreError> {
    let mut owners = BTreeMap::new();
    let mut count = |uuid: Uuid| *owners.entry(uuid).or_insert(0) += 1;
    for partition in partitions {
        if let Ok(catalog) = &partition.catalog {
            sound(catalog.identity())?.into_iter().for_each(|(uuid, _)| count(uuid));
        }
        for (path, kind) in lists(partition) {
            let head = sound(read_head(&*actions.device, &path))?;
            let found = head.and_then(|(_, head)| facts(kind, &head));
            found.into_iter().for_each(|facts| count(Uuid::from_bytes(facts.uuid)));
        }
        for path in segments(actions, partition)? {
            let found = open(actions, &path)?.and_then(|file| identity_of(&*file));
            found.into_iter().for_each(|found| count(found.graph));
        }
    }
    Ok(owners)
}

fn lists(partition: &Partition) -> [(PathBuf, FileKind); 2] {
    let topology = (topology_path(&partition.dir), FileKind::Topology);
    [topology, (halo_path(&partition.dir), FileKind::Halo)]
}

/// Returns all files in a partition that are named as segments are.
fn segments(actions: &RepairActions, partition: &Partition) -> Result<Vec<PathBuf>, StoreError> {
    let entries = actions.device.list(&partition.dir);
    let entries = entries.map_err(StoreError::io(&partition.dir, "list"))?.into_iter();
    let named = entries.filter(|entry| !entry.is_dir && entry.name.ends_with(".seg"));
    Ok(named.map(|entry| partition.dir.join(entry.name)).collect())
}

fn open(actions: &RepairActions, path: &Path) -> Result<Option<Box<dyn FileReader>>, StoreError> {
    sound(actions.device.open(path).map_err(StoreError::io(path, "open")))
}

/// Returns what was read; `None` if it is damaged.
///
/// Fails for a later format, and where the system refuses.
fn sound<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error @ StoreError::NewerFormat { .. }) => Err(error),
        Err(error) if error.origin() == ErrorOrigin::System => Err(error),
        Err(_) => Ok(None),
    }
}
