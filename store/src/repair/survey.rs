//! Whose the files of a graph are, by what they say themselves.

use std::collections::BTreeMap;

use lodestore_graph::check::{FileKind, facts};
use uuid::Uuid;

use super::partitions::Partition;
use super::segment::identity_of;
use super::workshop::Workshop;
use crate::cause::Cause;
use crate::error::StoreError;
use crate::graph::{halo_path, topology_path};
use crate::verify::read_head;

/// How many catalogs, files of lists and segments say that they are of which graph; those that
/// cannot be read, or are damaged where it stands, say nothing.
pub(super) fn owners<'a>(
    shop: &Workshop,
    partitions: impl Iterator<Item = &'a Partition>,
) -> Result<BTreeMap<Uuid, usize>, StoreError> {
    let mut owners = BTreeMap::new();
    let mut count = |uuid: Uuid| *owners.entry(uuid).or_insert(0) += 1;
    for partition in partitions {
        if let Ok(catalog) = &partition.catalog {
            sound(catalog.identity())?.into_iter().for_each(|(uuid, _)| count(uuid));
        }
        let topology = (topology_path(&partition.dir), FileKind::Topology);
        let halo = (halo_path(&partition.dir), FileKind::Halo);
        for (path, kind) in [topology, halo] {
            let head = sound(read_head(&*shop.device, &path))?;
            let found = head.and_then(|(_, head)| facts(kind, &head));
            found.into_iter().for_each(|facts| count(Uuid::from_bytes(facts.uuid)));
        }
        let entries = shop.device.list(&partition.dir);
        for entry in entries.map_err(StoreError::io(&partition.dir, "list"))? {
            let path = partition.dir.join(&entry.name);
            if entry.is_dir || !entry.name.ends_with(".seg") {
                continue;
            }
            let file = sound(shop.device.open(&path).map_err(StoreError::io(&path, "open")))?;
            let found = file.and_then(|file| identity_of(&*file));
            found.into_iter().for_each(|found| count(found.graph));
        }
    }
    Ok(owners)
}

/// What was read; `None` if it is damaged.
///
/// Fails for a later format, and where the system refuses.
fn sound<T>(read: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error @ StoreError::NewerFormat { .. }) => Err(error),
        Err(error) if error.cause() == Cause::System => Err(error),
        Err(_) => Ok(None),
    }
}
