//! The few ways in which repair changes a graph. Each keeps the only copy of anything, and each
//! step is one rename: a repair that was cut off is finished by the next.
//!
//! A file is built under `NAME.building`; once it is whole and synced it is called `NAME.repaired`.
//! Then the original moves to `quarantine/NAME.N`, and `NAME.repaired` to `NAME`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::report::{Done, Lost, Moved, RepairMode, RepairReport};
use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::file_system::{Access, FileSystem, FileWriter, Guard};
use crate::graph::{META_FILE, catalog_dir, halo_path, is_segment_file, topology_path};
use crate::new_file::replace_file;
use crate::quarantine::{make_quarantine, quarantine, quarantine_place};

const BUILDING_SUFFIX: &str = ".building";
const REPAIRED_SUFFIX: &str = ".repaired";

/// Actions of building a file.
pub(super) type WriteFile<'a> = dyn FnMut(&mut dyn FileWriter) -> std::io::Result<()> + 'a;

/// A folder that repair works in.
#[derive(Clone, Copy, Debug)]
pub(super) enum RepairFolder {
    Graph,
    Partition,
}

/// Changes a graph and notes what it did; a dry run notes only.
#[derive(Debug)]
pub(super) struct RepairActions {
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) report: RepairReport,
    pub(super) n_threads: usize,
    /// Locks of all partitions that are here, unless this is a dry run.
    pub(super) guards: Vec<Guard>,
    /// Catalogs that keep losses until they are reported.
    pub(super) with_losses: Vec<PathBuf>,
}

impl RepairActions {
    pub(super) fn new(fs: Arc<dyn FileSystem>, mode: RepairMode, n_threads: usize) -> Self {
        let dry_run = mode == RepairMode::DryRun;
        let report = RepairReport { dry_run, ..RepairReport::default() };
        Self { fs, report, n_threads, guards: Vec::new(), with_losses: Vec::new() }
    }

    pub(super) fn is_dry_run(&self) -> bool {
        self.report.dry_run
    }

    /// Notes what was done, or would be.
    pub(super) fn note(&mut self, path: &Path, action: String) {
        self.report.done.push(Done { file: path.display().to_string(), action });
    }

    pub(super) fn note_lost(&mut self, lost: Lost) {
        self.report.lost.push(lost);
    }

    /// Puts a file at `path`; what is there moves to quarantine first.
    pub(super) fn publish(
        &mut self,
        path: &Path,
        action: String,
        write: &mut WriteFile<'_>,
    ) -> Result<(), StoreError> {
        if !self.is_dry_run() {
            let building = with_suffix(path, BUILDING_SUFFIX);
            let mut file =
                self.fs.create(&building).map_err(StoreError::io(&building, "create"))?;
            let written = write(&mut *file).and_then(|()| file.sync());
            drop(file);
            let written = written.map_err(StoreError::io(&building, "write"));
            written.inspect_err(|_| self.clear(path))?;
        }
        self.finish(path, action, (), &[])
    }

    /// Returns where a folder is built that [`RepairActions::finish`] puts in its place.
    pub(super) fn building(&self, path: &Path) -> PathBuf {
        with_suffix(path, BUILDING_SUFFIX)
    }

    /// Removes what is half built for `path`, so that it takes no room; the next repair does it
    /// where that fails.
    pub(super) fn clear(&self, path: &Path) {
        let building = with_suffix(path, BUILDING_SUFFIX);
        let removed = self.fs.remove_file(&building);
        if removed.is_err() && self.fs.list(&building).is_ok() {
            let _ = self.fs.remove_dir_all(&building);
        }
    }

    /// Moves what was built for `path`, and is synced, to its place. `held` is released once the
    /// original has moved, so that a lock on it covers the move. Then `aside` go to quarantine.
    pub(super) fn finish<T>(
        &mut self,
        path: &Path,
        action: String,
        held: T,
        aside: &[PathBuf],
    ) -> Result<(), StoreError> {
        if self.is_dry_run() {
            self.quarantine(path)?;
            aside.iter().try_for_each(|path| self.quarantine(path))?;
        } else {
            let repaired = with_suffix(path, REPAIRED_SUFFIX);
            self.rename(&with_suffix(path, BUILDING_SUFFIX), &repaired)?;
            self.sync_parent(path)?;
            self.quarantine(path)?;
            drop(held);
            aside.iter().try_for_each(|path| self.quarantine(path))?;
            self.rename(&repaired, path)?;
            self.sync_parent(path)?;
        }
        self.note(path, action);
        Ok(())
    }

