//! Files in a graph's folders, and whether anything names them.

use std::collections::BTreeSet;
use std::path::Path;

use lodestore_graph::PartId;

use super::super::findings::{FileOrder, META_ORDER};
use super::Walk;
use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::file_system::LOCK_FILE;
use crate::graph::{HOT_ROWS_DIR, META_FILE, catalog_dir, newest_version_of};
use crate::new_file::PROBE_NAMES;
use crate::probe::{DEVICE_FILE, StoredProfile};
use crate::quarantine::QUARANTINE_DIR;
use crate::update::holds_only_pending;

impl Walk<'_> {
    /// Looks at the graph's own folder: the profile, and what does not belong there.
    pub(super) fn check_folder(&self) {
        let (fs, dir) = (&**self.graph.file_system(), self.graph.dir());
        match StoredProfile::read(fs, dir) {
            Err(error) if error.origin == ErrorOrigin::System => {
                self.findings.add_error(META_ORDER, dir, None, error.into());
            }
            Err(error) => {
                self.findings.add(META_ORDER, &error.file.clone(), None, error.to_string());
            }
            Ok(_) => {}
        }
        let parts = self.graph.book().parts().map(|part| self.graph.part_dir(part));
        let mut known: BTreeSet<String> = parts.filter_map(|dir| name_of(&dir)).collect();
        let ours = [META_FILE, DEVICE_FILE, QUARANTINE_DIR, HOT_ROWS_DIR, LOCK_FILE];
        known.extend(ours.map(str::to_owned));
        self.list_unknown(META_ORDER, dir, &known);
    }

    /// Looks for what neither the graph nor its catalog names.
    pub(super) fn list_unknown_in_part(
        &self,
        order: FileOrder,
        dir: &Path,
        part: PartId,
        catalog: &Catalog,
    ) {
        let topology = self.graph.topology_path(PartId(0));
        let halo = self.graph.halo_path(PartId(0));
        let paths = [&topology, &halo, &catalog_dir(dir)].map(|path| name_of(path));
        let mut known: BTreeSet<String> = paths.into_iter().flatten().collect();
        let [probe, moved_probe] = PROBE_NAMES;
        known.extend([QUARANTINE_DIR, LOCK_FILE, probe, moved_probe].map(str::to_owned));
        let prepared = catalog.prepared_version().ok().flatten().map_or(0, |it| it.number);
        for tensor in &self.graph.meta().tensors {
            let deltas = catalog.deltas(&tensor.name).unwrap_or_default().into_iter();
            let prepared = catalog.prepared_delta(&tensor.name, prepared).ok().flatten();
            known.extend(deltas.chain(prepared).map(|delta| delta.record.file));
            match catalog.segments(&tensor.name) {
                Ok(records) => known.extend(records.into_iter().map(|(_, record)| record.file)),
                // The segment's turn comes, and reports it.
                Err(_) => return,
            }
        }
        let unknown = self.list_unknown(order, dir, &known);
        if let Err(error) = self.list_later(dir, part, catalog, &unknown) {
            self.findings.add_error(order, dir, None, error);
        }
    }

    /// Looks among unknown files for those that keep the partition from being opened for writing.
    fn list_later(
        &self,
        dir: &Path,
        part: PartId,
        catalog: &Catalog,
        unknown: &[String],
    ) -> Result<(), StoreError> {
        if catalog.has_losses()? {
            // The next repair puts them in quarantine.
            return Ok(());
        }
        let graph = self.graph;
        let committed = catalog.current_version()?;
        for name in unknown {
            let tensors = graph.meta().tensors.iter();
            let mut of =
                tensors.filter_map(|spec| Some((newest_version_of(name, &spec.name)?, spec)));
            let Some((of, spec)) = of.find(|(of, _)| *of > committed) else { continue };
            match holds_only_pending(graph, part, catalog, spec, name, of) {
                Ok(true) => {}
                // A commit that runs has moved on since the catalog was opened.
                _ if graph.catalog(part)?.current_version()? >= of => {}
                Ok(false) => self.findings.add_later(&dir.join(name)),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reports what is in `dir` and not in `known`; returns the names.
    fn list_unknown(&self, order: FileOrder, dir: &Path, known: &BTreeSet<String>) -> Vec<String> {
        match self.graph.file_system().list(dir).map_err(StoreError::io(dir, "list")) {
            Ok(entries) => {
                let names = entries.into_iter().map(|entry| entry.name);
                let unknown: Vec<String> = names.filter(|name| !known.contains(name)).collect();
                unknown.iter().for_each(|name| self.findings.add_unknown(&dir.join(name)));
                unknown
            }
            Err(error) => {
                self.findings.add_error(order, dir, None, error);
                Vec::new()
            }
        }
    }
}

fn name_of(path: &Path) -> Option<String> {
    path.file_name().map(|name| name.to_string_lossy().into_owned())
}
