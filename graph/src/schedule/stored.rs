//! Whether a schedule that is there is the one that would be written.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::header;
use super::partial::is_of;
use super::{Schedule, ScheduleError, ScheduleSpec};
use crate::book::PartitionBook;
use crate::file_error::FileError;
use crate::ids::NodeId;
use crate::sampler::epoch_order;

/// Returns whether `path` holds the whole schedule that [`super::write_schedule`] would write for
/// these arguments. A file that is damaged where this looks is none.
///
/// The header says all that batches depend on but the list of roots. Every epoch goes through all
/// of them, so the first decides whether they are the same: its batches are read, the others not.
#[must_use]
pub fn is_schedule_of(
    spec: &ScheduleSpec,
    n_nodes: u32,
    book: &PartitionBook,
    train_roots: &[NodeId],
    path: &Path,
) -> bool {
    let Ok(schedule) = Schedule::open(path) else { return false };
    if schedule.spec() != spec || schedule.n_nodes() != n_nodes {
        return false;
    }
    has_roots(&schedule, book, train_roots).unwrap_or(false)
}

impl Schedule {
    /// Fails if there is a file at `path` that does not begin as a schedule does. It is no schedule
    /// and must not be replaced.
    pub fn refuse_other_file(path: &Path) -> Result<(), ScheduleError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(FileError::at(path, "look at")(error).into()),
        };
        let mut found = Vec::new();
        let read = file.take(header::MAGIC.len() as u64).read_to_end(&mut found);
        read.map_err(FileError::at(path, "read"))?;
        if header::MAGIC.starts_with(&found) {
            return Ok(());
        }
        Err(ScheduleError::Format {
            path: path.to_owned(),
            what: "the name is taken",
            expected: "no file, or a schedule".to_owned(),
            found: "another file; move it away, or give another name".to_owned(),
        })
    }
}

fn has_roots(
    schedule: &Schedule,
    book: &PartitionBook,
    train_roots: &[NodeId],
) -> Result<bool, ScheduleError> {
    let plan = schedule.spec().roots(book);
    let order = epoch_order(plan.seed, 0, train_roots);
    for worker in 0..plan.workers {
        let batches = plan.batches(&order, worker);
        if batches.len() as u64 != u64::from(schedule.n_batches(worker)) {
            return Ok(false);
        }
        for (found, roots) in schedule.batches(worker, 0).zip(batches) {
            if !is_of(found?.roots(), &roots) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
