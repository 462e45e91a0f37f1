//! Repair: rebuilds what a checksum or a digest proves, reports the rest, destroys no only copy.
//!
//! - A segment's tables are right when the catalog's digest knows them, and pages are right when
//!   they agree with such tables. Header and footer follow from the catalog and the tables.
//! - A catalog follows from the files that are whole by themselves, except for the rows that were
//!   put over them.
//! - `graph.toml` is kept in every catalog.
//! - A halo follows from topology.
//!
//! Rows and topology are in one place only. A file that nothing proves moves to quarantine, or
//! stays and fails when it is read, and the report says what to restore.
//! `docs/format.md` has the proofs and the faults in tables.
//!
//! Crash argument: see `actions`. A repair that was cut off at any step and runs again ends where
//! it would have ended. Each step looks at what is there, and changes it by one rename or one batch
//! of a catalog. That batch has the losses, too, which could not be found again. They leave the
//! catalogs when the report is in a file.

mod actions;
mod catalog;
mod description;
mod lists;
mod partitions;
mod report;
mod segment;
mod tensor;

use std::path::Path;
use std::sync::Arc;
use std::thread;

use lodestore_graph::PartId;

pub use report::{Done, Lost, Moved, RepairMode, RepairReport};

use crate::error::StoreError;
use crate::error_origin::ErrorOrigin;
use crate::file_system::{Disk, FileSystem};
use crate::graph::{Graph, META_FILE};
use crate::probe::{DEVICE_FILE, StoredProfile};
use actions::RepairActions;

/// Repairs the graph in `dir`, or reports what it would do; `progress` receives partitions done and
/// partitions in all.
///
/// Takes the lock of every partition, or fails with [`StoreError::Locked`]. Fails too for files of
/// a later format, which it does not touch, and when nothing is left that says what the graph is.
/// An error that comes when something has been changed is in the report, with what has been done.
pub fn repair(
    dir: &Path,
    mode: RepairMode,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RepairReport, StoreError> {
    repair_on(Arc::new(Disk), dir, mode, n_threads(), progress)
}

/// Does as [`repair`], of these partitions, which must be here; no other is locked or looked at.
pub fn repair_parts(
    dir: &Path,
    parts: &[PartId],
    mode: RepairMode,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RepairReport, StoreError> {
    let actions = RepairActions::new(Arc::new(Disk), mode, n_threads());
    repair_some(actions, dir, Some(parts), progress)
}

/// Like [`repair`], on any file system and with as many threads as asked for, at least one.
pub fn repair_on(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    mode: RepairMode,
    n_threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RepairReport, StoreError> {
    repair_some(RepairActions::new(fs, mode, n_threads), dir, None, progress)
}

/// Returns more threads than cores: while one waits for the disk, another computes.
fn n_threads() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get) * 2
}

fn repair_some(
    mut actions: RepairActions,
    dir: &Path,
    parts: Option<&[PartId]>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RepairReport, StoreError> {
    let is_dry_run = actions.is_dry_run();
    let outcome = restore(&mut actions, dir, parts, progress);
    let mut report = actions.report;
    match outcome {
        Ok(()) => report.ok = report.is_whole(),
        Err(error) if is_dry_run || (report.done.is_empty() && report.quarantined.is_empty()) => {
            return Err(error);
        }
        // Completed steps remain, and rows that are lost by then stay lost.
        Err(error) => report.stopped = Some(error.to_string()),
    }
    Ok(report)
}

/// Returns the graph in `dir` as repair would describe it; `None` without any source. Changes
/// nothing.
pub(crate) fn describe(fs: Arc<dyn FileSystem>, dir: &Path) -> Option<Graph> {
    let mut actions = RepairActions::new(fs, RepairMode::DryRun, 1);
    let partitions = partitions::open_all(&mut actions, dir, None).ok()?;
    description::find(&actions.fs, dir, &partitions).ok().map(|(graph, _)| graph)
}

/// Repairs everything of `parts`, or of all partitions, one thing after the other.
fn restore(
    actions: &mut RepairActions,
    dir: &Path,
    parts: Option<&[PartId]>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), StoreError> {
    let mut partitions = partitions::open_all(actions, dir, parts)?;
    if actions.is_dry_run() && !actions.report.done.is_empty() {
        let reason = "an earlier repair was cut off, and is finished before the rest is looked at";
        actions.report.stopped = Some(reason.to_owned());
        return Ok(());
    }
    partitions::refuse_newer(actions, dir, partitions.values())?;
    let (graph, rebuilt) = description::find(&actions.fs, dir, &partitions)?;
    if let Some(action) = rebuilt {
        let text = graph.meta().to_text();
        actions.publish(&dir.join(META_FILE), action, &mut |file| file.append(text.as_bytes()))?;
    }
    restore_profile(actions, dir)?;
    parts.unwrap_or_default().iter().try_for_each(|&part| graph.check_part(part))?;
    let is_asked_for = |part: &PartId| parts.is_none_or(|parts| parts.contains(part));
    let asked_for: Vec<PartId> = graph.book().parts().filter(is_asked_for).collect();
    let total = asked_for.len() as u64 + 1;
    for (&part, done) in asked_for.iter().zip(1u64..) {
        match partitions.remove(&part) {
            Some(partition) => catalog::restore(actions, &graph, partition)?,
            None if parts.is_none() => actions.report.absent.push(part.0),
            None => {
                let reason = "the folder of the partition is missing; fetch it from a replica";
                let reason = reason.to_owned();
                actions.note_lost(Lost::file(&graph.part_dir(part), reason));
            }
        }
        progress(done, total);
    }
    lists::restore(actions, &graph, &asked_for)?;
    progress(total, total);
    // What the catalogs forget then outlives this process.
    actions.keep_report(dir)?;
    actions.forget_losses()
}

/// Moves a damaged profile out of the way: the disk can be measured again.
fn restore_profile(actions: &mut RepairActions, dir: &Path) -> Result<(), StoreError> {
    if let Err(error) = StoredProfile::read(&*actions.fs, dir) {
        let path = dir.join(DEVICE_FILE);
        if error.origin == ErrorOrigin::System {
            return Err(error.into());
        }
        actions.quarantine(&path)?;
        actions.note(&path, format!("taken out of the way: {}", error.reason));
    }
    Ok(())
}

/// Returns the error of a damaged file; fails with one of a later format, and with that of a system
/// that refuses to look.
fn as_damage(error: StoreError) -> Result<StoreError, StoreError> {
    let is_damage = error.origin() != ErrorOrigin::System;
    let is_newer = matches!(error, StoreError::NewerFormat { .. });
    if is_damage && !is_newer { Ok(error) } else { Err(error) }
}

#[cfg(test)]
mod tests;