    /// Moves what is at `path`, if anything is, to the quarantine of its folder.
    pub(super) fn quarantine(&mut self, path: &Path) -> Result<(), StoreError> {
        if !self.fs.exists(path) {
            return Ok(());
        }
        let to = match self.is_dry_run() {
            true => quarantine_place(&*self.fs, path)?,
            false => quarantine(&*self.fs, path)?,
        };
        let (from, to) = (path.display().to_string(), to.display().to_string());
        self.report.quarantined.push(Moved { from, to });
        Ok(())
    }

    /// Writes the report, which is complete, to the quarantine of the graph's folder; durable then.
    ///
    /// Of a repair that changed nothing none is kept: another one finds the same.
    pub(super) fn keep_report(&mut self, dir: &Path) -> Result<(), StoreError> {
        let has_changes = self.report.has_changes() || !self.with_losses.is_empty();
        if self.is_dry_run() || !has_changes {
            return Ok(());
        }
        let fs = &*self.fs;
        let folder = make_quarantine(fs, dir)?;
        let path = report_place(fs, &folder)?;
        self.report.kept_in = Some(path.display().to_string());
        let mut kept = self.report.clone();
        kept.ok = kept.is_whole();
        let bytes = serde_json::to_vec_pretty(&kept);
        let bytes = bytes.map_err(|error| StoreError::io(&path, "write")(error.into()))?;
        replace_file(fs, &path, &bytes)
    }

    /// Removes what catalogs have kept for the report, which is complete.
    pub(super) fn forget_losses(&self) -> Result<(), StoreError> {
        if self.is_dry_run() {
            return Ok(());
        }
        for dir in &self.with_losses {
            let catalog = Catalog::open_unchecked(&*self.fs, dir, Access::Write)?;
            catalog.forget_losses()?;
            catalog.flush()?;
        }
        Ok(())
    }

    /// Finishes or clears away what an earlier repair began in `dir`. A dry run leaves it, and
    /// notes what is to be finished.
    pub(super) fn resume(&mut self, dir: &Path, place: RepairFolder) -> Result<(), StoreError> {
        for entry in self.fs.list(dir).map_err(StoreError::io(dir, "list"))? {
            let path = dir.join(&entry.name);
            let is_made = |name: &&str| place.is_made(name, entry.is_dir);
            let built = entry.name.strip_suffix(BUILDING_SUFFIX).filter(is_made);
            let repaired = entry.name.strip_suffix(REPAIRED_SUFFIX).filter(is_made);
            // A whole one may be to take the place of a file that has not moved: that is looked at
            // again.
            let to_finish = repaired.map(|name| dir.join(name));
            let to_finish = to_finish.filter(|place| !self.fs.exists(place));
            if let Some(place) = to_finish {
                if !self.is_dry_run() {
                    self.rename(&path, &place)?;
                    self.sync_parent(&place)?;
                }
                self.note(&place, "finished what an earlier repair had begun".to_owned());
            } else if built.or(repaired).is_some() && !self.is_dry_run() {
                let removed = match entry.is_dir {
                    true => self.fs.remove_dir_all(&path),
                    false => self.fs.remove_file(&path),
                };
                removed.map_err(StoreError::io(&path, "remove"))?;
            }
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.fs.rename(from, to).map_err(StoreError::io(from, "move"))
    }

    fn sync_parent(&self, path: &Path) -> Result<(), StoreError> {
        let Some(parent) = path.parent() else { return Ok(()) };
        self.fs.sync(parent).map_err(StoreError::io(parent, "sync"))
    }
}

/// Returns the path of the next report in a folder.
fn report_place(fs: &dyn FileSystem, folder: &Path) -> Result<PathBuf, StoreError> {
    let entries = fs.list(folder).map_err(StoreError::io(folder, "list"))?;
    let number =
        |name: &str| name.strip_prefix("report-")?.strip_suffix(".json")?.parse::<u64>().ok();
    let last = entries.iter().filter_map(|entry| number(&entry.name)).max().unwrap_or(0);
    Ok(folder.join(format!("report-{}.json", last.saturating_add(1))))
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

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::{fs, io};

    use super::*;
    use crate::file_system::Disk;

    #[test]
    fn what_could_not_be_written_takes_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("halo.bin");
        fs::write(&path, b"old").unwrap();
        let mut actions = RepairActions::new(Arc::new(Disk), RepairMode::Apply, 1);
        let full = |out: &mut dyn FileWriter| {
            out.append(&[1; 5000])?;
            Err(io::ErrorKind::StorageFull.into())
        };
        actions.publish(&path, String::new(), &mut { full }).unwrap_err();
        assert_eq!(Disk.list(dir.path()).unwrap().len(), 1);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        fs::create_dir(dir.path().join("catalog.building")).unwrap();
        actions.clear(&dir.path().join("catalog"));
        assert_eq!(Disk.list(dir.path()).unwrap().len(), 1);
    }

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
