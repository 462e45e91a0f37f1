//! A catalog that says what was found.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use lodestore_graph::PartId;

use super::super::actions::RepairActions;
use super::contents::{Contents, RowLimits};
use super::tensor::TensorWork;
use crate::catalog::{Catalog, Pair, TensorDelta, TensorRecord};
use crate::error::StoreError;
use crate::graph::{Graph, catalog_dir};

/// The catalog of a partition as it should be.
pub(super) struct CatalogPlan<'a> {
    pub(super) graph: &'a Graph,
    pub(super) part: PartId,
    /// Readable contents of the catalog that is there.
    pub(super) contents: Contents,
    pub(super) work: &'a [TensorWork],
    pub(super) deltas: &'a [TensorDelta],
}

impl CatalogPlan<'_> {
    /// Makes the catalog name the segments of `work`: by one batch, or, if the catalog is broken,
    /// by building another beside it.
    pub(super) fn publish(self, actions: &mut RepairActions) -> Result<(), StoreError> {
        let Self { contents, work, deltas, .. } = &self;
        let dir = catalog_dir(&contents.part_dir);
        let is_new = |record: &&TensorRecord| contents.record(&record.tensor) != Some(*record);
        let changed: Vec<TensorRecord> =
            work.iter().map(|tensor| &tensor.record).filter(is_new).cloned().collect();
        let moves = RowMoves::of(&self)?;
        let reasons = contents.broken.iter().cloned().chain(moves.as_ref().map(RowMoves::text));
        let reasons: Vec<String> = reasons.collect();
        if reasons.is_empty() {
            let has_all = contents.deltas.iter().all(|it| deltas.contains(it));
            let is_same = changed.is_empty() && has_all && deltas.len() == contents.deltas.len();
            let Some(catalog) = contents.catalog.as_ref().filter(|_| !is_same) else {
                return Ok(());
            };
            if !actions.is_dry_run() {
                catalog.replace_records(&changed, deltas, self.version())?;
            }
            let gone = contents.deltas.iter().filter(|it| !deltas.contains(it));
            let tensors = changed.iter().map(|record| &record.tensor);
            let tensors = tensors.chain(gone.map(|it| &it.tensor));
            let tensors: BTreeSet<&str> = tensors.map(String::as_str).collect();
            let tensors: Vec<&str> = tensors.into_iter().collect();
            actions.note(&dir, format!("records of {} changed", tensors.join(", ")));
            return Ok(());
        }
        let reason = reasons.join("; ");
        let action = match &contents.catalog {
            Some(_) => format!("rebuilt with all that makes sense in it ({reason})"),
            None => format!("rebuilt from the segments ({reason})"),
        };
        if !actions.is_dry_run() {
            self.build(actions, moves.as_ref()).inspect_err(|_| actions.clear(&dir))?;
        }
        actions.finish(&dir, action, self.contents.catalog)
    }

    /// Returns the version to commit: no file is of a later one, but for what is prepared.
    fn version(&self) -> u32 {
        let segments = self.work.iter().map(|tensor| tensor.record.version);
        let deltas = self.deltas.iter().filter(|it| !it.is_prepared).map(|it| it.delta.version);
        segments.chain(deltas).chain(self.contents.version).max().unwrap_or(1)
    }

    /// Builds the catalog beside the broken one, whole and synced.
    fn build(&self, actions: &RepairActions, moves: Option<&RowMoves>) -> Result<(), StoreError> {
        let Self { graph, part, contents, work, deltas } = self;
        let device = &*actions.device;
        let dir = actions.building(&catalog_dir(&contents.part_dir));
        let version = self.version();
        let text = graph.meta().to_text();
        let catalog = Catalog::create(device, &dir, graph.uuid(), *part, &text)?;
        let records: Vec<TensorRecord> = work.iter().map(|tensor| tensor.record.clone()).collect();
        catalog.replace_records(&records, deltas, version)?;
        if let Some(old) = &contents.catalog {
            // Followers know the history by them; without them they would have to begin again.
            if let Ok(commits) = old.commits(version) {
                catalog.replace_commits(&commits)?;
            }
            let limits = RowLimits::of(graph, *part, contents.version.unwrap_or(version));
            catalog.copy_rows(old, &mut |pair| match pair {
                Pair::Row { tensor, version: of, row, bytes } => limits
                    .allow(tensor, *of, *row, bytes.len())
                    .then(|| moves.map_or(Some(*of), |it| it.place(tensor, *of)))
                    .flatten(),
                _ => None,
            })?;
        }
        if !contents.losses.is_empty() {
            catalog.note_losses(&contents.losses)?;
        }
        catalog.flush()?;
        drop(catalog);
        for entry in device.list(&dir).map_err(StoreError::io(&dir, "list"))? {
            let path = dir.join(entry.name);
            device.sync(&path).map_err(StoreError::io(&path, "sync"))?;
        }
        device.sync(&dir).map_err(StoreError::io(&dir, "sync"))
    }
}

