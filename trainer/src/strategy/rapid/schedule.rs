//! The schedule of `rapid`: where it comes from, and the memory that goes with it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::available_parallelism,
};

use lodestore_client::budget::RowBudget;
use lodestore_client::keep::Keep;
use lodestore_graph::schedule::{
    Schedule, ScheduleInput, ScheduleSpec, estimate_bytes, is_schedule_of, write_schedule,
};

use tracing::warn;

use super::config::ScheduleConfig;
use crate::error::TrainError;
use crate::setup::{Setup, owned_parts};

/// A schedule on disk.
pub(crate) struct Written {
    pub(crate) schedule: Arc<Schedule>,
    pub(super) path: PathBuf,
    /// Whether it lay there whole, from a run before.
    pub(crate) is_stored: bool,
    pub(crate) seconds: f64,
    /// Sizes of hot sets and window as they fit into the memory budget.
    pub(crate) budget: RowBudget,
    pub(crate) bound_bytes: u64,
    /// Rows that the window and the batch in hand may have.
    pub(super) n_spare: usize,
}

impl Written {
    /// Fails unless it is the schedule with this digest, the one of the first process.
    pub(super) fn check_digest(&self, expected: &str) -> Result<(), TrainError> {
        let found = self.schedule.digest_hex();
        if found == expected {
            return Ok(());
        }
        let fault = format!("is another one here ({found}) than there ({expected})");
        Err(TrainError::ScheduleElsewhere { path: self.path.display().to_string(), fault })
    }
}

fn schedule_spec(setup: &Setup<'_>) -> ScheduleSpec {
    let config = setup.config;
    ScheduleSpec {
        graph_uuid: setup.graph.uuid,
        seed: config.seed,
        fanouts: config.fanouts.clone(),
        batch_size: config.batch_size,
        epochs: config.epochs,
        workers: config.workers,
        deal: setup.root_plan().deal,
    }
}

/// Writes the schedule, unless it is there; true if it is.
pub(super) fn write(
    setup: &Setup<'_>,
    config: &ScheduleConfig,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<bool, TrainError> {
    let (path, spec, train) = (&config.path, schedule_spec(setup), &setup.labels.train);
    let (topology, book) = (setup.graph.topology, setup.graph.book);
    if is_schedule_of(&spec, topology.n_nodes(), book, train, path) {
        return Ok(true);
    }
    if !config.replaces_other && path.exists() {
        Schedule::refuse_other_file(path)?;
        let (path, differs) = (path.display().to_string(), difference(&spec, path));
        return Err(TrainError::OtherSchedule { path, differs });
    }
    let input = ScheduleInput { topology, book, train_roots: train };
    let estimate = estimate_bytes(&input, &spec)?;
    let mut n_bytes = estimate.schedule_bytes;
    // Only the oracle needs the next uses of nodes.
    if config.keep == Keep::Oracle {
        n_bytes = n_bytes.saturating_add(estimate.next_use_bytes);
    }
    check_room(path, &spec, n_bytes)?;
    let n_threads = available_parallelism().map_or(1, usize::from);
    write_schedule(&input, &spec, path, n_threads, progress)?;
    Ok(false)
}

pub(super) fn open(
    setup: &Setup<'_>,
    config: &ScheduleConfig,
    path: PathBuf,
    is_stored: bool,
    seconds: f64,
) -> Result<Written, TrainError> {
    let elsewhere = |error| TrainError::ScheduleElsewhere {
        path: path.display().to_string(),
        fault: format!("cannot be opened here: {error}"),
    };
    let schedule = Arc::new(Schedule::open(&path).map_err(elsewhere)?);
    schedule.expect_graph(setup.graph.uuid, setup.graph.topology.n_nodes())?;
    let (max_nodes, row_bytes) = (schedule.max_ids() as usize, setup.row_bytes);
    let n_hot = config.n_hot.min(config.keep.n_hot_of(most_kept(setup)));
    let mut budget = RowBudget { n_hot, window: config.window };
    if let Some(found) = config.memory_budget_bytes {
        let least = RowBudget { n_hot: 0, window: 0 }.bound_bytes(max_nodes, row_bytes);
        let fit = budget.fit(found, max_nodes, row_bytes);
        budget = fit.ok_or(TrainError::Memory { found, least, max_nodes, row_bytes })?;
    }
    let bound_bytes = budget.bound_bytes(max_nodes, row_bytes);
    let kept_bytes = budget.bound_bytes(0, row_bytes);
    let n_spare = (bound_bytes - kept_bytes) / (row_bytes as u64).max(1);
    let n_spare = usize::try_from(n_spare).unwrap_or(usize::MAX);
    Ok(Written { schedule, path, is_stored, seconds, budget, bound_bytes, n_spare })
}

/// Returns the rows that a worker keeps at most: those that it does not own.
fn most_kept(setup: &Setup<'_>) -> usize {
    let n_owned = |worker| -> usize {
        let owned = owned_parts(setup.config, setup.graph, worker);
        owned.into_iter().map(|part| setup.graph.book.range(part).len()).sum()
    };
    let n_owned = (0..setup.config.workers).map(n_owned).min().unwrap_or(0);
    setup.graph.book.n_nodes() as usize - n_owned
}

/// Returns in words the first thing in which the schedule at `path` is not one of `spec`.
fn difference(spec: &ScheduleSpec, path: &Path) -> String {
    let schedule = match Schedule::open(path) {
        Ok(schedule) => schedule,
        Err(error) => return error.to_string(),
    };
    let fanouts = |of: &ScheduleSpec| {
        of.fanouts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    };
    let facts = |of: &ScheduleSpec| {
        [
            ("deal of roots", format!("{:?}", of.deal).to_lowercase()),
            ("number of workers", of.workers.to_string()),
            ("batch size", of.batch_size.to_string()),
            ("fan-out", fanouts(of)),
            ("seed", of.seed.to_string()),
            ("number of epochs", of.epochs.to_string()),
        ]
    };
    let mut both = facts(schedule.spec()).into_iter().zip(facts(spec));
    match both.find(|((_, found), (_, expected))| found != expected) {
        Some(((what, found), (_, expected))) => {
            format!("its {what} is {found}, expected {expected}")
        }
        None => "it is of another graph or of other training nodes, or damaged".to_owned(),
    }
}

/// Fails where the `expected` bytes exceed the room on the disk by more than half, and warns where
/// they exceed it at all. The estimate comes from a few batches and is rough. It has the bytes of
/// the schedule, and of what `rapid` works out from it.
fn check_room(path: &Path, spec: &ScheduleSpec, expected: u64) -> Result<(), TrainError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // A disk that does not report its room is tried.
    let Ok(disk) = rustix::fs::statvfs(folder.unwrap_or(Path::new("."))) else { return Ok(()) };
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let begun = std::fs::metadata(partial).map_or(0, |of| of.len());
    let found = disk.f_bavail.saturating_mul(disk.f_frsize).saturating_add(begun);
    if expected <= found {
        return Ok(());
    }
    let path = path.display().to_string();
    if expected <= found.saturating_add(found / 2) {
        warn!(
            path,
            expected, found, "the schedule may not fit onto the disk, by its first batches"
        );
        return Ok(());
    }
    Err(TrainError::ScheduleRoom { path, expected, found, epochs: spec.epochs })
}
