//! Leftovers of an earlier repair that was cut off.

use std::path::Path;
use std::sync::Arc;

use super::actions::{BUILDING_SUFFIX, REPAIRED_SUFFIX, RepairActions};
use super::in_place::InPlace;
use crate::error::StoreError;
use crate::graph::{META_FILE, catalog_dir, halo_path, is_segment_file, topology_path};

/// A folder that repair works in.
#[derive(Clone, Copy, Debug)]
pub(super) enum RepairFolder {
    Graph,
    Partition,
}

impl RepairFolder {
    /// Returns whether repair puts something of this name there. Anything else of the name is not
    /// ours.
    fn is_made(self, name: &str, is_dir: bool) -> bool {
        let is = |path: &Path| path == Path::new(name);
        let here = Path::new("");
        match self {
            Self::Graph => name == META_FILE && !is_dir,
            Self::Partition if is_dir => is(&catalog_dir(here)),
            Self::Partition => {
                is(&topology_path(here)) || is(&halo_path(here)) || is_segment_file(name)
            }
        }
    }
}

impl RepairActions {
    /// Finishes or clears away what an earlier repair began in `dir`. A dry run leaves it, and
    /// looks at it as if it were in its place.
    pub(super) fn resume(&mut self, dir: &Path, place: RepairFolder) -> Result<(), StoreError> {
        for entry in self.device.list(dir).map_err(StoreError::io(dir, "list"))? {
            let path = dir.join(&entry.name);
            let is_made = |name: &&str| place.is_made(name, entry.is_dir);
            if entry.name.strip_suffix(BUILDING_SUFFIX).filter(is_made).is_some() {
                self.remove_left(&path, entry.is_dir)?;
            } else if let Some(name) = entry.name.strip_suffix(REPAIRED_SUFFIX).filter(is_made) {
                let place = dir.join(name);
                if self.device.exists(&place) {
                    // It was to take the place of a file that has not moved: look at that again.
                    self.remove_left(&path, entry.is_dir)?;
                } else {
                    self.put_in_place(&path, &place)?;
                    self.note(&place, "finished what an earlier repair had begun".to_owned());
                }
            }
        }
        Ok(())
    }

    fn remove_left(&self, path: &Path, is_dir: bool) -> Result<(), StoreError> {
        if self.is_dry_run() { Ok(()) } else { self.remove(path, is_dir) }
    }

    fn put_in_place(&mut self, from: &Path, place: &Path) -> Result<(), StoreError> {
        if self.is_dry_run() {
            let device = Arc::clone(&self.device);
            let (from, place) = (from.to_owned(), place.to_owned());
            self.device = Arc::new(InPlace { device, from, place });
            return Ok(());
        }
        self.rename(from, place)?;
        self.sync_parent(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_repair_makes_is_its_own() {
        for name in ["topology.csr", "halo.bin", "feat.v1.seg", "a-b_9.v4294967295.seg"] {
            assert!(RepairFolder::Partition.is_made(name, false), "{name}");
            assert!(!RepairFolder::Partition.is_made(name, true), "{name}");
            assert!(!RepairFolder::Graph.is_made(name, false), "{name}");
        }
        assert!(RepairFolder::Partition.is_made("catalog", true));
        assert!(RepairFolder::Graph.is_made("graph.toml", false));
        for name in ["", "site", "catalog", "graph.toml", ".v1.seg", "feat.v01.seg", "feat.seg"] {
            assert!(!RepairFolder::Partition.is_made(name, false), "{name}");
        }
        assert!(
            !RepairFolder::Graph.is_made("site", true)
                && !RepairFolder::Graph.is_made("device.toml", false)
        );
    }
}