/// Rows that are pending by an old copy of a catalog, whose files are of later versions. Those that
/// a file has taken in go. The others stay pending, for the version after the files'.
struct RowMoves {
    /// Each tensor with the newest version that a file of it has rows of.
    newest: BTreeMap<String, u32>,
    /// The version that the catalog says is committed.
    committed: u32,
    to: u32,
    /// Each tensor whose rows move, with the version that they were pending for.
    stay: BTreeSet<(String, u32)>,
    taken_in: BTreeSet<(String, u32)>,
}

impl RowMoves {
    /// Returns the rows that change; `None` where all rows keep their version.
    fn of(plan: &CatalogPlan<'_>) -> Result<Option<Self>, StoreError> {
        let CatalogPlan { contents, work, deltas, .. } = plan;
        let (Some(catalog), Some(committed)) = (&contents.catalog, contents.version) else {
            return Ok(None);
        };
        let to = plan.version().saturating_add(1);
        let segments = work.iter().map(|work| (work.record.tensor.clone(), work.record.version));
        let mut newest: BTreeMap<String, u32> = segments.collect();
        for TensorDelta { tensor, delta, .. } in *deltas {
            newest.entry(tensor.clone()).and_modify(|it| *it = delta.version.max(*it));
        }
        let (stay, taken_in) = (BTreeSet::new(), BTreeSet::new());
        let mut this = Self { newest, committed, to, stay, taken_in };
        if to == committed.saturating_add(1) {
            return Ok(None);
        }
        catalog.scan_all(&mut |_, pair| {
            if let Pair::Row { tensor, version, .. } = pair
                && version > committed
                && let place = this.place(tensor, version)
                && place != Some(version)
            {
                let of = if place.is_some() { &mut this.stay } else { &mut this.taken_in };
                of.insert((tensor.to_owned(), version));
            }
            ControlFlow::Continue(())
        })?;
        Ok((!this.stay.is_empty() || !this.taken_in.is_empty()).then_some(this))
    }

    /// Returns the version that rows go to; `None` for those that a file has taken in.
    fn place(&self, tensor: &str, version: u32) -> Option<u32> {
        if version <= self.committed {
            return Some(version);
        }
        let is_taken_in = self.newest.get(tensor).is_some_and(|newest| version <= *newest);
        (!is_taken_in).then_some(version.max(self.to))
    }

    fn text(&self) -> String {
        let to = self.to;
        let stay = self.stay.iter().map(|(tensor, from)| {
            format!(
                "rows of {tensor} that are pending for version {from} are so for version {to} now"
            )
        });
        let taken_in = self.taken_in.iter().map(|(tensor, from)| {
            format!("rows of {tensor} that were pending for version {from} are in a file of it")
        });
        stay.chain(taken_in).collect::<Vec<_>>().join("; ")
    }
}
