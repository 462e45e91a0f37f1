//! The deltas of a partition: which of them are kept, and what is lost of the others.

use std::cmp::Reverse;

use lodestore_graph::PartId;

use super::super::actions::RepairActions;
use super::super::report::Lost;
use super::super::segment::identity_of;
use super::contents::Contents;
use super::tensor::TensorWork;
use crate::catalog::{DeltaRecord, SegmentRecord, TensorDelta};
use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::graph::{Graph, versions_of_delta};
use crate::segment::{Segment, SegmentIdentity};
use crate::tensor::TensorSpec;
use crate::verify::check_stretch;

/// Chooses the deltas over the segments of `work`: those that the catalog names. Where the catalog
/// is an old one or lost, those that the folder has are chosen too. Notes the rows that are lost.
///
/// A delta that cannot be opened moves to quarantine, and its rows have the values of earlier
/// versions. So does one that a damaged segment has taken in: it may have the only copy of rows.
pub(super) fn plan_deltas(
    actions: &mut RepairActions,
    graph: &Graph,
    part: PartId,
    contents: &Contents,
    work: &[TensorWork],
) -> Result<Vec<TensorDelta>, StoreError> {
    let mut kept: Vec<TensorDelta> = Vec::new();
    // A segment of a version that the catalog does not know: the catalog is an old copy.
    let is_later = |work: &TensorWork| contents.version.is_some_and(|it| work.record.version > it);
    let is_old = contents.catalog.is_none() || contents.salvaged || work.iter().any(is_later);
    for TensorWork { record, has_losses, .. } in work {
        let Some(spec) = graph.meta().tensor(&record.tensor) else { continue };
        let named = contents.deltas.iter().filter(|it| it.tensor == spec.name);
        let mut found: Vec<TensorDelta> = named.cloned().collect();
        if is_old {
            let known = |file: &str| contents.deltas.iter().any(|it| it.delta.record.file == file);
            let unnamed = unnamed(actions, graph, part, contents, spec)?.into_iter();
            found.extend(unnamed.filter(|it| !known(&it.delta.record.file)));
        }
        // The widest of several that begin alike: it was folded from the others.
        found.sort_by_key(|it| (it.delta.first, Reverse(it.delta.version)));
        let mut newest = record.version;
        for delta in found {
            if delta.delta.first > newest {
                if look(actions, graph, part, spec, &delta.delta)? {
                    newest = delta.delta.version;
                    kept.push(delta);
                }
            } else if *has_losses && delta.delta.first <= record.version {
                actions.quarantine(&contents.part_dir.join(&delta.delta.record.file))?;
            }
        }
    }
    Ok(kept)
}

/// Returns whether a delta can be kept; notes what is lost of it.
fn look(
    actions: &mut RepairActions,
    graph: &Graph,
    part: PartId,
    spec: &TensorSpec,
    delta: &DeltaRecord,
) -> Result<bool, StoreError> {
    let path = graph.part_dir(part).join(&delta.record.file);
    let (first, last) = (delta.first, delta.version);
    match graph.open_delta(part, spec, delta) {
        Ok(segment) => {
            note_damage(actions, graph, part, spec, &segment);
            Ok(true)
        }
        Err(error) if error.origin() == ErrorOrigin::System => Err(error),
        Err(error) => {
            let reason = format!(
                "{error}: the rows that versions {first} to {last} changed of `{}` have the values of \
                 earlier versions from now on; put them again",
                spec.name
            );
            actions.note_lost(Lost::file(&path, reason));
            actions.quarantine(&path)?;
            Ok(false)
        }
    }
}

/// Notes the rows on damaged pages: they stay, and fail when they are read.
fn note_damage(
    actions: &mut RepairActions,
    graph: &Graph,
    part: PartId,
    spec: &TensorSpec,
    segment: &Segment,
) {
    let mut rows = Vec::new();
    check_stretch(segment, &mut |page, _| rows.extend(segment.layout().rows_on(&(page..page + 1))));
    if rows.is_empty() {
        return;
    }
    rows.sort_unstable();
    rows.dedup();
    let start = graph.book().range(part).start;
    let listed = segment.listed_rows();
    let nodes = rows.iter().filter_map(|&row| listed.get(row as usize)).map(|row| start + row);
    let reason = "damaged pages; they stay, and fail when read".to_owned();
    let nodes = nodes.map(|node| node..node + 1);
    actions.note_lost(Lost::rows(segment.path(), &spec.name, nodes, reason));
}

/// Deltas of a tensor that the folder has, as they say themselves what they are.
fn unnamed(
    actions: &RepairActions,
    graph: &Graph,
    part: PartId,
    contents: &Contents,
    spec: &TensorSpec,
) -> Result<Vec<TensorDelta>, StoreError> {
    let (device, dir) = (&*actions.device, &contents.part_dir);
    let range = graph.book().range(part);
    let mut found = Vec::new();
    for entry in device.list(dir).map_err(StoreError::io(dir, "list"))? {
        let Some((first, version)) = versions_of_delta(&entry.name, &spec.name) else { continue };
        let path = dir.join(&entry.name);
        let Some(identity) = device.open(&path).ok().and_then(|file| identity_of(&*file)) else {
            continue;
        };
        let expected = SegmentIdentity {
            graph: graph.uuid(),
            part,
            version,
            tensor: spec.clone(),
            delta_of: Some(range.end - range.start),
            ..identity.clone()
        };
        if identity != expected {
            continue;
        }
        let Ok(segment) = Segment::open(device, &path, &identity) else { continue };
        let record = SegmentRecord {
            segment: identity.segment,
            n_rows: identity.n_rows,
            row_bytes: spec.row_bytes() as u32,
            digest: *segment.digest(),
            file: entry.name,
        };
        let delta = DeltaRecord { first, version, record };
        found.push(TensorDelta { tensor: spec.name.clone(), delta, is_prepared: false });
    }
    Ok(found)
}
