//! When each node of a batch is needed next: what Belady's MIN wants to know.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Schedule, ScheduleError};
use crate::file_error::FileError;

/// No later batch needs the node.
pub const NEVER: u32 = u32::MAX;

/// The next uses of one worker's nodes over a whole run, in a private file.
///
/// The file has 4 bytes per node and batch, and is gone when this is. In memory are 16 bytes per
/// batch.
#[derive(Debug)]
pub struct NextUses {
    path: PathBuf,
    file: File,
    worker: u32,
    batches_per_epoch: u32,
    /// By number of the batch.
    places: Vec<NextUseExtent>,
}

/// Where the next uses of a batch lie.
#[derive(Clone, Copy, Debug, Default)]
struct NextUseExtent {
    offset: u64,
    n_nodes: u32,
    crc: u32,
}

impl NextUses {
    /// Reads all batches of `worker`, last to first, and writes what it finds beside the schedule
    /// to `scratch`, which must not exist. Memory: 4 bytes per node of the graph, 16 per batch, and
    /// one batch.
    pub fn of(schedule: &Schedule, worker: u32, scratch: &Path) -> Result<Self, ScheduleError> {
        let batches_per_epoch = schedule.n_batches(worker);
        let found = u64::from(batches_per_epoch) * u64::from(schedule.spec().epochs);
        let most = u64::from(NEVER - 1);
        if found > most {
            return Err(ScheduleError::Spec { name: "batches of a worker", most, found });
        }
        let options = File::options().read(true).write(true).create_new(true).open(scratch);
        let file = options.map_err(FileError::at(scratch, "create"))?;
        // The file lives as long as it is open.
        fs::remove_file(scratch).map_err(FileError::at(scratch, "unlink"))?;
        let (path, places) = (scratch.to_owned(), vec![NextUseExtent::default(); found as usize]);
        let mut uses = Self { path, file, worker, batches_per_epoch, places };
        let mut next_of = vec![NEVER; schedule.n_nodes() as usize];
        let (mut next, mut offset) = (Vec::new(), 0);
        for number in (0..found as u32).rev() {
            let (epoch, batch) = (number / batches_per_epoch, number % batches_per_epoch);
            let nodes = schedule.get(worker, epoch, batch)?.nodes;
            next.clear();
            next.extend(
                nodes.iter().map(|node| std::mem::replace(&mut next_of[node.index()], number)),
            );
            let bytes: &[u8] = bytemuck::cast_slice(&next);
            let written = uses.file.write_all_at(bytes, offset);
            written.map_err(FileError::at(&uses.path, "write"))?;
            let (n_nodes, crc) = (next.len() as u32, crc32fast::hash(bytes));
            uses.places[number as usize] = NextUseExtent { offset, n_nodes, crc };
            offset += bytes.len() as u64;
        }
        Ok(uses)
    }

    /// Returns, for each node of the batch in its order, the number of the worker's next batch that
    /// has it, or [`NEVER`]. Batch b of epoch e has number e × batches per epoch + b.
    pub fn get(&self, epoch: u32, batch: u32) -> Result<Vec<u32>, ScheduleError> {
        let number = u64::from(epoch) * u64::from(self.batches_per_epoch) + u64::from(batch);
        let place = usize::try_from(number).ok().and_then(|number| self.places.get(number));
        let place = place.filter(|_| batch < self.batches_per_epoch);
        let Some(&NextUseExtent { offset, n_nodes, crc: expected }) = place else {
            return Err(ScheduleError::NoSuchBatch { epoch, worker: self.worker, batch });
        };
        let mut next = vec![0u32; n_nodes as usize];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut next);
        self.file.read_exact_at(bytes, offset).map_err(FileError::at(&self.path, "read"))?;
        let found = crc32fast::hash(bytes);
        ScheduleError::check_crc(&self.path, "list of next uses", offset, expected, found)?;
        Ok(next)
    }
}
