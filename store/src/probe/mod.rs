//! Measures the disk under a folder as the direct reader uses it.

mod cell;
mod fit;
mod stored;
mod subject;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use cell::ProbeCell;
pub(crate) use stored::FORMAT_VERSION as PROFILE_FORMAT_VERSION;
pub use stored::{DEVICE_FILE, ProfileError, StoredProfile};

use crate::error::StoreError;
use crate::plan::DiskProfile;
use crate::ring::{Arena, DEPTH, ReadFile, ReadQueue, ReadRing, WorkerQueue};
use cell::{Shape, measure};
use fit::fit;

/// Request sizes that are measured, in bytes.
const REQUEST_BYTES: [usize; 9] =
    [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];

/// Queue depths that are measured.
const DEPTHS: [usize; 6] = [1, 4, 16, 32, 64, 128];

/// Most bytes in flight of a cell; deeper queues of large requests tell nothing more.
const MEMORY_BYTES: usize = 32 << 20;

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeOptions {
    /// Bytes of the file that is written in a folder; `None` for 1 GiB, or a quarter of the free
    /// space if that is less.
    pub scratch_bytes: Option<u64>,
    /// Time for all cells together.
    pub duration: Duration,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self { scratch_bytes: None, duration: Duration::from_secs(12) }
    }
}

/// Measured properties of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeReport {
    /// The file that was read, or the folder on the file system that was measured.
    pub path: String,
    /// Whether reads bypassed the page cache; if not, the figures are mostly those of memory.
    pub direct: bool,
    /// Whether reads went through an io_uring; if not, through threads.
    pub io_uring: bool,
    /// Bytes of the file that was read.
    pub file_bytes: u64,
    /// Whether that file was written for it. Some disks read faster what was written just before.
    pub written: bool,
    /// Requests per second, of the cost model fitted to the cells.
    pub iops: f64,
    /// Bytes per second, of the cost model fitted to the cells.
    pub bandwidth_bytes_per_s: f64,
    /// Every size with every depth.
    pub cells: Vec<ProbeCell>,
    /// Duration of everything, writing the file included.
    pub seconds: f64,
}

impl ProbeReport {
    /// Returns the cost model.
    #[must_use]
    pub fn profile(&self) -> DiskProfile {
        let (iops, bandwidth_bytes_per_s) = (self.iops, self.bandwidth_bytes_per_s);
        DiskProfile { iops, bandwidth_bytes_per_s }
    }
}

/// Measures random reads of the file `path`. If that is a folder, it measures a file that is
/// written in it. That file has no name and so is gone however the process ends. `progress`
/// receives stages, steps done and steps in all.
pub fn probe(
    path: &Path,
    options: &ProbeOptions,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<ProbeReport, StoreError> {
    let start = Instant::now();
    let subject = if path.is_file() {
        subject::open(path)?
    } else {
        subject::write(path, options.scratch_bytes, progress)?
    };
    let (cells, io_uring) = measure_all(path, &subject, options.duration, progress)?;
    let profile = fit(&cells).ok_or_else(|| {
        let reason = "the figures make no sense; measure again with a larger file";
        StoreError::io(path, "measure")(std::io::Error::other(reason))
    })?;
    Ok(ProbeReport {
        path: path.display().to_string(),
        direct: subject.file.is_direct(),
        io_uring,
        file_bytes: subject.n_bytes,
        written: subject.is_written,
        iops: profile.iops,
        bandwidth_bytes_per_s: profile.bandwidth_bytes_per_s,
        cells,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Returns all cells, through a ring or else by threads; and whether it was a ring.
fn measure_all(
    dir: &Path,
    subject: &subject::Subject,
    duration: Duration,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<(Vec<ProbeCell>, bool), StoreError> {
    let arena = || Arena::new(MEMORY_BYTES).map_err(StoreError::io(dir, "get memory for"));
    if let Ok(mut ring) = ReadRing::new(DEPTH as u32, arena()?) {
        ring.attach(&subject.file);
        return Ok((measure_on(dir, &mut ring, subject.n_bytes, duration, progress)?, true));
    }
    let mut arena = arena()?;
    let file: Arc<ReadFile> = Arc::clone(&subject.file);
    let mut threads = WorkerQueue::new(file, &mut arena);
    Ok((measure_on(dir, &mut threads, subject.n_bytes, duration, progress)?, false))
}

fn measure_on(
    dir: &Path,
    queue: &mut dyn ReadQueue,
    file_bytes: u64,
    duration: Duration,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Vec<ProbeCell>, StoreError> {
    let shapes = shapes(queue.depth(), file_bytes);
    let each = duration / (shapes.len() as u32).max(1);
    let mut cells = Vec::with_capacity(shapes.len());
    for shape in &shapes {
        progress("measure", cells.len() as u64, shapes.len() as u64);
        cells.push(measure(dir, queue, *shape, file_bytes, each)?);
    }
    progress("measure", cells.len() as u64, shapes.len() as u64);
    Ok(cells)
}

/// Sizes and depths that queue, memory and file have room for.
fn shapes(max_depth: usize, file_bytes: u64) -> Vec<Shape> {
    let all = REQUEST_BYTES
        .into_iter()
        .flat_map(|request_bytes| DEPTHS.map(|depth| Shape { request_bytes, depth }));
    all.filter(|shape| {
        shape.depth <= max_depth
            && shape.request_bytes * shape.depth <= MEMORY_BYTES
            && shape.request_bytes as u64 <= file_bytes
    })
    .collect()
}

#[cfg(test)]
mod tests;
