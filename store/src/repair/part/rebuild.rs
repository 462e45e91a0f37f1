//! A catalog that says what was found.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use lodestore_graph::PartId;

use super::super::workshop::Workshop;
use super::contents::{Contents, is_row};
use super::tensor::TensorWork;
use crate::catalog::{Catalog, Pair, TensorDelta, TensorRecord};
use crate::error::StoreError;
use crate::graph::{Graph, catalog_dir};

/// Makes the catalog name the segments of `work`: by one batch, or, if the catalog is broken, by
/// building another beside it.
pub(super) fn publish_catalog(
    shop: &mut Workshop,
    graph: &Graph,
    part: PartId,
    contents: Contents,
    work: &[TensorWork],
    deltas: &[TensorDelta],
) -> Result<(), StoreError> {
    let dir = catalog_dir(&contents.part_dir);
    let is_new = |record: &&TensorRecord| contents.record(&record.tensor) != Some(*record);
    let changed: Vec<TensorRecord> =
        work.iter().map(|tensor| &tensor.record).filter(is_new).cloned().collect();
    let moved = Moved::of(&contents, work, deltas)?;
    let reasons = contents.broken.iter().cloned().chain(moved.as_ref().map(Moved::text));
    let reasons: Vec<String> = reasons.collect();
    if reasons.is_empty() {
        let has_all = contents.deltas.iter().all(|it| deltas.contains(it));
        let is_same = changed.is_empty() && has_all && deltas.len() == contents.deltas.len();
        let Some(catalog) = contents.catalog.as_ref().filter(|_| !is_same) else {
            return Ok(());
        };
        if !shop.is_dry_run() {
            catalog.replace_records(&changed, deltas, version(&contents, work, deltas))?;
        }
        let gone = contents.deltas.iter().filter(|it| !deltas.contains(it));
        let tensors = changed.iter().map(|record| &record.tensor).chain(gone.map(|it| &it.tensor));
        let tensors: BTreeSet<&str> = tensors.map(String::as_str).collect();
        let tensors: Vec<&str> = tensors.into_iter().collect();
        shop.note(&dir, format!("records of {} changed", tensors.join(", ")));
        return Ok(());
    }
    let reason = reasons.join("; ");
    let action = match &contents.catalog {
        Some(_) => format!("built anew with all that makes sense in it ({reason})"),
        None => format!("built anew from the segments ({reason})"),
    };
    if !shop.is_dry_run() {
        let built = build(shop, graph, part, &contents, (work, deltas), moved.as_ref());
        built.inspect_err(|_| shop.clear(&dir))?;
    }
    shop.finish(&dir, action, contents.catalog)
}

/// Pending rows that would count as committed, since a segment of another tensor is of a later
/// version than the catalog: they stay pending.
struct Moved {
    tensors: BTreeSet<String>,
    from: u32,
    to: u32,
}

impl Moved {
    fn of(
        contents: &Contents,
        work: &[TensorWork],
        deltas: &[TensorDelta],
    ) -> Result<Option<Self>, StoreError> {
        let to = version(contents, work, deltas).saturating_add(1);
        let (Some(catalog), Some(committed)) = (&contents.catalog, contents.version) else {
            return Ok(None);
        };
        let from = committed.saturating_add(1);
        if from == to {
            return Ok(None);
        }
        let is_behind = |tensor: &str| {
            let mut work = work.iter().map(|tensor| &tensor.record);
            work.any(|record| record.tensor == tensor && record.version <= committed)
        };
        let mut tensors = BTreeSet::new();
        catalog.scan_all(&mut |_, pair| {
            if let Pair::Row { tensor, version, .. } = pair
                && version == from
                && is_behind(tensor)
                && !tensors.contains(tensor)
            {
                tensors.insert(tensor.to_owned());
            }
            ControlFlow::Continue(())
        })?;
        Ok((!tensors.is_empty()).then_some(Self { tensors, from, to }))
    }

    /// The version that rows go to, if they move.
    fn place(&self, tensor: &str, version: u32) -> Option<u32> {
        (version == self.from && self.tensors.contains(tensor)).then_some(self.to)
    }

    fn text(&self) -> String {
        let tensors: Vec<&str> = self.tensors.iter().map(String::as_str).collect();
        let (tensors, Self { from, to, .. }) = (tensors.join(", "), self);
        format!("rows of {tensors} that are pending for version {from} are so for version {to} now")
    }
}

/// The version to commit: no file is of a later one, but for what is prepared.
fn version(contents: &Contents, work: &[TensorWork], deltas: &[TensorDelta]) -> u32 {
    let segments = work.iter().map(|tensor| tensor.record.version);
    let deltas = deltas.iter().filter(|it| !it.is_prepared).map(|it| it.delta.version);
    segments.chain(deltas).chain(contents.version).max().unwrap_or(1)
}

/// Builds the catalog beside the broken one, whole and synced.
fn build(
    shop: &Workshop,
    graph: &Graph,
    part: PartId,
    contents: &Contents,
    (work, deltas): (&[TensorWork], &[TensorDelta]),
    moved: Option<&Moved>,
) -> Result<(), StoreError> {
    let device = &*shop.device;
    let dir = shop.building(&catalog_dir(&contents.part_dir));
    let version = version(contents, work, deltas);
    let range = graph.book().range(part);
    let n_rows = range.end - range.start;
    let catalog = Catalog::create(device, &dir, graph.uuid(), part, &graph.meta().to_text())?;
    let records: Vec<TensorRecord> = work.iter().map(|tensor| tensor.record.clone()).collect();
    catalog.replace_records(&records, deltas, version)?;
    if let Some(old) = &contents.catalog {
        catalog.copy_rows(old, &mut |pair| match pair {
            Pair::Row { tensor, version: of, row, bytes } => {
                let committed = contents.version.unwrap_or(version);
                is_row(graph, tensor, *of, *row, bytes.len(), committed, n_rows)
                    .then(|| moved.and_then(|it| it.place(tensor, *of)).unwrap_or(*of))
            }
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
